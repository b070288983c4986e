"""Figures of a ladder: curves of equal compute, and the surface of the law with its runs.

Minima of curves of equal compute are drawn from the law. Nothing is decided by parabolas through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plinth.records import Frozen
from plinth.report.style import MUTED, SOFT_INK, WARNING, WIDTH_INCHES, tone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
