"""The page of a week or month: tables that say what failed, what it cost, and whether everything can be proved."""

from __future__ import annotations

from plinth.records import Frozen
from plinth.report.data import Fact
from plinth.report.page import template


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
    return template("period_page.html.j2").render(data=data)
