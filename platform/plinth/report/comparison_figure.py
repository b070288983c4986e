"""The figure of a comparison: differences with their intervals, one panel a kind and unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plinth.evaluation.comparison.differences import NONE, Difference
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Lines of a panel, the wholes first; tables have all.
MOST_DRAWN = 24
LONGEST = 34
COLOURS = {"a": ACCENT, "b": WARNING, NONE: MUTED}


def figure(lines: Sequence[Difference]) -> Figure:
    """A dot a line with its interval; blue where model A is better, orange where B, grey where neither can be said."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, bool, bool], list[Difference]] = {}
    for line in lines:
        panels.setdefault((line.kind, line.fewer_is_better, "bits" in line.measure), []).append(line)
    drawn = {key: own[:MOST_DRAWN] for key, own in panels.items()}
    heights = [len(own) + 1.6 for own in drawn.values()]
    fig = Figure(figsize=(WIDTH_INCHES, 0.26 * sum(heights) + 0.5), layout="constrained")
    axes = fig.subplots(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    for ax, ((kind, fewer, _), own) in zip(axes, drawn.items(), strict=True):
        _panel(ax, kind, fewer, own)
    return fig


def _panel(ax: Axes, kind: str, fewer: bool, own: Sequence[Difference]) -> None:
    ax.axvline(0, color=FAINT, linewidth=1.2)
    for at, line in enumerate(own):
        gap, colour = line.difference, COLOURS[line.better]
        ax.plot([gap.low, gap.high], [at, at], color=colour, alpha=0.4, linewidth=4, solid_capstyle="butt")
        ax.plot([gap.value], [at], "o", color=colour, markersize=5)
    ax.set_yticks(range(len(own)), [_label(line) for line in own])
    ax.set_ylim(len(own) - 0.4, -0.6)
    ax.set_title(kind, loc="left", fontsize=9.5, color=SOFT_INK)
    ax.set_xlabel("a - b: " + ("left of 0, A is better" if fewer else "right of 0, A is better"), fontsize=8.5)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def _label(line: Difference) -> str:
    text = line.measure if line.slice == "all" else line.slice
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
