"""Game day of trust: a key that is revoked while a run trains."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

from plinth.errors import SignatureError
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import timeline
from plinth.trust import dsse, enrolment
from plinth.trust.authority import TRAINER
from plinth.trust.root import Trust
from plinth_ops.gamedays import alerting, faults, rehearsal, warm_job
from plinth_ops.gamedays.faults import RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal

#: Days before now, for statements that the trainer has signed before the game day.
DAYS = 20
_PREDICATE = "urn:plinth:gameday-statement:v1"


def revoked_key(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """Revoke the trainer's key from a date among its statements on, and while a run trains; enrol another; go on."""
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
    found.append(finding("statements from the date on are refused, those before hold", accepted, expected))
    undated = _accepted(after, _stated(before, None))
    found.append(finding("a statement without a time is refused", undated, False))
    refused = warm_job.run(config)
    alert, after_s = alerting.fired(config, REVOKED_KEY.alerts, "failed")
    found += alert
    log = config.directory.log.read_text(errors="replace")
    seen = f"status {refused}, {len(timeline(config.directory.events).steps)} steps"
    none = max(timeline(config.directory.events).steps, default=0) <= step + 1
    named = "no private key" in log
    found.append(Outcome(what="a job with the revoked key trains no step, and says why", passed=refused == 7 and none
                         and named, seen=seen))  # fmt: skip
    found += _go_on(made, config)
    return Struck(f"revoked from {since:%Y-%m-%d %H:%M} on, after step {step}", tuple(found), after_s)


def _go_on(made: Rehearsal, config: RunConfig) -> Iterator[Outcome]:
    """Another key for the same role: what the revoked one committed since its revocation does not count."""
    workspace = Workspace(config.workspace)
    trust = Trust.of(workspace)
    enrolment.enrol(workspace, TRAINER, "second trainer", enrolment.new_key(trust.folder, TRAINER, "second trainer"))
    for step in checkpoint.committed(config.directory):
        try:
            checkpoint.verify(config.directory, step)
        except Exception as error:
            yield Outcome(what=f"the checkpoint of step {step} is refused by name", passed="commit" in str(error)
                          or "sign" in str(error), seen=str(error).splitlines()[0])  # fmt: skip
        else:
            yield Outcome(what=f"the checkpoint of step {step} is refused by name", passed=False, seen="accepted")
    shutil.rmtree(config.directory.checkpoints)  # as the refusal says: train from the beginning
    shutil.rmtree(config.directory.attempts)
    config.directory.events.unlink()
    yield rehearsal.finished(warm_job.run(config))
    yield from made.end_state(config)


def _stated(trust: Trust, at: datetime | None) -> dict[str, object]:
    """A statement of the trainer, signed as of a time."""
    when = {} if at is None else {"at": at.isoformat(timespec="seconds")}
    return dsse.seal(dsse.statement(_PREDICATE, {"it": "0" * 64}, when), trust.signer(TRAINER))


def _accepted(trust: Trust, envelope: dict[str, object]) -> bool:
    try:
        dsse.opened(envelope, trust.authority(TRAINER), _PREDICATE, "a statement")
    except SignatureError:
        return False
    return True


@contextmanager
def _trust_of(folder: Path) -> Iterator[None]:
    """A copy of the root and keys of the game day, for one instant."""
    shared = os.environ[TRUST_VARIABLE]
    os.environ[TRUST_VARIABLE] = str(shutil.copytree(shared, folder / "trust"))
    try:
        yield
    finally:
        os.environ[TRUST_VARIABLE] = shared


REVOKED_KEY: Final = GameDay(
    name="revoked-key",
    hypothesis="From the date of a revocation on nothing that the key signed counts, whoever asks; what it signed "
    "before does. A job with that key trains nothing and says why; with another key the run reaches the same end.",
    fault="The trainer's key is revoked while its run is between two jobs, from a date in the past.",
    blast_radius=f"{OWN} The root of trust is the scratch folder's own.",
    protection="revocation by time, at every reader of a signed statement",
    abort_s=900.0,
    prepare=rehearsal.rehearse,
    play=revoked_key,
    alerts=("JobFailed",),
)
