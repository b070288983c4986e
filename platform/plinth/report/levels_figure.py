"""The figure of service levels: how much of each error budget is spent, and the good share of every day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from plinth.report.style import ACCENT, FAINT, SOFT_INK, WARNING, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Bars end here, so that a budget spent ten times over leaves the others readable; the number stands beside the bar.
MOST = 2.0


class LevelRow(NamedTuple):
    """One indicator.

    Args:
        spent: share of its error budget; None: nothing was measured.
        days: good share of each day, oldest first; None: nothing was measured.
    """

    indicator: str
    target: float
    spent: float | None
    days: Sequence[float | None]


def figure(rows: Sequence[LevelRow]) -> Figure:
    """Left, budgets: the dashed line is a budget that is spent. Right, days: a square below the target is coloured."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 0.28 * len(rows) + 0.9), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True, width_ratios=(1, 1.3))
    for place, row in enumerate(rows):
        if row.spent is None:
            left.text(0.02, place, "nothing measured", va="center", fontsize=8, color=SOFT_INK)
        else:
            left.barh(place, min(row.spent, MOST), height=0.55, color=WARNING if row.spent >= 1 else ACCENT)
            left.text(min(row.spent, MOST) + 0.04, place, f"{row.spent:.0%}", va="center", fontsize=8)
        for day, share in enumerate(row.days):
            if share is not None:
                bad = share < row.target
                right.plot(day, place, "s", markersize=5, color=WARNING if bad else ACCENT, alpha=1 if bad else 0.45)
    left.axvline(1, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)), zorder=0)
    left.set_xlim(0, MOST + 0.5)
    left.set_xticks([0, 1, 2], ["0%", "spent", "200%"])
    left.set_yticks(range(len(rows)), [row.indicator for row in rows])
    left.invert_yaxis()
    left.set_xlabel("error budget")
    days = max((len(row.days) for row in rows), default=0)
    right.set_xlim(-0.8, days - 0.2)
    right.set_xticks([0, max(0, days - 1)], [f"{days - 1} days ago", "now"] if days > 1 else ["", "now"])
    right.set_xlabel("days; orange: below the objective")
    for axes in (left, right):
        axes.tick_params(length=0)
    return fig
