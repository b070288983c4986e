"""The figure of a learned gate: shares of bad and good text that it removes, by slice, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plinth.report.style import ACCENT, FAINT, SOFT_INK, WARNING, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def gate_rates(stats: Mapping[str, Any]) -> Figure:
    """Recall and false positives of every slice with their 95% intervals, from the statistics of `slices/{gate}`.

    Bad text removed is better further right, good text removed further left; dashed lines are the recipe's bounds.
    """
    from matplotlib.figure import Figure

    slices, bounds = stats["slices"], stats["bounds"]
    names = list(slices)
    fig = Figure(figsize=(WIDTH_INCHES, 0.34 * len(names) + 1.0), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True)
    _panel(left, slices, "recall", ACCENT, bounds["min_recall"])
    _panel(right, slices, "false_positive", WARNING, bounds["max_false_positive"])
    left.set_xlim(0, 1.02)
    right.set_xlim(0, max([0.1, *(row["false_positive_high"] or 0.0 for row in slices.values())]) * 1.05)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("share of bad text removed")
    right.set_xlabel("share of good text removed")
    return fig


def _panel(ax: Axes, slices: Mapping[str, Mapping[str, Any]], name: str, colour: str, bound: float) -> None:
    for row, values in enumerate(slices.values()):
        share = values[name]
        if share is None:
            ax.text(0.01, row, "none", va="center", fontsize=8, color=SOFT_INK)
            continue
        ax.plot([values[f"{name}_low"], values[f"{name}_high"]], [row, row], color=colour, alpha=0.35, linewidth=4)
        ax.plot([share], [row], "o", color=colour, markersize=5, clip_on=False)
    if 0 < bound < 1:
        ax.axvline(bound, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
