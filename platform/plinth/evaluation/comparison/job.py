"""The comparison of two models as a manifest: the same inputs give the same one, and it is made once.

Part `pairs.parquet` has a row per item and measure. Stats: `models` (digest, asset, step and tokens of both), `lines`
(`differences.Difference`), `left_out` (small slices without a line), `unpaired` (items that only one has a value for),
`extremes` by measure, `seen` (contaminated and suspected items, at most 200; `seen_items` counts all), `changes`,
`reasons`, `seed`. It says a and b, never a path or a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from plinth import fingerprint
from plinth.compute import stage
from plinth.compute.context import Context
from plinth.errors import StageError
from plinth.evaluation.comparison import changes, readers
from plinth.evaluation.comparison.differences import differences, left_out
from plinth.evaluation.comparison.extremes import MOST_SEEN, extremes, seen_items
from plinth.evaluation.comparison.pairs import ROWS, Pairs
from plinth.evaluation.comparison.reasons import reasons
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import write_table

ASSET = "comparison"
VERSION = "2"
FILE = "pairs.parquet"
SEED = 0

_COLUMNS = pa.schema([pa.field("kind", pa.string()), pa.field("measure", pa.string()), *ROWS])


class MeasuredModel(NamedTuple):
    """A checkpoint and what was measured of it, by asset."""

    checkpoint: Manifest
    measured: Mapping[str, Manifest]


def run(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> Manifest:
    """Compare two models that were measured alike.

    Raises:
        StageError: nothing was measured of both.
        IntegrityError: they were measured on other items.
    """
    step = Step(name=ASSET, version=VERSION, params={"seed": SEED}, libraries=fingerprint.libraries("numpy", "scipy"))
    inputs = {"a/checkpoint": a.checkpoint, "b/checkpoint": b.checkpoint}
    for asset in sorted(set(a.measured) & set(b.measured)):
        if readers.reader(asset) is not None:
            inputs |= {f"a/{asset}": a.measured[asset], f"b/{asset}": b.measured[asset]}
    key = step.key([f"{name} {made.digest}" for name, made in inputs.items()])
    parts = ctx.cache.get(key)
    if parts is None:
        parts = ctx.cache.put(key, (_compared(ctx, a, b),))
    return stage.manifest(ASSET, step, inputs, parts, parts[0].stats)


def _compared(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> Part:
    pairs = [one for one in readers.read(ctx.store, a.measured, b.measured) if one.rows.num_rows]
    if not pairs:
        raise StageError(
            "nothing was measured of both models",
            found=f"{sorted(a.measured)} and {sorted(b.measured)}",
            expected="at least one evaluation of both, of the same items",
        )
    lines = differences(pairs, SEED)
    ours, theirs = (changes.ancestry(ctx.refs, one.checkpoint) for one in (a, b))
    losses = tuple(side["run"].stats.get("final_loss_ema") if "run" in side else None for side in (ours, theirs))
    same = changes.tokenizer(a.checkpoint) == changes.tokenizer(b.checkpoint)
    seen = seen_items(pairs)
    stats: dict[str, Any] = {
        "models": {"a": _model(a.checkpoint), "b": _model(b.checkpoint)},
        "same_tokenizer": same,
        "lines": [line.model_dump(mode="json") for line in lines],
        "left_out": left_out(pairs),
        "unpaired": {
            f"{one.kind}: {one.measure}": [one.only_a, one.only_b] for one in pairs if one.only_a + one.only_b
        },
        "extremes": [{"kind": one.kind, "measure": one.measure, **extremes(one)} for one in pairs],
        "seen": seen[:MOST_SEEN],
        "seen_items": len(seen),
        "changes": [one.model_dump(mode="json") for one in changes.changes(ctx.refs, a.checkpoint, b.checkpoint)],
        "reasons": [one.model_dump(mode="json") for one in reasons(lines, same, (losses[0], losses[1]))],
        "seed": SEED,
    }
    return write_table(ctx.store, FILE, _table(pairs), stats=stats)


def _model(checkpoint: Manifest) -> dict[str, Any]:
    known = {name: checkpoint.stats[name] for name in ("run_id", "step", "tokens") if name in checkpoint.stats}
    return {"checkpoint": checkpoint.digest, "asset": checkpoint.asset} | known


def _table(pairs: Sequence[Pairs]) -> pa.Table:
    tables = []
    for one in pairs:
        named = {"kind": [one.kind] * one.rows.num_rows, "measure": [one.measure] * one.rows.num_rows}
        columns = [pa.array(named[name], pa.string()) for name in ("kind", "measure")]
        tables.append(pa.Table.from_arrays([*columns, *one.rows.columns], schema=_COLUMNS))
    return pa.concat_tables(tables)
