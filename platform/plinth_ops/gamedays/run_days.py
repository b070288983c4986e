"""Game days of a run: a preemption, a clock jump, a revoked key, an MLflow outage."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from plinth.compute.context import Context
from plinth.errors import PlinthError, SignatureError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.timeline import read_events, timeline
from plinth.trust import dsse, enrolment
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_assets.training import TimelineRelay
from plinth_jobs.recipes import find, load
from plinth_ops.gamedays import faults, gameday, rehearsal, warm_job
from plinth_ops.gamedays.faults import FaultyLine, RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.play import variables
from plinth_ops.gamedays.rehearsal import Rehearsal
from plinth_registry.mlflow import connection
from plinth_registry.mlflow.server import ensure_server, stop_server
from plinth_registry.registration import ensure_run

#: Clock jumps in seconds; the last one passes the expiry of the root of trust, which is valid for a year.
JUMPS_S = (-86_400.0, -3_600.0, -30.0, 30.0, 3_600.0, 86_400.0, 400 * 86_400.0)
EXPIRES_S = 365 * 86_400.0


def preemption(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """Send SIGTERM within a step, as a scheduler does, then run the next job of the run."""
    config = made.copy(folder / "workspace", batches=faults.SOURCE)
    step = chooser.randint(1, config.total_steps - 2)
    stop = RehearsalFault(kind="stop", step=step)
    plan, environment = faults.plan(folder / "plan", stop)
    left = warm_job.run(config, **environment)
    took, at = time.time() - plan.mark(stop).stat().st_mtime, checkpoint.newest_valid(config.directory)
    quiet = gameday.no_page(config)
    stopped = [event["step"] for event in timeline(config.directory.events).of("signal")]
    status = warm_job.run(config)
    story = timeline(config.directory.events)
    found = [
        finding("the job exits with 75, so that the scheduler restarts it", left, EXIT_PREEMPTED),
        finding("the step in which the job stopped is committed", at, (stopped[-1] if stopped else None, [])),
        Outcome(
            what="the job exits within its grace period",
            passed=took < config.supervision.grace_s,
            seen=f"{took:.1f} s",
        ),
        finding("no step is trained twice", story.redone, 0),
        rehearsal.finished(status),
        *made.end_state(config),
        *quiet,
    ]
    return Struck(f"SIGTERM within step {step}", tuple(found))


# A clock jump


@dataclass(frozen=True)
class _Jump:
    step: int
    by_s: float

    @property
    def words(self) -> str:
        return f"the clock jumps by {self.by_s:+,.0f} s before step {self.step}"


def clock_jump(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """Let the clocks of supervisor and rank jump before a step. If the root of trust has then expired, run the job
    again."""
    config = made.copy(folder / "workspace", batches=faults.SOURCE)
    jump = _Jump(chooser.randint(1, config.total_steps - 1), chooser.choice(JUMPS_S))
    _, environment = faults.plan(folder / "plan", RehearsalFault(kind="jump", step=jump.step, value=jump.by_s))
    begun = time.time()
    status, found, after = warm_job.run(config, **environment), list[Outcome](), None
    if jump.by_s > gameday.AHEAD_S:  # a clock that is behind looks like a silent run and loses nothing
        alert, after = gameday.fires(CLOCK_JUMP.alerts, begun, gameday.samples(config))
        found += alert
    if jump.by_s > EXPIRES_S:
        log = config.directory.log.read_text(errors="replace")
        refused = status == 7 and "has expired" in log
        seen = f"status {status}, the expired root {'is' if 'has expired' in log else 'is not'} reported"
        found.append(Outcome(what="nothing is signed under an expired root", passed=refused, seen=seen))
        before = [known for known in checkpoint.committed(config.directory) if known >= jump.step]
        found.append(finding("no checkpoint is committed after the jump", before, []))
        status = warm_job.run(config)  # the clock is right again
    found += [rehearsal.finished(status), *_ledger(config), *made.end_state(config)]
    return Struck(jump.words, tuple(found), after)


def _ledger(config: RunConfig) -> list[Outcome]:
    """Check that every rank-second has a cause, and that events are in order despite the clock jump."""
    events = list(read_events(config.directory.events))
    attempts = account(events, config.ranks).attempts
    gaps = [sum(one.rank_us.values()) - round(one.ranks * (one.end - one.begin) * 1e6) for one in attempts]
    least = min((us for one in attempts for us in one.rank_us.values()), default=0)
    numbers = [event["seq"] for event in events]
    return [
        Outcome(
            what="the goodput ledger's causes add up to all rank-seconds",
            passed=all(abs(gap) <= 2 for gap in gaps),
            seen=f"{gaps} µs",
        ),
        Outcome(what="no cause has negative time", passed=least >= 0, seen=f"minimum {least} µs"),
        finding("events are in order", numbers, sorted(set(numbers))),
    ]


PREEMPTION: Final = GameDay(
    name="preemption",
    hypothesis="A preempted job commits its current step and exits with 75 within its grace period; the next job "
    "resumes there and trains no step twice.",
    fault="SIGTERM to the supervisor during a step.",
    protection="signals are handled at the end of a step, whose state is committed before the ranks exit",
    prepare=rehearsal.rehearse,
    play=preemption,
)

CLOCK_JUMP: Final = GameDay(
    name="clock-jump",
    hypothesis="A clock jump changes neither weights nor order; the goodput ledger still sums to all rank-seconds; "
    "nothing is signed once the root has expired.",
    fault="The wall clock of supervisor and ranks jumps back or forward by seconds, hours or days, or past the root's "
    "expiry.",
    blast_radius=f"{OWN} The machine's clock is not changed; the processes of the job read a shifted clock.",
    protection="order by number, waits on the monotonic clock, a ledger clock that never goes back, key expiry",
    prepare=rehearsal.rehearse,
    play=clock_jump,
    alerts=("ClockAhead",),
)

#: Age in days of statements that the trainer signed before the game day.
DAYS = 20
PREDICATE = "urn:plinth:gameday-statement:v1"


def revoked_key(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """Revoke the trainer's key from a past date while a run trains, enroll another key, and train again."""
    with _trust_of(folder):
        return _revoked(made, folder, chooser)


