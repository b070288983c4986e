"""One start of a run's ranks while its events are taken: time that has a cause, in order, and time that waits for one.

Does not belong here: which event gives which cause (`account`).
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from plinth.training.telemetry.goodput.ledger import CAUSES, Cause, TimeSpan


@dataclass(slots=True)
class StepTurn:
    """One time that a step was trained: microseconds by cause."""

    attempt: TimedAttempt
    step: int
    by_cause: Counter[Cause]
    lost: Cause | None = None


class _Named(NamedTuple):
    """Time in the order in which it was named, which is that in which it passed."""

    cause: Cause
    us: int
    turn: StepTurn | None


@dataclass
class TimedAttempt:
    """Microseconds of one attempt.

    `named` is what has a cause; `since`, what an event after the last step or phase would name if none followed.
    """

    job: int
    number: int
    ranks: int
    begin: int
    now: int
    stage: Literal["queue", "start", "restore", "training", "ending"] = "queue"
    named: Counter[Cause] = field(default_factory=Counter)
    since: Counter[Cause] = field(default_factory=Counter)
    in_loop: int = 0  # not accounted for when the last step ended
    phase: tuple[int, int] = (0, 0)  # when the phase began, and what was named by then
    first: StepTurn | None = None
    computing: array[int] = field(default_factory=lambda: array("q"))  # of all turns but the first, sorted
    ordered: bool = True
    order: list[_Named] = field(default_factory=list)
    hung: bool = False

    @property
    def open(self) -> int:
        """Time that nothing accounts for yet; below 0 where clocks differ."""
        return self.now - self.begin - self.named.total()

    @property
    def unnamed(self) -> Cause:
        """The cause of time after which nothing has happened yet."""
        by_stage: dict[str, Cause] = {"queue": "queue", "restore": "restore", "training": "other"}
        return by_stage.get(self.stage, "start")

    def name(self, by_cause: Mapping[Cause, int], turn: StepTurn | None = None) -> None:
        """The next time that has no cause yet has these."""
        for cause, us in by_cause.items():
            self.named[cause] += us
            if self.ordered:
                self.order.append(_Named(cause, us, turn))

    def settle(self, cause: Cause) -> None:
        """A phase is over: name all of its time, that since the last step by the events in it or by this cause."""
        self.name(self._divided(cause))
        self.since.clear()
        self.in_loop = 0

    def _divided(self, cause: Cause) -> Counter[Cause]:
        left, found = self.open, Counter[Cause]()
        if left < 0:  # steps are longer by their own clock than between two events: never by more than its resolution
            found["goodput"] = left
            return found
        loop = min(max(0, self.in_loop), left) if self.stage == "training" else 0
        found["other"] = loop
        for between, us in self.since.items():
            found[between] += min(us, left - found.total())
        found[cause] += left - found.total()
        return found

    def result(self) -> dict[Cause, int]:
        """Microseconds by cause as far as they are known now."""
        found = Counter(self.named)
        found.update(self._divided(self.unnamed))
        if self.first is not None and (longer := self._compiling()):
            found[self.first.lost or "goodput"] -= longer
            found["compile"] += longer
        return _without_debts(found)

    def _compiling(self) -> int:
        """What the first step takes longer than the median of those that follow."""
        if self.first is None or not self.computing:
            return 0
        median = self.computing[(len(self.computing) - 1) // 2]  # the lower of two
        return max(0, self.first.by_cause["goodput"] - median)

    def add_turn(self, turn: StepTurn) -> None:
        """Add a turn; what is known after it takes no longer for all that came before."""
        if self.first is None:
            self.first = turn
        else:
            insort(self.computing, turn.by_cause["goodput"])
        self.name(turn.by_cause, turn)

    def spans(self, number: int) -> Iterator[TimeSpan]:
        """Its time in order; of a step that was lost, all parts have the cause of that."""
        left, at = self._compiling(), self.begin
        rest = (_Named(cause, us, None) for cause, us in self._divided(self.unnamed).items())
        for cause, us, turn in (*self.order, *rest):
            step = turn.step if turn else None
            if left and cause == "goodput" and turn is self.first:
                yield TimeSpan(number, at, min(left, us), "compile", step)
                at, us, left = at + min(left, us), us - min(left, us), 0
            if us:
                yield TimeSpan(number, at, us, turn.lost or cause if turn else cause, step)
            at += us


def _without_debts(found: Counter[Cause]) -> dict[Cause, int]:
    """The same total without a cause below 0: the largest pays what a microsecond of rounding took from another."""
    debt = sum(us for us in found.values() if us < 0)
    positive = {cause: found[cause] for cause in CAUSES if found[cause] > 0}
    while debt:
        largest = max(positive, key=lambda cause: positive[cause])
        paid = min(-debt, positive[largest])
        positive[largest] -= paid
        debt += paid
    return {cause: us for cause, us in positive.items() if us}
