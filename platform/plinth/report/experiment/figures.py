"""Figures of an experiment: effects of its arms with intervals, and the curves of its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plinth.records import Frozen
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, WIDTH_INCHES, tone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"arm": ACCENT, "base": WARNING, "": MUTED}
LONGEST = 30


class EffectRow(Frozen):
    """A row of a panel: an arm's difference from the base; without numbers it was not measured. `better` is who is."""

    panel: str
    name: str
    better: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None


class GainRow(Frozen):
    """A use of a source: what it gains, with its interval; `better` as of `EffectRow`."""

    name: str
    value: float
    low: float
    high: float
    better: str = ""


class RunCurve(Frozen):
    """A measure of one run by optimizer step; runs of one arm have one colour."""

    panel: str
    arm: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def forest(rows: Sequence[EffectRow], measure: str, fewer_is_better: bool) -> Figure:
    """A panel a size and a row an arm: blue where the arm is better, orange where the base is, grey where neither."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(row.panel for row in rows))
    own = [[row for row in rows if row.panel == panel] for panel in panels]
    heights = [len(one) + 1.2 for one in own]
    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * sum(heights) + 0.6), layout="constrained")
    axes = fig.subplots(len(panels), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax, panel, found in zip(axes, panels, own, strict=True):
        _effects(ax, found)
        ax.set_title(panel, loc="left", fontsize=9.5, color=SOFT_INK)
    side = "left" if fewer_is_better else "right"
    axes[-1].set_xlabel(f"{measure}, arm - base: {side} of 0 the arm is better", fontsize=8.5)
    return fig


def _effects(ax: Axes, rows: Sequence[EffectRow]) -> None:
    ax.axvline(0, color=FAINT, linewidth=1.2)
    for at, row in enumerate(rows):
        colour = COLOURS[row.better]
        if row.value is None or row.low is None or row.high is None:
            ax.text(0, at, " not measured", fontsize=8, va="center", color=SOFT_INK)
            continue
        ax.plot([row.low, row.high], [at, at], color=colour, alpha=0.4, linewidth=4, solid_capstyle="butt")
        ax.plot([row.value], [at], "o", color=colour, markersize=5)
        ax.text(1.01, at, f"{row.value:+.3g}", transform=ax.get_yaxis_transform(), va="center", fontsize=8)
    ax.set_yticks(range(len(rows)), [_short(row.name) for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def gains(rows: Sequence[GainRow], least: float) -> Figure:
    """A row a use: blue where it gains more than the least gain, orange where it cannot, grey where none is known."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * (len(rows) + 1.2) + 0.6), layout="constrained")
    ax = fig.subplots()
    _effects(ax, [EffectRow(panel="", **row.model_dump()) for row in rows])
    if least:
        ax.axvline(least, color=WARNING, linewidth=1.2, linestyle="--")
    mark = f"; dashed: the least gain, {least:g}" if least else ""
    ax.set_xlabel(f"bits per byte gained: right of 0 the source helps{mark}", fontsize=8.5)
    return fig


def curves(runs: Sequence[RunCurve], arms: Sequence[str], measure: str) -> Figure:
    """A panel a size: a thin line a run, in the colour of its arm; what is no number leaves a gap."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(run.panel for run in runs))
    fig = Figure(figsize=(WIDTH_INCHES, 2.5 * len(panels) + 0.4), layout="constrained")
    axes = fig.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, panel in zip(axes, panels, strict=True):
        named = set[str]()
        for run in (one for one in runs if one.panel == panel):
            label = None if run.arm in named else _short(run.arm)
            named.add(run.arm)
            values = [value if math.isfinite(value) else math.nan for value in run.values]
            mark = "o" if len(values) == 1 else "none"
            ax.plot(run.steps, values, marker=mark, color=tone(arms.index(run.arm)), linewidth=0.9, label=label)
        ax.set_title(panel, loc="left", fontsize=9.5, color=SOFT_INK, pad=22)
        ax.set_ylabel(measure)
        ax.grid(axis="y")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, borderaxespad=0.2, handlelength=0.9)
    axes[-1].set_xlabel("optimizer step")
    return fig


def _short(name: str) -> str:
    """A name that leaves room; the tables have it whole. A dollar would begin a formula."""
    cut = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return cut.replace("$", r"\$")


def foretold(points: Sequence[tuple[float, float]], measure: str) -> Figure:
    """What a surrogate foretold of each run without having seen it, across; what the run came to, up."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, WIDTH_INCHES / 2.6), layout="constrained")
    ax = fig.subplots()
    both = [value for point in points for value in point]
    ends = (min(both), max(both))
    ax.plot(ends, ends, color=FAINT, linewidth=1.2)
    ax.scatter([across for across, _ in points], [up for _, up in points], s=14, color=ACCENT)
    ax.set_xlabel(f"{measure}, foretold without the run", fontsize=8.5)
    ax.set_ylabel("measured", fontsize=8.5)
    return fig
