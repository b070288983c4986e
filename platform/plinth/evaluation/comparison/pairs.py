"""Pairs: the same items measured on two models, whatever the measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.errors import IntegrityError

CLEAN, CONTAMINATED, SUSPECTED = "clean", "contaminated", "suspected"
#: Items whose status speaks against them.
SEEN = (CONTAMINATED, SUSPECTED)

#: A row is an item. `slices` are labels such as `bucket web`; `weight` is what a ratio of sums divides by; `status` is
#: empty where nobody looked for the item in training text; `source` is what people find it by.
ROWS = pa.schema(
    [
        pa.field("item", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("slices", pa.list_(pa.string()), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("a", pa.float64(), nullable=False),
        pa.field("b", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Pairs:
    """One measure on both models.

    Args:
        kind: what was measured: `slices`, `protected`, `probes`, `tasks`.
        measure: its name within the kind.
        rows: of `ROWS`, sorted by item.
        fewer_is_better: as of bits.
        ratio: values are sums over `weight`, as bits over bytes; else values are averaged.
        only_a, only_b: items that the other model has no value for; they are in no difference.
    """

    kind: str
    measure: str
    rows: pa.Table
    fewer_is_better: bool
    ratio: bool
    only_a: int = 0
    only_b: int = 0

    def column(self, name: str) -> NDArray[np.float64]:
        """Values of a column of numbers, [N]."""
        found: NDArray[np.float64] = self.rows[name].to_numpy()
        return found

    def where(self, kept: NDArray[np.bool_]) -> Pairs:
        """The same of some rows."""
        return Pairs(self.kind, self.measure, self.rows.filter(pa.array(kept)), self.fewer_is_better, self.ratio)


def align(
    kind: str,
    measure: str,
    a: Mapping[str, Mapping[str, Any]],
    b: Mapping[str, Mapping[str, Any]],
    *,
    fewer_is_better: bool,
    ratio: bool,
) -> Pairs:
    """Rows of both models by item, as pairs. A row has `value`, and may have all other columns of `ROWS`.

    Raises:
        IntegrityError: an item differs in weight or cluster: it is not the same text.
    """
    shared = sorted(set(a) & set(b))
    rows = [_pair(measure, item, a[item], b[item]) for item in shared]
    table = pa.Table.from_pylist(rows, schema=ROWS)
    return Pairs(kind, measure, table, fewer_is_better, ratio, len(a) - len(shared), len(b) - len(shared))


def _pair(measure: str, item: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    same = ("weight", "cluster", "text")
    if any(a.get(name) != b.get(name) for name in same):
        raise IntegrityError(
            f"{measure}: the two models were measured on other text",
            found=f"item {item}: {[a.get(name) for name in same]} and {[b.get(name) for name in same]}",
            expected="the same items, from the same corpus and with the same bounds",
            remedy="compare by `plinth compare`, which measures both alike",
        )
    return {
        "item": item,
        "cluster": a.get("cluster", item),
        "slices": list(a.get("slices", ())),
        "status": a.get("status", ""),
        "source": a.get("source", ""),
        "weight": float(a.get("weight", 1.0)),
        "a": float(a["value"]),
        "b": float(b["value"]),
    }


def largest_slices(pairs: Pairs, most: int) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Rows of each slice, the slices of an axis by weight; and how many slices were left out.

    The axis is the first word of a label. A slice of all rows is the whole, and one of the same rows as another says
    nothing more: both are left out without a count.
    """
    members: dict[str, list[int]] = {}
    for row, labels in enumerate(pairs.rows["slices"].to_pylist()):
        for label in labels:
            members.setdefault(label, []).append(row)
    weight, found, known, left_out = pairs.column("weight"), dict[str, NDArray[np.int64]](), set[tuple[int, ...]](), 0
    axes: dict[str, list[str]] = {}
    for label in sorted(members):
        axes.setdefault(label.partition(" ")[0], []).append(label)
    for labels in axes.values():
        own = sorted(labels, key=lambda label: (-float(weight[members[label]].sum()), label))
        for label in sorted(own[:most]):
            rows = tuple(members[label])
            if len(rows) < pairs.rows.num_rows and rows not in known:
                known.add(rows)
                found[label] = np.array(rows)
        left_out += max(0, len(own) - most)
    return found, left_out
