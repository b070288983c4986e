"""Figures of the page of an evaluation: points with intervals, curves with their noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plinth.report.evaluation.data import CurveGroup, MeasureGroup
from plinth.report.style import ACCENT, MUTED, WIDTH_INCHES, tone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW_INCHES, AXIS_INCHES = 0.27, 0.85
LONGEST_NAME = 28


def intervals(group: MeasureGroup) -> Figure:
    """A row a measure: its point and interval, and its reference as an open diamond; grey where it does not decide."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * len(group.measures) + AXIS_INCHES), layout="constrained")
    ax = fig.subplots()
    for row, one in enumerate(group.measures):
        colour = ACCENT if one.decides else MUTED
        if math.isfinite(one.low) and math.isfinite(one.high):
            ax.plot([one.low, one.high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
        ax.plot(one.value, row, "o", color=colour, markersize=5)
        if one.reference is not None:
            ax.plot(one.reference, row, "D", markersize=5, markerfacecolor="none", markeredgecolor=MUTED)
        ax.text(1.01, row, f"{one.value:.3g}", transform=ax.get_yaxis_transform(), va="center", fontsize=8)
    ax.set_yticks(range(len(group.measures)), [_short(one.name) for one in group.measures])
    ax.set_ylim(len(group.measures) - 0.4, -0.6)
    reference = f"; open diamond: {group.reference_name}" if group.reference_name else ""
    ax.set_xlabel(f"{group.unit} ({group.better} is better{reference})", fontsize=8.5)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
    return fig


def curves(group: CurveGroup) -> Figure:
    """Measures over the steps of a run, each with a band of one standard deviation of its noise."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 2.8), layout="constrained")
    ax = fig.subplots()
    for number, one in enumerate(group.curves):
        ax.plot(one.steps, one.values, color=tone(number), linewidth=1.5, label=one.name)
        if one.noise is not None:
            low, high = ([value + sign * one.noise for value in one.values] for sign in (-1, 1))
            ax.fill_between(one.steps, low, high, color=tone(number), alpha=0.18, linewidth=0)
    ax.set_xlabel("optimizer step")
    ax.set_ylabel(group.unit)
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, borderaxespad=0.2, handlelength=0.9)
    return fig


def _short(name: str) -> str:
    """A name that leaves room for its measure; the table has it whole."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
