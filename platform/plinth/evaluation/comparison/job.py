"""The asset `comparison`: differences between two models, paired by item. For equal inputs the step cache returns an
equal manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import MissingError, StageError
from plinth.evaluation.comparison.differences import Difference, corrected, of_measure, omitted_slices, reasons
from plinth.evaluation.comparison.models import ancestry, changes, cut_alike
from plinth.evaluation.comparison.pairs import ROWS, Pairs, read, reader
from plinth.evaluation.slices.job import ASSET as EVALUATION
from plinth.evaluation.slices.tables import TOKENS, SpanDifference, places
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import PartWriter
from plinth.storage.store import Store

# The asset `comparison`: computed once for the same inputs.
#
# Part `pairs.parquet` has one row per item and measure. Stats: `models` (digest, asset, step and tokens of both),
# `lines` (`differences.Difference`), `left_out` (small slices without a line), `unpaired` (items with a value for one
# model only), `measured_alone` (assets that measured only one), `extremes` by measure, `seen` (contaminated and
# suspected items, at most 200; `seen_items` counts all), `changes`, `reasons`, `spans` (of held-out text, in bytes of
# the document), `seed`. Models are named a and b; there are no paths or names.

ASSET = "comparison"
VERSION = "6"
FILE = "pairs.parquet"
SEED = 0

_COLUMNS = pa.schema([pa.field("kind", pa.string()), pa.field("measure", pa.string()), *ROWS])


class MeasuredModel(NamedTuple):
    """A checkpoint with the manifests of its measurements, by asset name."""

    checkpoint: Manifest
    measured: Mapping[str, Manifest]


def run(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> Manifest:
    """Compare two models that have the same measurements.

    Raises:
        StageError: the models have no measurement in common.
        IntegrityError: the models were measured on different items.
    """
    step = Step(name=ASSET, version=VERSION, params={"seed": SEED}, libraries=fingerprint.libraries("numpy", "scipy"))
    inputs = {"a/checkpoint": a.checkpoint, "b/checkpoint": b.checkpoint}
    for asset in sorted(set(a.measured) & set(b.measured)):
        if reader(asset) is not None:
            inputs |= {f"a/{asset}": a.measured[asset], f"b/{asset}": b.measured[asset]}
    named = [f"{name} {made.digest}" for name, made in inputs.items()]
    parts = context.cached(ctx, step, named, lambda: [_compared(ctx, a, b)])
    return context.manifest(ASSET, step, inputs, parts, parts[0].stats)


def _compared(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> Part:
    found = _Findings()
    with PartWriter(ctx.store, FILE, _COLUMNS) as part:
        for pairs in read(ctx.store, a.measured, b.measured):
            found.add(pairs)
            for batch in _table(pairs).to_batches():
                part.write(batch)
        if not found.lines:
            raise StageError(
                "the models have no measurement in common",
                found=f"{sorted(a.measured)} and {sorted(b.measured)}",
                expected="at least one evaluation of both models on the same items",
            )
        alone = {"a": _alone(a, b), "b": _alone(b, a)}
        stats = {"measured_alone": alone} | found.stats() | _of_models(ctx, a.checkpoint, b.checkpoint, found)
        return part.finish(stats | {"spans": [one.facts() for one in _spans(ctx, a, b)]})


def lines(store: Store, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> list[Difference]:
    """Compare two models item by item and return all lines of the comparison.

    Args:
        store: blob store with the manifests' parts.
        a, b: measurements of each model, by asset name.

    Raises:
        IntegrityError: the models were measured on different items.
    """
    return corrected([line for pairs in read(store, a, b) for line in of_measure(pairs, SEED)])


def _alone(one: MeasuredModel, other: MeasuredModel) -> list[str]:
    """Return the names of the comparable assets that measured only the first model."""
    return sorted(asset for asset in set(one.measured) - set(other.measured) if reader(asset))


def spans_of(made: Manifest) -> list[SpanDifference]:
    """Return the byte spans recorded in a comparison's manifest, without their text.

    Manifests contain no text, so takedowns need not search them.
    """
    return [SpanDifference(**one) for one in made.stats["spans"]]


def _spans(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> list[SpanDifference]:
    """Return the held-out byte spans with the largest differences, or none if a model was not evaluated token by
    token."""
    ours, theirs = (side.measured.get(EVALUATION) for side in (a, b))
    if ours and theirs and ours.named(TOKENS) and theirs.named(TOKENS):
        with suppress(MissingError):  # no document in common: all are counted as unpaired
            return places(ctx.store, ours, theirs)
    return []


class _Findings:
    """Collector of comparison lines and of the items with the largest differences, filled one measure at a time."""

    def __init__(self) -> None:
        self.lines: list[Difference] = []
        self.left_out = self.seen_items = 0
        self.unpaired: dict[str, list[int]] = {}
        self.extremes: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any]] = []

    def add(self, pairs: Pairs) -> None:
        if pairs.only_a + pairs.only_b:
            self.unpaired[f"{pairs.kind}: {pairs.measure}"] = [pairs.only_a, pairs.only_b]
        if not pairs.rows.num_rows:
            return
        self.lines += of_measure(pairs, SEED)
        self.left_out += omitted_slices(pairs)
        listed, count = seen_items(pairs, MOST_SEEN - len(self.seen))
        self.seen, self.seen_items = self.seen + listed, self.seen_items + count
        self.extremes.append({"kind": pairs.kind, "measure": pairs.measure, **extremes(pairs)})

    def stats(self) -> dict[str, Any]:
        self.lines = corrected(self.lines)
        return {
            "lines": [line.model_dump(mode="json") for line in self.lines],
            "left_out": self.left_out,
            "unpaired": self.unpaired,
            "extremes": self.extremes,
            "seen": self.seen,
            "seen_items": self.seen_items,
            "seed": SEED,
        }


def _of_models(ctx: Context, a: Manifest, b: Manifest, found: _Findings) -> dict[str, Any]:
    """Return facts about both models, the changes between them, and explanations of their differences."""
    ours, theirs = (ancestry(ctx.refs, one) for one in (a, b))
    losses = tuple(side["run"].stats.get("final_loss_ema") if "run" in side else None for side in (ours, theirs))
    same = cut_alike(ctx.store, a, b)
    return {
        "models": {"a": _model(a), "b": _model(b)},
        "same_tokenizer": same,
        "changes": [one.model_dump(mode="json") for one in changes(ctx.refs, a, b)],
        "reasons": [one.model_dump(mode="json") for one in reasons(found.lines, same, (losses[0], losses[1]))],
    }


def alone(checkpoint: Manifest) -> Manifest:
    """Return a comparison without lines, for a model that has no reference model yet."""
    step = Step(name=ASSET, version=VERSION, params={"seed": SEED})
    stats = {"models": {"a": _model(checkpoint)}, "lines": [], "seed": SEED}
    return context.manifest(ASSET, step, {"a/checkpoint": checkpoint}, [], stats)


def _model(checkpoint: Manifest) -> dict[str, Any]:
    known = {name: checkpoint.stats[name] for name in ("run_id", "step", "tokens") if name in checkpoint.stats}
    return {"checkpoint": checkpoint.digest, "asset": checkpoint.asset} | known


def _table(pairs: Pairs) -> pa.Table:
    named = [pa.repeat(name, pairs.rows.num_rows) for name in (pairs.kind, pairs.measure)]
    return pa.Table.from_arrays([*named, *pairs.rows.columns], schema=_COLUMNS)


MOST = 10
MOST_SEEN = 200


def extremes(pairs: Pairs, most: int = MOST) -> dict[str, list[dict[str, Any]]]:
    """Return the items with the largest differences in favor of each model, by model (`a`, `b`), largest first.

    Each item has `item`, `source`, `slices`, `status`, `gain` (in the measure's units: bits or points), `per_weight`,
    and the value of each model per weight.
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
    """Return the first `most` contaminated or suspected items, sorted by name, and the total number of these items."""
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
