"""The mixture along a run: what each stretch gives, and where the recipe wanted it. Drawn inside `render`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from plinth.report.style import INK, WIDTH_INCHES, colours, count, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(rows: Sequence[Mapping[str, Any]], sequence_tokens: int) -> Figure:
    """Stacked realised shares over tokens, one step per stretch; dotted lines are the edges that the recipe asks for.

    Args:
        rows: first, stop (sequences), phase, and by stream `asked` and `realised`, as `tokens.realised.course` gives.
    """
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    ax = fig.subplots()
    names = sorted(rows[0]["realised"])
    palette = colours(names)
    edges = [row["first"] * sequence_tokens for row in rows] + [rows[-1]["stop"] * sequence_tokens]
    before = [0.0] * len(rows)
    for name in names:
        top = [low + row["realised"][name] for low, row in zip(before, rows, strict=True)]
        ax.stairs(top, edges, baseline=before, fill=True, color=palette[name], label=name)
        before = top
    for row in rows:
        middle = (row["first"] + row["stop"]) / 2 * sequence_tokens
        for line in list(accumulate(row["asked"][name] for name in names))[:-1]:
            ax.plot(middle, line, marker="_", markersize=4, color=INK, markeredgewidth=0.8)
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    for phase in phases[1:]:
        first = next(row["first"] for row in rows if row["phase"] == phase)
        ax.axvline(first * sequence_tokens, color=INK, linewidth=0.8)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: count(value))
    ax.yaxis.set_major_formatter(lambda value, _: percent(value))
    ax.set_xlabel("tokens trained; marks are what the recipe asks for")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(names), 4), fontsize=8)
    return fig
