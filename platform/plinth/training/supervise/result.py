"""Result of a job, lock on the run, and allowance of rank-seconds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

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
from plinth.training.telemetry.timeline import RankFailure, Timeline, read_events

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
# grant with which it was submitted (`SubmittedNumbers`), so an earlier one, or none, is refused.
#
# Does not belong here: the origin of the grant (`plinth.operation.spending`).

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


class SubmittedNumbers(NamedTuple):
    """Numbers with which a job was submitted, as options of its command: it accepts nothing older. 0 means none."""

    granted: int = 0  # of the grant of rank-seconds
    head: int = 0  # of the head of a run in a shared workspace

    @property
    def options(self) -> list[str]:
        """Arguments of the supervisor."""
        return [word for name, number in self._asdict().items() if number for word in (f"--{name}", str(number))]

    @classmethod
    def split(cls, arguments: list[str]) -> tuple[list[str], Self]:
        """Return the other arguments of a job's command, and its numbers."""
        found = {name: arguments.index(f"--{name}") for name in cls._fields if f"--{name}" in arguments}
        return arguments[: min(found.values(), default=None)], cls(
            **{name: int(arguments[at + 1]) for name, at in found.items()}
        )


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
