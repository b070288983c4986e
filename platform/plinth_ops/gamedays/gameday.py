"""The game days by name, and the records of one: what it states before, what it found at each instant, its verdict.

A game day injects one fault into a rehearsal of its own and compares the end with what its hypothesis states. It is
played at several instants, each drawn from the seed and the number of the instant alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final

from pydantic import Field

from plinth.errors import MissingError
from plinth.records import Frozen


class Outcome(Frozen):
    """One thing that the hypothesis states, and what was seen of it at an instant."""

    what: str
    passed: bool
    seen: str = ""


class Instant(Frozen):
    """One instant that was played.

    Attributes:
        number: from 0; with the seed it decides everything that is drawn.
        struck: where and how the fault struck, in words.
        findings: what was compared; none, where it was aborted.
        aborted: why it was ended early; an aborted instant has not passed.
        alert_s: seconds from the fault's first trace until the alert fired; None where none is due, or none did.
        seconds: that it took.
        phases: seconds of each phase, where the game day has some, in their order.
    """

    number: int
    struck: str
    findings: tuple[Outcome, ...] = ()
    aborted: str = ""
    alert_s: float | None = None
    seconds: float = 0.0
    phases: Mapping[str, float] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether something was compared and all of it held."""
        return not self.aborted and bool(self.findings) and all(one.passed for one in self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        """What did not hold, in words."""
        failed = tuple(f"{one.what}: {one.seen}" for one in self.findings if not one.passed)
        return (f"aborted: {self.aborted}", *failed) if self.aborted else failed


class GameDayRecord(Frozen):
    """What a game day stated and found: the content of its signed record. `phases` are the longest of all instants."""

    name: str
    hypothesis: str
    fault: str
    blast_radius: str
    abort: str
    protection: str
    alerts: tuple[str, ...]
    seed: int
    mechanism: str = ""
    version: str
    machine: str
    instants: tuple[Instant, ...]
    phases: Mapping[str, float] = Field(default_factory=dict)
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every instant passed, and there was one."""
        return bool(self.instants) and all(one.passed for one in self.instants)


@dataclass(frozen=True)
class Struck:
    """What an instant gives: where the fault struck, what was found, when the alert fired, seconds by phase."""

    where: str
    findings: tuple[Outcome, ...]
    alert_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


#: Makes, once and undisturbed, what all instants are compared with; its folder is in the scratch folder.
Prepare = Callable[[Path], Any]
#: Plays one instant in a folder of its own.
Play = Callable[[Any, Path, Random], Struck]


def _nothing_missing() -> str | None:
    return None


def _nothing(prepared: Any) -> None:
    pass


def _by_itself(prepared: Any) -> str:
    return ""


@dataclass(frozen=True)
class GameDay:
    """One game day.

    Args:
        name: as the command names it.
        protection: the part of Plinth that is tested: without it the verdict is red.
        abort_s: seconds after which an instant is ended.
        missing: why it cannot be played on this machine; None where it can.
        alerts: names in the table of alerts, of which one must fire in time; none: nobody may be woken.
        mechanism: how the fault is made on this machine, where that depends on it.
        end: ends what `prepare` has started.
    """

    name: str
    hypothesis: str
    fault: str
    blast_radius: str
    protection: str
    abort_s: float
    prepare: Prepare
    play: Play
    alerts: tuple[str, ...] = ()
    missing: Callable[[], str | None] = _nothing_missing
    mechanism: Callable[[Any], str] = _by_itself
    end: Callable[[Any], None] = _nothing

    @property
    def abort(self) -> str:
        """The condition under which an instant is ended, in words."""
        return f"more than {self.abort_s:g} s, or a change outside the scratch folder, or a process that is left over"


#: The blast radius of a game day that touches nothing but its rehearsal.
OWN: Final = "One rehearsal of its own in the scratch folder; no run, bucket or workspace of anybody else."


def finding(what: str, seen: object, expected: object) -> Outcome:
    """A finding that holds where what was seen is what was expected."""
    return Outcome(what=what, passed=seen == expected, seen=f"{seen}" if seen == expected else f"{seen} ≠ {expected}")


#: Name -> module and attribute.
TABLE: Final[Mapping[str, str]] = {
    "corrupted-checkpoint": "plinth_ops.gamedays.days.checkpoint_days:CORRUPTED",
    "partial-write": "plinth_ops.gamedays.days.checkpoint_days:PARTIAL",
    "full-disk": "plinth_ops.gamedays.days.checkpoint_days:FULL_DISK",
    "preemption": "plinth_ops.gamedays.days.job_days:PREEMPTION",
    "lost-node": "plinth_ops.gamedays.days.job_days:LOST_NODE",
    "clock-jump": "plinth_ops.gamedays.days.job_days:CLOCK_JUMP",
    "storage-stall": "plinth_ops.gamedays.days.data_days:STORAGE_STALL",
    "bad-shard": "plinth_ops.gamedays.days.data_days:BAD_SHARD",
    "poisoned-batch": "plinth_ops.gamedays.days.data_days:POISONED",
    "revoked-key": "plinth_ops.gamedays.days.trust_days:REVOKED_KEY",
    "orchestrator-death": "plinth_ops.gamedays.days.orchestrator_day:DEATH",
    "bad-release": "plinth_ops.gamedays.days.release_day:RELEASE",
    "mlflow-away": "plinth_ops.gamedays.days.mlflow_day:MLFLOW",
}


def find(name: str) -> GameDay:
    """The game day of a name.

    Raises:
        MissingError: there is none.
    """
    if name not in TABLE:
        remedy = "`plinth ops gameday list` lists them"
        raise MissingError(f"no game day {name!r}", expected=", ".join(sorted(TABLE)), remedy=remedy)
    module, _, attribute = TABLE[name].partition(":")
    found: GameDay = getattr(import_module(module), attribute)
    return found
