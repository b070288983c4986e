"""Figures of an evaluation: bits per byte by slice with intervals, and loss by position in the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plinth.evaluation.slices.totals import in_order
from plinth.report.style import ACCENT, FAINT, MUTED, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Slices of an axis that are drawn, those with most text; tables have all.
MOST_DRAWN = 12


def by_slice(axes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """A panel for each axis: a dot a slice with its 95% interval, on one scale; smaller is better."""
    from matplotlib.figure import Figure

    drawn = {axis: _shown(axis, rows) for axis, rows in axes.items() if rows}
    heights = [len(names) + 1.0 for names in drawn.values()]
    fig = Figure(figsize=(WIDTH_INCHES, 0.27 * sum(heights) + 0.6), layout="constrained")
    panels = fig.subplots(len(drawn), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax, (axis, names) in zip(panels, drawn.items(), strict=True):
        for at, name in enumerate(names):
            row = axes[axis][name]
            ax.plot([row["low"], row["high"]], [at, at], color=ACCENT, alpha=0.35, linewidth=4, solid_capstyle="butt")
            inside = "none" if row["low"] == row["high"] else ACCENT  # hollow: nothing is known of the spread
            ax.plot([row["model"]], [at], "o", color=ACCENT, markerfacecolor=inside, markersize=5)
        ax.set_yticks(range(len(names)), [name if len(name) <= 32 else f"{name[:31]}…" for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set_title(axis, loc="left", fontsize=9.5, color=MUTED)
        _quiet(ax)
    panels[-1].set_xlabel("bits per byte of held-out text, with 95% intervals (smaller is better)")
    return fig


def by_position(positions: Mapping[str, Any]) -> Figure:
    """Bits per token by position, all documents and those that fill the context; the context's end is marked."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    ax = fig.subplots()
    series = (("all", MUTED, "all documents"), ("long", ACCENT, "documents that fill the context"))
    for name, colour, label in series:
        rows: Sequence[Mapping[str, Any]] = positions[name]
        if rows:
            at = [(max(row["start"], 1) * row["end"]) ** 0.5 for row in rows]
            low, high = ([row[name] for row in rows] for name in ("low", "high"))
            ax.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(at, [row["value"] for row in rows], "o-", color=colour, markersize=3.5, linewidth=1.5, label=label)
    context = positions["context_tokens"]
    ax.axvline(context, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.text(context, 0.02, "context ", transform=ax.get_xaxis_transform(), fontsize=8, ha="right")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlabel("position in the document, tokens")
    ax.set_ylabel("bits per token")
    if ax.lines[:-1]:
        ax.legend(loc="upper right", fontsize=8.5)
    _quiet(ax)
    return fig


def _shown(axis: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Slices with most text, in the order of their axis."""
    most = sorted(rows, key=lambda name: (-rows[name]["bytes"], name))[:MOST_DRAWN]
    return [name for name in in_order(axis, rows) if name in most]


def _quiet(ax: Axes) -> None:
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
