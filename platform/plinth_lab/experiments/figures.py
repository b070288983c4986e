"""Figures of an experiment: effects of its arms with intervals, and curves of its runs; of a ladder, curves of equal
compute, and the surface of the law with its runs.

Minima of curves of equal compute are drawn from the law; no parabola through them decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

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


CURVES = 5
#: Either side of the runs, in multiples.
MARGIN = 1.6


class LadderPoint(Frozen):
    """A run of a ladder: parameters, tokens, loss, and whether the law had to foretell it."""

    params: float
    tokens: float
    loss: float
    held_out: bool = False


class LawCurve(Frozen):
    """E + A / N^alpha + B / D^beta."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta)

    def best_params(self, flops: np.ndarray) -> np.ndarray:
        """N* of 6 N D FLOPs."""
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return np.asarray(ratio * (flops / 6) ** (self.beta / (self.alpha + self.beta)))


def isoflop(points: Sequence[LadderPoint], law: LawCurve, measure: str) -> Figure:
    """Loss by parameters at equal compute, under the law; runs are drawn in the colour of the nearest curve."""
    from matplotlib.figure import Figure

    flops = np.array([6 * one.params * one.tokens for one in points])
    levels = np.geomspace(flops.min(), flops.max(), CURVES)
    params = np.array([one.params for one in points])
    across = np.geomspace(params.min() / MARGIN, params.max() * MARGIN, 200)
    fig = Figure(figsize=(WIDTH_INCHES, 3.6), layout="constrained")
    ax = fig.subplots()
    for at, level in enumerate(levels):
        ax.plot(across, law.loss(across, level / (6 * across)), color=tone(at), linewidth=1, label=f"{level:.2g}")
        best = law.best_params(level)
        if across[0] <= best <= across[-1]:
            ax.plot([best], [law.loss(best, level / (6 * best))], marker="|", markersize=11, color=tone(at))
    nearest = np.abs(np.log(flops)[:, None] - np.log(levels)).argmin(axis=1)
    for one, at in zip(points, nearest.tolist(), strict=True):
        ax.plot([one.params], [one.loss], "D" if one.held_out else "o", color=tone(at), markersize=5)
    losses = np.array([one.loss for one in points])
    room = 0.15 * (losses.max() - losses.min())
    ax.set_ylim(losses.min() - room, losses.max() + room)
    ax.set_xscale("log")
    ax.set_xlabel("parameters (diamonds: the size that was held out; strokes: the law's optimum)", fontsize=8.5)
    ax.set_ylabel(measure)
    ax.grid(axis="y")
    ax.legend(title="FLOPs", loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, title_fontsize=8)
    return fig


def surface(points: Sequence[LadderPoint], law: LawCurve, measure: str) -> Figure:
    """The law over parameters and tokens as contours, its runs, and the optimum of every budget."""
    from matplotlib.figure import Figure

    params, tokens = (np.array([getattr(one, name) for one in points]) for name in ("params", "tokens"))
    x = np.geomspace(params.min() / MARGIN, params.max() * MARGIN, 80)
    y = np.geomspace(tokens.min() / MARGIN, tokens.max() * MARGIN, 80)
    fig = Figure(figsize=(WIDTH_INCHES, 3.9), layout="constrained")
    ax = fig.subplots()
    found = ax.contour(x, y, law.loss(x[None, :], y[:, None]), levels=12, cmap="viridis", linewidths=0.9)
    ax.clabel(found, fontsize=7, fmt="%.2f")
    flops = np.geomspace(6 * x[0] * y[0], 6 * x[-1] * y[-1], 100)
    best = law.best_params(flops)
    inside = (best >= x[0]) & (best <= x[-1]) & (flops / (6 * best) >= y[0]) & (flops / (6 * best) <= y[-1])
    ax.plot(best[inside], (flops / (6 * best))[inside], "--", color=MUTED, linewidth=1, label="optimum of a budget")
    for held, mark, colour, label in ((False, "o", MUTED, "fitted"), (True, "D", WARNING, "held out")):
        own = np.array([one.held_out is held for one in points])
        ax.plot(params[own], tokens[own], mark, color=colour, markersize=4.5, label=label, linestyle="none")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("parameters")
    ax.set_ylabel("tokens")
    ax.set_title(measure, loc="left", fontsize=9.5, color=SOFT_INK)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return fig
