"""The period of a review, its sections, and the page: tables of what failed, what it cost, what can be proved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from plinth.records import Frozen
from plinth.report.data import Fact
from plinth.report.page import template

Length = Literal["week", "month"]


class Period(NamedTuple):
    """Days that are looked at together. `begin` and `end` are Unix seconds; `end` does not belong to it."""

    length: Length
    begin: float
    end: float

    @property
    def name(self) -> str:
        """`2026-W48` or `2026-11`."""
        begin = datetime.fromtimestamp(self.begin, UTC)
        year, week, _ = begin.isocalendar()
        return f"{year}-W{week:02d}" if self.length == "week" else f"{begin:%Y-%m}"

    def has(self, at: float) -> bool:
        """Whether a time in Unix seconds is in it."""
        return self.begin <= at < self.end

    @property
    def before(self) -> Period:
        """The one before it."""
        return period(self.length, self.begin)


def period(length: Length, until: float) -> Period:
    """The last whole week (Monday to Sunday) or calendar month that had ended at a time, in UTC."""
    day = datetime.fromtimestamp(until, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if length == "week":
        end = day - timedelta(days=day.weekday())
        begin = end - timedelta(days=7)
    else:
        end = day.replace(day=1)
        begin = (end - timedelta(days=1)).replace(day=1)
    return Period(length, begin.timestamp(), end.timestamp())


class PeriodSection(Frozen):
    """One table with a verdict.

    Attributes:
        good: whether nothing in it needs a person; None: there was nothing to judge.
        verdict: in a word or two.
        lead: what the rows are.
        numbers: indices of columns that hold numbers.
        more: rows that are left out.
    """

    title: str
    good: bool | None
    verdict: str
    lead: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, ...] = ()
    more: int = 0


class PeriodData(Frozen):
    """Contents of the page."""

    title: str
    subtitle: str
    facts: tuple[Fact, ...] = ()
    sections: tuple[PeriodSection, ...] = ()


def page(data: PeriodData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    return template("page.html.j2", __package__).render(data=data)


#: Rows of a table; the rest is counted.
ROWS = 50


def section(
    title: str,
    good: bool | None,
    verdict: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    lead: str = "",
    numbers: tuple[int, ...] = (),
) -> PeriodSection:
    """The section of these rows, of which the first are shown."""
    return PeriodSection(
        title=title,
        good=good,
        verdict=verdict,
        lead=lead,
        columns=columns,
        rows=tuple(rows[:ROWS]),
        numbers=numbers,
        more=max(0, len(rows) - ROWS),
    )


def when(at: float) -> str:
    """A time in Unix seconds to the minute, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def first_line(said: object) -> str:
    """The first line of a reason."""
    lines = str(said or "").strip().splitlines()
    return lines[0] if lines else "no reason was given"
