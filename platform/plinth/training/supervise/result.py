"""Result and cost of a job: result file, lock, allowance of rank-seconds, and work lost by failures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.errors import LaunchError, TrainingError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.seal import Seal, load
from plinth.storage.workspace import Workspace
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.timeline import (
    JOB_ENDS,
    Event,
    RankFailure,
    Timeline,
    TimelineReader,
    read_events,
    timeline,
)

if TYPE_CHECKING:
    from plinth.training.config import RunConfig

# End of a job, written by the supervisor and read by the process that follows the job, and the lock on the run, held
# while any process of the job is alive.

Ending = Literal["finished", "stopped", "failed"]


class JobResult(Frozen):
    """Result of a job, as stored in `result.json`."""

    status: Ending
    step: int
    restarts: int
    lost_steps: int
    lost_s: float
    restart_s: float = 0.0  # from each failure to the next step
    reason: str = ""
    failure: RankFailure | None = None  # error reported by a rank


#: Seconds to wait until the ranks of a killed supervisor have ended.
TIMEOUT_S = 30.0


def hold(path: Path, wait_s: float = TIMEOUT_S) -> int:
    """Take the run's lock and return its inheritable descriptor. The lock is released when all processes that have the
    descriptor have ended.

    Raises:
        LaunchError: another supervisor, or one of its ranks, is alive.
    """
    fd = atomic.try_take(path, wait_s=wait_s)
    if fd is None:
        raise LaunchError(
            f"another supervisor is active on the run in {path.parent}",
            expected="at most one active supervisor per run",
            remedy="follow its job, or cancel it first",
        )
    return fd


# Allowance of a run: rank-seconds granted to its jobs, and the stop before they are spent.
#
# The grant is a file of the run's directory, written before a job is submitted and reread while it runs: a larger grant
# takes effect at once. A job is stopped like by a preemption, at the end of a step with the state committed, early
# enough that its grace period (`grace_s`) is within the grant.
#
# The grant is sealed, and numbered by its time: who writes the workspace cannot raise it. The job's command names the
# grant with which it was submitted (`GRANTED`), so an earlier one, or none, is refused.
#
# Does not belong here: the origin of the grant (`plinth.operation.spending`).

#: Option of the supervisor with the number of the grant at the submission.
GRANTED: Final = "--granted"

#: Shares of the grant at which the spending is logged on the timeline.
MARKS = (0.5, 0.8, 0.95)

#: Seconds between two reads of the file.
READ_S = 2.0


class Allowance(Frozen):
    """Rank-seconds granted to all jobs of a run together."""

    rank_s: float = Field(ge=0, description="Rank-seconds.")
    price_per_rank_hour: float = Field(ge=0)
    number: int = Field(default_factory=time.time_ns, ge=0, description="Time of the grant, in nanoseconds.")


def read_allowance(run: RunDirectory, least: int = 0) -> Allowance | None:
    """Return the allowance of a run, or None if there is no limit.

    Args:
        least: number of an earlier grant; 0 if there may be no limit.

    Raises:
        TrainingError: no worker of this workspace has written the file, or it is too old.
    """
    try:
        content = json.loads(run.allowance.read_bytes())
        found = Allowance.model_validate(content["allowance"])
        if not _seal(run).holds(content["seal"], *_sealed(run, found)):
            raise ValueError("its seal is wrong")
        if found.number < least:
            raise ValueError(f"grant {found.number}; the job was submitted with grant {least}")
    except FileNotFoundError as error:
        if not least:
            return None
        raise _refused(run, error) from error
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise _refused(run, error) from error
    return found


def write_allowance(run: RunDirectory, granted: Allowance | None) -> int:
    """Replace the allowance of a run, or remove it. Return its number, or 0."""
    if granted is None:
        run.allowance.unlink(missing_ok=True)
    else:
        content = {"allowance": granted.model_dump(mode="json"), "seal": _seal(run).of(*_sealed(run, granted))}
        write_bytes(run.allowance, fingerprint.canonical(content))
    return 0 if granted is None else granted.number


def granted_option(grant: int) -> list[str]:
    """Return the supervisor's arguments that bind a job to the grant with which it is submitted, by its number."""
    return [GRANTED, str(grant)] if grant else []