def _revoked(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    config = made.copy(folder / "workspace", batches=faults.SOURCE)
    workspace, step = Workspace(config.workspace), chooser.randint(4, config.total_steps - 2)
    before, now = Trust.of(workspace), datetime.now(UTC)
    envelopes = {day: _stated(before, now - timedelta(days=day)) for day in range(DAYS)}
    _, environment = faults.plan(folder / "plan", RehearsalFault(kind="stop", step=step))
    warm_job.run(config, **environment)
    since = now - timedelta(days=chooser.randrange(1, DAYS), hours=chooser.randrange(-12, 12))
    enrolment.revoke(workspace, before.signer(TRAINER).key_id, since)
    after, found = Trust.of(workspace), list[Outcome]()
    accepted = {day for day, envelope in envelopes.items() if _accepted(after, envelope)}
    expected = {day for day in envelopes if now - timedelta(days=day) < since.replace(microsecond=0)}
    found.append(finding("later statements than the revocation are rejected, earlier ones verify", accepted, expected))
    undated = _accepted(after, _stated(before, None))
    found.append(finding("a statement without a time is rejected", undated, False))
    refused = warm_job.run(config)
    alert, after_s = gameday.fired(config, REVOKED_KEY.alerts, "failed")
    found += alert
    log = config.directory.log.read_text(errors="replace")
    seen = f"status {refused}, {len(timeline(config.directory.events).steps)} steps"
    none = max(timeline(config.directory.events).steps, default=0) <= step + 1
    named = "no private key" in log
    found.append(Outcome(what="a job with the revoked key trains no step and reports the reason",
                         passed=refused == 7 and none and named, seen=seen))  # fmt: skip
    found += _go_on(made, config)
    return Struck(f"revoked as of {since:%Y-%m-%d %H:%M}, after step {step}", tuple(found), after_s)


def _go_on(made: Rehearsal, config: RunConfig) -> Iterator[Outcome]:
    """Enroll another trainer key, check that existing checkpoints are rejected, and train from the beginning."""
    workspace = Workspace(config.workspace)
    trust = Trust.of(workspace)
    enrolment.enrol(workspace, TRAINER, "second trainer", enrolment.new_key(trust.folder, TRAINER, "second trainer"))
    for step in checkpoint.committed(config.directory):
        try:
            checkpoint.verify(config.directory, step)
        except Exception as error:
            yield Outcome(what=f"the checkpoint of step {step} is rejected", passed="commit" in str(error)
                          or "sign" in str(error), seen=str(error).splitlines()[0])  # fmt: skip
        else:
            yield Outcome(what=f"the checkpoint of step {step} is rejected", passed=False, seen="accepted")
    shutil.rmtree(config.directory.checkpoints)  # the remedy of the error: train from the beginning
    shutil.rmtree(config.directory.attempts)
    config.directory.events.unlink()
    yield rehearsal.finished(warm_job.run(config))
    yield from made.end_state(config)


def _stated(trust: Trust, at: datetime | None) -> dict[str, object]:
    """Return a statement that the trainer signed, dated `at`. If `at` is None, the statement has no date."""
    when = {} if at is None else {"at": at.isoformat(timespec="seconds")}
    return dsse.seal(dsse.statement(PREDICATE, {"it": "0" * 64}, when), trust.signer(TRAINER))


def _accepted(trust: Trust, envelope: dict[str, object]) -> bool:
    try:
        dsse.opened(envelope, trust.authority(TRAINER), PREDICATE, "a statement")
    except SignatureError:
        return False
    return True


@contextmanager
def _trust_of(folder: Path) -> Iterator[None]:
    """Use a copy of the game day's root of trust and keys within the block."""
    shared = os.environ[TRUST_VARIABLE]
    os.environ[TRUST_VARIABLE] = str(shutil.copytree(shared, folder / "trust"))
    try:
        yield
    finally:
        os.environ[TRUST_VARIABLE] = shared


REVOKED_KEY: Final = GameDay(
    name="revoked-key",
    hypothesis="Every reader rejects statements that a key signed after its revocation date and accepts earlier "
    "statements. A job with the revoked key trains no step and reports the reason; with another key, the run reaches "
    "the same end state.",
    fault="Between two jobs of its run, the trainer's key is revoked as of a past date.",
    blast_radius=f"{OWN} The scratch folder has its own root of trust.",
    protection="revocation dates, checked by every reader of a signed statement",
    prepare=rehearsal.rehearse,
    play=revoked_key,
    alerts=("JobFailed",),
)

_SERVER = "MLFLOW_TRACKING_URI"

#: Settings of the MLflow client: one retry of a dropped connection, and patience with a slow server.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}


@dataclass(frozen=True)
class Served:
    """Undisturbed run, and an MLflow server."""

    whole: Rehearsal
    workspace: Workspace
    uri: str
    recipe: Recipe


def serve(folder: Path) -> Served:
    """Prepare an undisturbed run that is not in MLflow, and start an MLflow server."""
    workspace = Workspace(folder / "mlflow").ensure()
    return Served(rehearsal.rehearse(folder / "whole"), workspace, ensure_server(workspace), load(find("tiny")))


def mlflow_away(made: Served, folder: Path, chooser: Random) -> Struck:
    """Relay a run's timeline to an MLflow server that is down for a range of events."""
    config = made.whole.copy(folder / "workspace")
    config = config.model_copy(update={"run_id": config.run_id})
    status = warm_job.run(config)
    events = list(read_events(config.directory.events))
    first = chooser.randrange(len(events) - 1)
    last = chooser.randint(first + 1, len(events))
    name = f"{config.run_id}-{folder.name}"
    host = made.uri.removeprefix("http://").rstrip("/")
    with FaultyLine(host, 0, 0) as line, variables({_SERVER: f"http://127.0.0.1:{line.port}", **_IMPATIENT}):
        refused = _relay(made, config, name, events, line, first, last)
        relayed = _steps(made, name)
    expected = [(event["step"], event["loss"]) for event in events if event["event"] == "step"]
    found = [
        rehearsal.finished(status),
        Outcome(what="events that MLflow refused are reported", passed=bool(refused), seen="; ".join(refused[:1])),
        finding("after the outage, MLflow has every step once, with its loss", relayed, expected),
        *made.whole.end_state(config),
        *gameday.no_page(config),
    ]
    return Struck(f"outage from event {first + 1} to {last} of {len(events)}", tuple(found))


def _relay(
    made: Served, config: RunConfig, name: str, events: list[dict[str, Any]], line: FaultyLine, first: int, last: int
) -> list[str]:
    """Relay the events one by one; return the messages about batches that MLflow did not accept."""
    said: list[str] = []
    relay = TimelineRelay(Context(Workspace(config.workspace)), made.recipe, name, said.append, interval_s=0.0)
    for number, event in enumerate(events):
        line.failures_left = 10**9 if first <= number < last else 0
        relay.add(event)
        if first <= number < last:
            relay.drain()
    if last == len(events):
        try:
            relay.finish([])
        except PlinthError as error:
            said.append(error.what)
    line.failures_left = 0
    relay.finish([])
    return said


def _steps(made: Served, name: str) -> list[tuple[int, float]]:
    """Return the steps and losses of a run in MLflow, sorted by step."""
    client = connection.connect(made.workspace)
    run = ensure_run(client, made.recipe.name, name)
    return sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss"))


MLFLOW: Final = GameDay(
    name="mlflow-away",
    hypothesis="A run continues during an MLflow outage. Events that could not be relayed are reported, kept, and "
    "relayed when MLflow is back, and every step arrives once.",
    fault="The connection to the MLflow server is down from one event of the timeline to another.",
    blast_radius=f"{OWN} It also starts a separate MLflow server on loopback.",
    protection="events wait until MLflow accepts them, and markers prevent duplicates",
    prepare=serve,
    play=mlflow_away,
    end=lambda made: stop_server(made.workspace),
)
