"""The streams of a mixture as a reader can tell them apart: the largest by name, the others together.

A bucket that is cut by axes has up to a thousand streams; a legend of as many lines says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

#: Names in a legend, `REST` among them: each has a colour of its own (`style.tone`).
MOST = 12
REST = "others"


def gathered(rows: Sequence[Mapping[str, Any]], most: int = MOST) -> list[Mapping[str, Any]]:
    """Rows of `tokens.realised.course`, whose `realised` name at most `most`; shares still add up.

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