def submitted_grant(arguments: list[str]) -> tuple[list[str], int]:
    """Return a job's other arguments, and the number of the grant with which it was submitted, or 0."""
    if GRANTED not in arguments:
        return arguments, 0
    at = arguments.index(GRANTED)
    return arguments[:at], int(arguments[at + 1])


def _seal(run: RunDirectory) -> Seal:
    return load(Workspace(run.workspace).trust_folder)


def _sealed(run: RunDirectory, granted: Allowance) -> tuple[str, str, str]:
    return "allowance", run.root.name, fingerprint.digest(granted.model_dump(mode="json"))


def _refused(run: RunDirectory, found: Exception) -> TrainingError:
    return TrainingError(
        f"{run.allowance} is not the allowance of this run",
        found=found,
        expected="a grant that a worker of this workspace has written, as new as the job or newer",
        remedy="find out who changed it, then submit the run again",
    )


class AllowanceWatch:
    """Monitor that compares the rank-seconds of the current job with the run's allowance. Only a newer grant replaces
    the first one; a file that disappears does not lift the limit.

    Args:
        before_s: rank-seconds of the run's earlier jobs.
    """

    def __init__(self, config: RunConfig, granted: Allowance, before_s: float) -> None:
        self.granted, self.reason = granted, ""
        self._config, self._before_s = config, before_s
        self._begun = self._read = time.monotonic()
        self._events = Timeline(config.directory.events)
        self._said = max((mark for mark in MARKS if before_s >= mark * granted.rank_s), default=0.0)

    @classmethod
    def of(cls, config: RunConfig, least: int = 0) -> AllowanceWatch | None:
        """Create the watch for a job whose start is on the timeline. Return None if the run has no allowance.

        Args:
            least: number of the grant with which the job was submitted, or 0.

        Raises:
            TrainingError: the allowance was changed or removed by no worker of this workspace.
        """
        granted = read_allowance(config.directory, least)
        if granted is None:
            return None
        return cls(config, granted, account(read_events(config.directory.events), config.ranks).held_rank_s)

    def spent(self) -> bool:
        """Return True if the job must stop because the allowance is spent. This is logged once. Passing a fraction in
        `MARKS` is also logged."""
        now, ranks = time.monotonic(), self._config.ranks
        if now - self._read > READ_S:
            self._read, found = now, read_allowance(self._config.directory)
            self.granted = found if found is not None and found.number >= self.granted.number else self.granted
        taken = self._before_s + (now - self._begun) * ranks
        passed = max((mark for mark in MARKS if taken >= mark * self.granted.rank_s), default=0.0)
        if passed > self._said:
            self._said = passed
            self._emit("allowance", taken)
        if not self.reason and taken + self._config.supervision.grace_s * ranks >= self.granted.rank_s:
            price = self.granted.price_per_rank_hour / 3600
            self.reason = (
                f"the granted budget is spent: {taken * price:,.2f} of {self.granted.rank_s * price:,.2f}; the "
                "rest is reserved for stopping the run"
            )
            self._emit("allowance_spent", taken)
        return bool(self.reason)

    def _emit(self, event: str, taken: float) -> None:
        granted = self.granted.rank_s
        self._events.append(
            event,
            share=round(taken / granted, 4) if granted else 1.0,
            rank_s=round(taken, 3),
            granted_rank_s=granted,
            price_per_rank_hour=self.granted.price_per_rank_hour,
            durable=True,
        )


# Costs of failures: repeated steps, their seconds, and seconds until training resumed.
#
# Durations are read from the monotonic clock when the supervisor sees an event, so changes of the wall clock do not
# matter. A job with a killed supervisor has no such readings: the times of its events are used, and never count below
# zero.

#: Events before a job has a supervisor.
BEFORE_A_JOB = ("submitted",)


class Loss(NamedTuple):
    """Work since the last commit, which a failure loses."""

    from_step: int
    steps: int
    seconds: float


