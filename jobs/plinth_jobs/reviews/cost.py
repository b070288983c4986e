"""What the jobs of a period cost, against earlier periods and against their like."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from plinth.compute.context import Context
from plinth.operation.spending import parameters
from plinth.operation.spending.ledger import MICROS, Ledger, Reservation
from plinth.report.period_page import PeriodSection
from plinth_jobs.reviews.period import Period
from plinth_jobs.reviews.section import section

#: Periods before this one that its cost is compared with, and the fewest that say anything.
BEFORE, FEWEST = 8, 3

#: Robust deviations from the median of earlier periods, or of like jobs, from which on a cost is an anomaly.
DEVIATIONS = 4.0


def cost(ctx: Context, span: Period) -> PeriodSection:
    """Spent, against earlier periods; and jobs that cost more a token than their like."""
    place = parameters.ledger_place(ctx.workspace, parameters.load(ctx.workspace))
    if "://" not in place and not Path(place).exists():
        return section("Cost", None, "nothing was submitted", (), ())
    rows = Ledger(place).find(parameters.workspace_name(ctx.workspace))
    spans = [span]
    for _ in range(BEFORE):
        spans.append(spans[-1].before)
    first = min((one.made for one in rows), default=span.end)
    totals = [_spent(rows, one) for one in spans if one.end > first]
    unusual = [*_unusual_total(totals), *_dear_jobs(rows, span)]
    lead = f"{totals[0] if totals else 0:,.2f} spent by jobs that were submitted in this {span.length}."
    verdict = f"{len(unusual)} unusual" if unusual else "as usual"
    return section("Cost", not unusual, verdict, ("what", "cost", "usual", "times"), unusual, lead, numbers=(1, 2, 3))


def _spent(rows: Sequence[Reservation], span: Period) -> float:
    return sum(one.spent or 0 for one in rows if span.has(one.made)) / MICROS


def _unusual_total(totals: Sequence[float]) -> Iterator[tuple[str, ...]]:
    """The newest total, where it is far from those before it."""
    if len(totals) > FEWEST and is_unusual(totals[0], totals[1:]):
        yield _compared("all jobs", totals[0], statistics.median(totals[1:]))


def _dear_jobs(rows: Sequence[Reservation], span: Period) -> Iterator[tuple[str, ...]]:
    """Jobs of this period whose tokens cost far more than those of earlier jobs that trained alike."""
    priced = [(one, one.spent / one.tokens) for one in rows if one.ended and one.spent and one.tokens]
    for one, price in priced:
        if span.has(one.made):
            alike = [other for row, other in priced if row.work == one.work and row.made < one.made]
            if len(alike) >= FEWEST and price > statistics.median(alike) and is_unusual(price, alike):
                usual = statistics.median(alike) * (one.tokens or 0) / MICROS
                yield _compared(one.run, (one.spent or 0) / MICROS, usual)


def is_unusual(value: float, others: Sequence[float]) -> bool:
    """Whether a value is far from others: by robust deviations, and by half of their median at least."""
    median = statistics.median(others)
    deviation = 1.4826 * statistics.median(abs(other - median) for other in others)
    return abs(value - median) > max(DEVIATIONS * deviation, 0.5 * abs(median))


def _compared(what: str, cost: float, usual: float) -> tuple[str, ...]:
    return what, f"{cost:,.2f}", f"{usual:,.2f}", f"{cost / usual:.1f}" if usual else "–"
