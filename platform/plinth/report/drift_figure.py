"""The figure of drift: bits per byte of every slice in the reference and in the last look, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plinth.report.style import ACCENT, MUTED, WARNING, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plinth.evaluation.drift.judge import SliceDrift

#: Slices that are drawn: those that drift come first.
MOST = 24


def figure(found: Sequence[SliceDrift]) -> Figure:
    """Reference in grey, the last look in colour: orange where the slice drifts, whenever one looks."""
    from matplotlib.figure import Figure

    rows = list(found[:MOST])
    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * max(1, len(rows)) + 0.9), layout="constrained")
    axes = fig.subplots()
    for place, one in enumerate(rows):
        for value, colour, shift in ((one.reference, MUTED, -0.13), (one.latest, _colour(one), 0.13)):
            if value is not None:
                axes.plot(value[1:], [place + shift] * 2, color=colour, alpha=0.4, linewidth=4)
                axes.plot(value[:1], [place + shift], "o", color=colour, markersize=5)
    axes.set_yticks(range(len(rows)), [f"{one.label} ({one.later:,} later)" for one in rows])
    axes.invert_yaxis()
    axes.set_xlabel("bits per byte: grey, the reference; colour, the last look; orange, drifts")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    return fig


def _colour(one: SliceDrift) -> str:
    return WARNING if one.drifts else ACCENT