def _committed(run: RunDirectory) -> int:
    """Return the last committed step, or 0 if there is none."""
    from plinth.training.checkpoint import (
        checkpoint,  # loads pyarrow, which readers of a run's state avoid
    )

    return max(checkpoint.committed(run), default=0)


class LostWork:
    """Reader of a run's timeline that adds up lost steps and seconds."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.lost_steps, self.lost_s, self.restart_s = 0, 0.0, 0.0
        self._reader = TimelineReader(run.events)
        self._taken: dict[int, float] = {}  # step -> time of its committed state
        self._done: dict[int, float] = {}  # step since the last commit that is not lost -> time of its event
        self._begun = self._failed = time.monotonic()
        self._failure: RankFailure | None = None
        self._restarting = False
        for event in self._reader.poll():  # of earlier jobs
            self._record(event, 0.0)
        self._failure = None

    def begin(self) -> None:
        """Start to count for a new attempt."""
        self.update()
        self._begun, self._failure = time.monotonic(), None

    def update(self) -> None:
        """Read new events of the timeline. Call this often, because an event's time is the moment at which it is read
        here."""
        for event in self._reader.poll():
            self._record(event, time.monotonic())

    @property
    def failure(self) -> RankFailure | None:
        """Error that a rank of this attempt reported, or None if no rank could report one."""
        self.update()
        return self._failure

    def highest(self) -> int:
        """Return the highest step on the timeline."""
        return max(timeline(self.run.events).steps, default=0)

    def lose(self, *, audit: bool, step: int | None = None) -> Loss:
        """Count this attempt's work since the last commit as lost, or since a later `step` whose state is in memory,
        and return it. An audit loses only time."""
        self.update()
        now = time.monotonic()
        committed = _committed(self.run) if step is None else step
        done = [] if audit else [step for step in self._done if step > committed]
        since = self._taken.get(committed, self._done.get(committed, 0.0))
        seconds = round(now - max(self._begun, since), 3)
        self._keep(lambda step: audit or step <= committed)
        self._failed, self._restarting = now, True
        return self._add(Loss(committed, len(done), seconds))

    def lose_vanished(self, step: int | None = None) -> Loss | None:
        """Count the lost work of a job whose supervisor was killed, since the last commit or since a later `step` whose
        state is in memory. Return None if the last job ended normally."""
        history = timeline(self.run.events)
        kinds = [event["event"] for event in history.events if event["event"] not in BEFORE_A_JOB]
        if not kinds or kinds[-1] in JOB_ENDS:
            return None
        committed = _committed(self.run) if step is None else step
        done = [event for step, event in history.steps.items() if step > committed]
        if not done:
            return None
        earlier = [event for step, event in history.steps.items() if step <= committed]
        since = max([earlier[-1]["time"] if earlier else 0.0, *(e["time"] for e in history.of("run_started")[-1:])])
        return self._add(Loss(committed, len(done), round(max(0.0, done[-1]["time"] - since), 3)))

    def _add(self, loss: Loss) -> Loss:
        self.lost_steps += loss.steps
        self.lost_s = round(self.lost_s + loss.seconds, 3)
        return loss

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        self._done = {step: at for step, at in self._done.items() if wanted(step)}

    def _record(self, event: Event, now: float) -> None:
        kind = event["event"]
        if kind == "step":
            self._done[int(event["step"])] = now
        elif kind == "checkpoint":
            self._taken[int(event["step"])] = now - float(event["seconds"])
            self._keep(lambda step: step >= int(event["step"]))
        elif kind == "rolled_back":
            self._keep(lambda step: step <= int(event["step"]))
        elif kind in ("restart", "lost", "vanished") and event.get("phase") != "audit":
            self._keep(lambda step: step <= int(event.get("from_step", step)))
        elif kind == "rank_failed":
            self._failure = RankFailure.model_validate({name: event[name] for name in RankFailure.model_fields})
        if kind == "step" and self._restarting:
            self.restart_s = round(self.restart_s + now - self._failed, 3)
            self._restarting = False
