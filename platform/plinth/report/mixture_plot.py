"""The mixture along a run: realised and planned shares of every stretch. Drawn inside `render`.

A bucket that is cut by axes has up to a thousand streams; a legend of as many lines is unreadable: `gathered` keeps the
largest by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from plinth.report.style import INK, WIDTH_INCHES, colours, count, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Names in a legend, `REST` among them: each has a colour of its own (`style.tone`).
MOST = 12
REST = "others"


def mixture_shares(rows: Sequence[Mapping[str, Any]], sequence_tokens: int) -> Figure:
    """Stacked realised shares over tokens, one step per stretch; marks are the edges that the recipe plans.

    Args:
        rows: first, stop (sequences), phase, and by stream `asked` and `realised`: `mixture_audit.shares_over_run`.
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
    ax.set_xlabel("tokens trained; marks are the planned shares")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(names), 4), fontsize=8)
    return fig


def gathered(rows: Sequence[Mapping[str, Any]], most: int = MOST) -> list[Mapping[str, Any]]:
    """Rows of `mixture_audit.shares_over_run`, whose `realised` names at most `most`; shares still add up.

    The largest are those with the largest shares over all rows; the same in every row.
    """
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update({name: float(share) for name, share in row["realised"].items()})
    if len(totals) <= most:
        return list(rows)
    largest = sorted(totals, key=lambda name: (-totals[name], name))[: most - 1]
    found: list[Mapping[str, Any]] = []
    for row in rows:
        shares = {name: row["realised"].get(name, 0.0) for name in largest}
        rest = sum(share for name, share in row["realised"].items() if name not in shares)
        found.append({**row, "realised": {**shares, REST: rest}})
    return found
