"""Figure and table of the canaries' exposure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plinth.report.style import ACCENT, MUTED, WIDTH_INCHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Mean exposure, in bits, of a text that the model never saw.
UNSEEN = 1 / math.log(2)


def exposure(stats: Mapping[str, Any]) -> Figure:
    """Mean exposure of each group of repetitions with its interval, beside what chance gives."""
    from matplotlib.figure import Figure

    groups = {**stats["groups"], "out": stats["out"]}
    shown = {name: group["exposure"] for name, group in groups.items() if group["canaries"]}
    fig = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    ax = fig.subplots()
    for place, (name, found) in enumerate(shown.items()):
        colour = MUTED if name == "out" else ACCENT
        reach = [[max(0.0, found["value"] - found["low"])], [max(0.0, found["high"] - found["value"])]]
        ax.errorbar(place, found["value"], yerr=reach, fmt="o", color=colour, capsize=3)
    ax.axhline(UNSEEN, color=MUTED, linestyle=":", label="never seen")
    ax.axhline(math.log2(stats["references"]), color=MUTED, linestyle="--", label="below all references")
    ax.set_xticks(range(len(shown)), ["not planted" if name == "out" else f"{name} times" for name in shown])
    ax.set_ylabel("exposure, bits")
    ax.grid(axis="y")
    ax.legend(fontsize=8)
    return fig


def group_cells(group: Mapping[str, Any]) -> list[Any]:
    """Canaries, copies seen, exposure with interval, median, fitted median; dashes for a group without canaries."""
    if not group["canaries"]:
        return [0, *["-"] * 6]
    found = group["exposure"]
    return [
        group["canaries"], group["seen"], found["value"], found["low"], found["high"], group["median"], group["fitted"],
    ]  # fmt: skip
