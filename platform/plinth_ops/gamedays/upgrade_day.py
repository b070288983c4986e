"""Game day of a change of code: worse code is refused, and equal code is killed while it takes over the run.

    job of the run's code, stopped -> job of worse code, refused -> job of equal code, killed at a boundary
                                   -> job of the equal code or of the run's code, which ends the run

Jobs of other code are forked from the same process; the changes are planted in them (`faults`, kind `other code`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from plinth.storage.workspace import Workspace
from plinth.training import attempts
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from plinth.training.upgrade.record import REFUSED, UPGRADED, UpgradeRequest, ask, comparison_of
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_ops.gamedays import faults, gameday, rehearsal, warm_job
from plinth_ops.gamedays.faults import SUPERVISOR, RehearsalFault
from plinth_ops.gamedays.gameday import Chooser, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import STEPS, Rehearsal
from plinth_registry import trained

#: The run's code is stopped in step `STOP`, or in the next one. New code repeats the steps after step `FIRST`: eight or
#: more, the fewest that an interval needs.
FIRST, STOP = 2, 10

EQUAL, WORSE, OTHER_SCHEDULE = (f"{__name__}:{name}" for name in ("equal", "worse", "other_schedule"))

_JOB, _RANKS = "plinth.training.supervise.supervisor:", "plinth.training.supervise.job_ranks:"

_PLACES: dict[str, dict[str, Any]] = {
    "before the replay": {"step": 0, "rank": SUPERVISOR, "place": f"{_JOB}Supervisor._until_done"},
    "in the replay": {"step": 5},
    "after the replay": {"step": 0, "rank": SUPERVISOR, "place": f"{_JOB}compared"},
    "before the verdict is logged": {"step": 0, "rank": SUPERVISOR, "place": f"{_JOB}compared!"},
    "before the attempt is signed": {"step": 0, "rank": SUPERVISOR, "place": f"{_JOB}Supervisor._phases"},
    "before the request is removed": {
        "step": 0,
        "rank": SUPERVISOR,
        "place": "plinth.training.attempts:state!",
        "value": 1,
    },
    "before the ranks start": {"step": 0, "rank": SUPERVISOR, "place": f"{_RANKS}JobRanks.attest!", "value": 1},
    "in the last step": {"step": STEPS},
}

#: Boundaries of the cut-over at which the job of the equal code is killed.
BOUNDARIES: Final = {name: RehearsalFault(kind="kill", target="node", **fields) for name, fields in _PLACES.items()}


def equal() -> None:
    """Change nothing that is computed."""


def worse() -> None:
    """Let each update go uphill."""
    from plinth.training.engine.engine import TrainingEngine

    whole = TrainingEngine.train_step
    setattr(TrainingEngine, "train_step", lambda engine, batch, lr: whole(engine, batch, -lr))  # noqa: B010 - a plant


def other_schedule() -> None:
    """Raise all learning rates by a hundredth."""
    from plinth.training import trainer
    from plinth.training.engine import optimization

    whole = optimization.learning_rate
    setattr(trainer, "learning_rate", lambda *of: 1.01 * whole(*of))  # noqa: B010 - a plant


def upgrade(made: Rehearsal, folder: Path, chooser: Chooser) -> Struck:
    """Stop a run, refuse worse code, kill equal code while it takes over, and run jobs until the run has finished."""
    round_, number = divmod(chooser.number, len(BOUNDARIES))
    name, refused = list(BOUNDARIES)[number], (WORSE, OTHER_SCHEDULE)[number % 2]
    config, goes_on = made.copy(folder / "workspace", batches=faults.SOURCE), not round_ % 2
    _, stop = faults.plan(folder / "stop", RehearsalFault(kind="stop", step=STOP))
    warm_job.run(config, **stop)
    found = list(_refused(config, folder / "refused", refused))
    alert, after = gameday.fired(config, UPGRADE.alerts, REFUSED)
    ask(config.directory, UpgradeRequest(from_step=FIRST))
    code = RehearsalFault(kind="other code", step=0, place=EQUAL)
    plan, environment = faults.plan(folder / "killed", code, BOUNDARIES[name])
    warm_job.run(config, **environment)
    found.append(finding("the job is killed", plan.struck(BOUNDARIES[name]), True))
    _, same = faults.plan(folder / "last", code)
    status = warm_job.run(config, **(same if goes_on else {}))
    found += [rehearsal.finished(status), *_kept(config, name, goes_on), *made.end_state(config), *alert]
    last = "the new code goes on" if goes_on else "the earlier code goes on"
    return Struck(f"the new code is killed {name}, then {last}", tuple(found), after)


def _refused(config: RunConfig, folder: Path, place: str) -> Iterator[Outcome]:
    """Run a job of worse code, and check that it is refused and leaves no trace."""
    ask(config.directory, UpgradeRequest(from_step=FIRST))
    _, environment = faults.plan(folder, RehearsalFault(kind="other code", step=0, place=place))
    last = max(checkpoint.committed(config.directory), default=0)
    status, story = warm_job.run(config, **environment), timeline(config.directory.events)
    events = [comparison_of(event) for event in story.of(REFUSED)]
    expected = {"worse", "undecided"} if place == WORSE else {"other decisions"}
    said = "; ".join(one.in_words for one in events)
    refused = len(events) == 1 and events[0].verdict in expected and events[0].steps == last - FIRST
    yield Outcome(what="the planted code is refused", passed=refused, seen=said)
    yield finding("its job ends and takes no step", (status != 0, max(story.steps)), (True, last))


def _kept(config: RunConfig, name: str, goes_on: bool) -> Iterator[Outcome]:
    """Check the attestations of the run, its evidence, and that no step was trained twice."""
    run, story = config.directory, timeline(config.directory.events)
    authority = Trust.of(Workspace(config.workspace)).authority(TRAINER)
    records = attempts.opened(attempts.known(run), authority, config.run_id)
    changes = trained.code(records).changes
    late = list(BOUNDARIES)[-2:]  # the cut-over is over, and the earlier code replaces the new one unasked
    unasked = int(name in late and not goes_on)
    lasting = [change.increase for change in changes if change.increase is not None]
    yield finding("a change that was not compared is named", sum(one.increase is None for one in changes), unasked)
    yield finding("every compared change is bit-equal", set(lasting) <= {0.0}, True)
    verdicts = {comparison_of(event).verdict for event in story.of(UPGRADED)}
    yield finding("the equal code is accepted", verdicts <= {"bit-equal"} and (goes_on <= bool(verdicts)), True)
    refused = {faults.code_of(place) for place in (WORSE, OTHER_SCHEDULE)}
    by = {host.code.get("plinth") for one in records if not one.audit for host in one.hosts}
    yield finding("the refused code trained no step", by & refused, set())
    yield finding("no request is left", run.upgrade.exists(), False)
    evidence: tuple[Any, ...] = (run.evidence.read_bytes(), story.of("audited"))
    yield finding("the evidence about resumes is that of the run's own code", evidence, (b"{}", []))
    yield finding("no step is trained twice", story.redone, 0)


UPGRADE: Final = GameDay(
    name="upgrade",
    hypothesis="Worse code is refused and takes no step. Equal code takes over. If it is killed at any boundary of the "
    "cut-over, the new and the earlier code can both continue to the end state of an undisturbed run; each change of "
    "code is compared and signed, or named.",
    fault="A job of planted worse code, and SIGKILL to all processes of a job of equal code while it takes over.",
    protection="comparison of new code with committed steps, a request that stays until the attempt is signed",
    prepare=lambda folder: rehearsal.rehearse(
        folder, checkpoints=Checkpoints(every_steps=2, audit_steps=4, keep_last=9, mode="sync")
    ),
    play=upgrade,
    alerts=("UpgradeRefused",),
)
