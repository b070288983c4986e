"""Good and all seconds of an interval, what of them lies in a window, and error budgets over a window.

A tally is uniform over its interval: what lies in a window is its share by time, in whole microseconds. So a long
attempt counts in every window with the seconds that lie there, and a window of five minutes is as good as one of weeks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from plinth.errors import CheckFailedError, MissingError
from plinth.records import Frozen

#: Pieces shorter than so many microseconds together are one tally.
GRAIN_US = 10_000_000


class Tally(NamedTuple):
    """Microseconds of one indicator, times ranks, devices, suites: whatever its unit is.

    Args:
        subject: the run, asset or bucket.
        begin, end: Unix seconds.
        measured, weight: what the measure of the indicator is made of: the ratio of their sums; without weights, the
            largest `measured`.
    """

    indicator: str
    subject: str
    begin: float
    end: float
    good_us: int
    total_us: int
    measured: float | None = None
    weight: float | None = None


class TallyPart(NamedTuple):
    """Part of an attempt: microseconds of the clock, of which some are good; see `Tally`."""

    begin_us: int
    us: int
    good_us: int
    measured: float = 0.0
    weight: float | None = None


class ErrorBudget(Frozen):
    """One indicator over a window.

    Attributes:
        unit: of its seconds.
        good_s, total_s: seconds.
        target: share that has to be good.
        measure: the number behind the seconds, in `measured_in`; None where there is none.
        covered_s: seconds of wall-clock time that the tallies cover, added up over attempts.
        minimum_s: covered seconds below which the budget is not judged.
    """

    indicator: str
    unit: str
    target: float
    good_s: float
    total_s: float
    measure: float | None = None
    measured_in: str = ""
    covered_s: float = 0.0
    minimum_s: float = 0.0

    @property
    def value(self) -> float | None:
        """Share that was good; None where nothing was measured."""
        return self.good_s / self.total_s if self.total_s else None

    @property
    def spent(self) -> float | None:
        """Bad seconds as a share of those that the objective allows; 1 and above: spent. None: nothing was measured."""
        return (self.total_s - self.good_s) / ((1 - self.target) * self.total_s) if self.total_s else None

    @property
    def is_judged(self) -> bool:
        """True if something was measured, and enough of it."""
        return bool(self.total_s) and self.covered_s >= self.minimum_s

    @property
    def is_spent(self) -> bool:
        """True if no bad second is left; seconds that are no number leave none. Too few seconds spend nothing."""
        return self.is_judged and not self.good_s > self.target * self.total_s

    @property
    def words(self) -> str:
        """The indicator with its value, its objective and the share of the error budget that is spent."""
        if self.value is None or self.spent is None:
            return f"{self.indicator} not measured"
        seconds = f"{self.value:.2%} of {self.total_s:,.0f} {self.unit}"
        return f"{self.indicator} {seconds}, objective {self.target:.2%} ({self.state})"

    @property
    def state(self) -> str:
        """The share of the error budget that is spent, or why it is not judged."""
        if self.total_s and not self.is_judged:
            return f"too short to judge: {self.covered_s:,.0f} s, minimum {self.minimum_s:,.0f} s"
        return "not measured" if self.spent is None else f"{self.spent:.0%} spent"


def joined(indicator: str, subject: str, ranks: int, pieces: Iterable[TallyPart]) -> Iterator[Tally]:
    """Tallies of consecutive pieces; short ones are joined, long ones stay as they are."""
    held: list[TallyPart] = []
    us = 0
    for piece in pieces:
        if us > 0 and us + piece.us > GRAIN_US and piece.us >= 0:
            yield _of(indicator, subject, ranks, held, us)
            held, us = [], 0
        held.append(piece)
        us += piece.us
    if held:
        yield _of(indicator, subject, ranks, held, us)


def _of(indicator: str, subject: str, ranks: int, held: Sequence[TallyPart], us: int) -> Tally:
    begin, good = held[0].begin_us, sum(one.good_us for one in held)
    made = Tally(indicator, subject, begin / 1e6, (begin + us) / 1e6, good * ranks, us * ranks)
    if held[0].weight is None:
        return made
    return made._replace(measured=sum(one.measured for one in held), weight=sum(one.weight or 0.0 for one in held))


def up_to(indicator: str, subject: str, begin: float, end: float, bound_s: float, times: int = 1) -> Iterator[Tally]:
    """An interval that is good up to a bound, and bad beyond it.

    Args:
        times: ranks.
    """
    turn = min(end, begin + bound_s)
    yield whole(indicator, subject, begin, turn, True, times)
    if end > turn:
        yield whole(indicator, subject, turn, end, False, times)


def whole(indicator: str, subject: str, begin: float, end: float, good: bool, times: int = 1) -> Tally:
    """An interval that is good or bad."""
    us = (round(end * 1e6) - round(begin * 1e6)) * times
    return Tally(indicator, subject, begin, end, us if good else 0, us)


def clipped(one: Tally, begin: float, end: float) -> Tally | None:
    """What of a tally lies in a window, which its begin is not part of; None where nothing does."""
    if one.begin >= begin and one.end <= end:
        return one
    first, last = max(one.begin, begin), min(one.end, end)
    if last <= first:
        return None
    before, after = ((time - one.begin) / (one.end - one.begin) for time in (first, last))
    share = after - before
    return one._replace(
        begin=first,
        end=last,
        good_us=round(one.good_us * after) - round(one.good_us * before),  # windows side by side add up exactly
        total_us=round(one.total_us * after) - round(one.total_us * before),
        measured=one.measured if one.weight is None or one.measured is None else one.measured * share,
        weight=None if one.weight is None else one.weight * share,
    )


def value(tallies: Iterable[Tally], indicator: str, begin: float, end: float) -> float | None:
    """Share of an indicator's seconds between two times (Unix seconds) that was good; None: there were none."""
    found = [cut for one in tallies if one.indicator == indicator and (cut := clipped(one, begin, end))]
    total = sum(one.total_us for one in found)
    return sum(one.good_us for one in found) / total if total else None


def refuse_spent(found: Sequence[ErrorBudget]) -> None:
    """Pass only where something was measured and every error budget has some left.

    Raises:
        MissingError: no run was measured long enough, or, where none is asked for, nothing: nothing says that all is
            well.
        CheckFailedError: budgets that are spent, by name.
    """
    runs = [one for one in found if one.unit == "rank-s"] or found
    if not any(one.is_judged for one in runs):
        short = [one.words for one in runs if one.total_s]
        raise MissingError(
            f"no {'longer ' if short else ''}run in the window: no error budget can be judged",
            found="; ".join(short) or None,
            remedy="train, or widen window_days in objectives.yaml",
        )
    spent = [one for one in found if one.is_spent]
    if spent:
        raise CheckFailedError(
            f"error budget spent: {', '.join(one.indicator for one in spent)}",
            found="; ".join(f"{one.indicator} {one.value:.2%} of {one.total_s:,.0f} {one.unit}" for one in spent),
            expected="; ".join(f"{one.indicator} above {one.target:.2%}" for one in spent),
            remedy="`plinth run goodput RUN` names the causes; promote nothing until they are mended (docs/slis.md)",
        )
