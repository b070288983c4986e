"""Single items: the largest gains and losses, and those that training text held."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from plinth.evaluation.comparison.pairs import Pairs

MOST = 10
MOST_SEEN = 200


def extremes(pairs: Pairs, most: int = MOST) -> dict[str, list[dict[str, Any]]]:
    """Items that speak most for each model: `a` and `b`, the largest first; by what they add to the difference.

    An item has `item`, `source`, `slices`, `status`, `gain` (in the measure's units: bits or points), `per_weight`
    and both values per weight.
    """
    gain = pairs.column("b") - pairs.column("a") if pairs.fewer_is_better else pairs.column("a") - pairs.column("b")
    order = np.argsort(-gain, kind="stable")
    rows = pairs.rows.take(np.concatenate([order[:most], order[::-1][:most]])).to_pylist()
    chosen = [(row, float(gain[at])) for row, at in zip(rows, [*order[:most], *order[::-1][:most]], strict=True)]
    half = min(most, len(order))
    return {
        "a": [_item(row, value) for row, value in chosen[:half] if value > 0],
        "b": [_item(row, -value) for row, value in chosen[half:] if value < 0],
    }


def seen_items(pairs: Pairs, most: int = MOST_SEEN) -> tuple[list[dict[str, Any]], int]:
    """The first contaminated and suspected items by name, and how many there are."""
    held = pairs.rows.filter(pa.array(pairs.seen()))
    listed = [
        {"kind": pairs.kind, "measure": pairs.measure, "item": row["item"], "status": row["status"],
         "a": row["a"] / row["weight"], "b": row["b"] / row["weight"]}
        for row in held.slice(0, most).to_pylist()
    ]  # fmt: skip
    return listed, held.num_rows


def _item(row: dict[str, Any], gain: float) -> dict[str, Any]:
    named = {name: row[name] for name in ("item", "source", "slices", "status", "weight")}
    per_weight = {side: row[side] / row["weight"] for side in ("a", "b")}
    return named | {"gain": gain} | per_weight
