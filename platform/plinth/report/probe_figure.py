"""The figure of probes: bits per byte of right answers and of their controls, with intervals, a line a probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def probe_scores(probes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Left the signal of every probe, what the context is worth; right its accuracy, centred on chance."""
    from matplotlib.figure import Figure

    drawn = {name: row for name, row in probes.items() if row["items"]}
    fig = Figure(figsize=(WIDTH_INCHES, 0.36 * len(drawn) + 1.0), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True)
    _panel(left, drawn, "signal", "bits per byte saved by the context")
    _panel(right, drawn, "accuracy", "accuracy above chance")
    left.set_yticks(range(len(drawn)), [f"{name} ({row['items']})" for name, row in drawn.items()])
    left.invert_yaxis()
    return fig


def _panel(ax: Axes, probes: Mapping[str, Mapping[str, Any]], name: str, label: str) -> None:
    for at, row in enumerate(probes.values()):
        found = row.get(name)
        if found is None:
            ax.text(0, at, " none", va="center", fontsize=8, color=SOFT_INK)
            continue
        colour = ACCENT if found["low"] > 0 else MUTED  # an interval that has 0 in it shows nothing
        ax.plot([found["low"], found["high"]], [at, at], color=colour, alpha=0.35, linewidth=4, solid_capstyle="butt")
        ax.plot([found["value"]], [at], "o", color=colour, markersize=5)
    ax.axvline(0, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.set_xlabel(label)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
