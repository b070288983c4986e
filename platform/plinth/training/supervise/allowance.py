"""The rank-seconds that the ledger grants a run's jobs, and the stop before they are spent.

The grant is a file of the run's directory, written before a job is submitted and read again while it runs: a larger one
takes effect at once. A job is stopped as a preemption stops it, at the end of a step with the state committed, early
enough that its time to leave (`grace_s`) is within the grant.

Does not belong here: where the grant comes from (`plinth.operation.spending`).
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field, ValidationError

from plinth.errors import TrainingError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.telemetry.goodput.account import account
from plinth.training.telemetry.timeline import Timeline, read_events

#: Shares of the grant at which the timeline says how much is spent.
MARKS = (0.5, 0.8, 0.95)

#: Seconds between two looks at the file.
READ_S = 2.0


class Allowance(Frozen):
    """What a run's jobs may take, all of them together."""

    rank_s: float = Field(ge=0, description="Rank-seconds.")
    price_per_rank_hour: float = Field(ge=0)


def read(path: Path) -> Allowance | None:
    """The grant of a run, or None where no limit applies.

    Raises:
        TrainingError: the file is not one.
    """
    try:
        return Allowance.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise TrainingError(f"{path} is no allowance", found=error, remedy="submit the run again") from error


def write(path: Path, granted: Allowance | None) -> None:
    """Replace the grant of a run, or take it away."""
    if granted is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, granted.model_dump_json().encode() + b"\n")


class AllowanceWatch:
    """Of the job that begins now.

    Args:
        before_s: rank-seconds that the run's earlier jobs took.
    """

    def __init__(self, config: RunConfig, granted: Allowance, before_s: float) -> None:
        self.granted, self.reason = granted, ""
        self._config, self._before_s = config, before_s
        self._begun = self._read = time.monotonic()
        self._events = Timeline(config.directory.events)
        self._said = max((mark for mark in MARKS if before_s >= mark * granted.rank_s), default=0.0)

    @classmethod
    def of(cls, config: RunConfig) -> AllowanceWatch | None:
        """For a job whose start is on the timeline; None where nothing is granted and nothing is limited."""
        granted = read(config.directory.allowance)
        if granted is None:
            return None
        return cls(config, granted, account(read_events(config.directory.events), config.ranks).held_rank_s)

    def spent(self) -> bool:
        """Whether the job must leave now; the timeline says so once, and when a mark is passed."""
        now, ranks = time.monotonic(), self._config.ranks
        if now - self._read > READ_S:
            self._read, self.granted = now, read(self._config.directory.allowance) or self.granted
        taken = self._before_s + (now - self._begun) * ranks
        passed = max((mark for mark in MARKS if taken >= mark * self.granted.rank_s), default=0.0)
        if passed > self._said:
            self._said = passed
            self._emit("allowance", taken)
        if not self.reason and taken + self._config.supervision.grace_s * ranks >= self.granted.rank_s:
            price = self.granted.price_per_rank_hour / 3600
            self.reason = (
                f"its allowance is spent: {taken * price:,.2f} of {self.granted.rank_s * price:,.2f}, "
                f"the rest is for leaving"
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
