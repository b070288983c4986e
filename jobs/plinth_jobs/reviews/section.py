"""One part of a review as a table with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from plinth.report.period_page import PeriodSection

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
