"""Exposure of the planted canaries under a checkpoint.

The engine gives the bits of every canary and reference; ranks, exposures, the p-value and the bound on epsilon follow
from them and from the coins. A checkpoint within a run has seen some of the copies: `seen` counts those of steps
that were taken and not skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compute import context
from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.evaluation import statistics
from plinth.evaluation.engine.client import ModelEngine
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth_audit.canaries import audit, exposure

ASSET = "memorisation/canaries"
VERSION = "2"
TABLE = "canaries.parquet"

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # canary, reference
        pa.field("number", pa.int32(), nullable=False),
        pa.field("repetitions", pa.int32(), nullable=False),
        pa.field("planted", pa.bool_(), nullable=False),
        pa.field("seen", pa.int32(), nullable=False),  # copies that the checkpoint was trained on
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("rank", pa.int64()),  # 1 + references with as few bits; null of a reference
        pa.field("exposure", pa.float64()),  # bits, by rank
        pa.field("fitted_exposure", pa.float64()),  # the same, beyond all references by a fitted tail
    ]
)


def run(ctx: Context, checkpoint: Manifest, canaries: Manifest, seen: Mapping[int, int]) -> Manifest:
    """Measure a checkpoint; part `canaries.parquet` has a row per canary and reference (`SCHEMA`).

    Args:
        seen: copies of each canary that the checkpoint was trained on (`draws.seen_through`).

    Stats: `groups` by repetitions (canaries, seen, exposure with interval, `fitted` and `least` exposure), `out` (the
    same of canaries that were not planted), `p_value` of all planted ones, `audit` (guesses, right, epsilon, level),
    `canaries`, `planted`, `references`, `seed`.

    Raises:
        TrainingError: the checkpoint cannot be scored.
    """
    part = measured(ctx, ModelEngine.of(ctx, checkpoint, label=ASSET), checkpoint.digest, canaries, seen)
    stats = summary(read_table(ctx.store, part)) | {"seed": canaries.stats["seed"]}
    return context.manifest(ASSET, _step(seen), {"checkpoint": checkpoint, canaries.asset: canaries}, [part], stats)


def measured(ctx: Context, engine: ModelEngine, model: str, canaries: Manifest, seen: Mapping[int, int]) -> Part:
    """The table (`SCHEMA`) of a model, which is not started where it was measured before.

    Args:
        model: digest of what the engine holds.

    Raises:
        TrainingError, CheckpointError: the model cannot be scored.
    """
    return context.cached(ctx, _step(seen), [model, canaries], lambda: [_scored(ctx, engine, canaries, seen)])[0]


def _step(seen: Mapping[int, int]) -> Step:
    return Step(name=ASSET, version=VERSION, params={"seen": {str(n): count for n, count in sorted(seen.items())}})


def table(given: pa.Table, bits: NDArray[np.float64], tokens: NDArray[np.int64], seen: Mapping[int, int]) -> pa.Table:
    """Rows of `SCHEMA` from the canaries' table (`planted_canaries.SCHEMA`) and their scores."""
    canary = np.array(given["kind"].to_pylist()) == "canary"
    own, references = bits[canary], bits[~canary]
    ranks = exposure.ranks(own, references)
    of_canaries = {
        "rank": ranks,
        "exposure": exposure.exposures(ranks, len(references)),
        "fitted_exposure": exposure.extended(own, references),
    }
    at = pa.array(np.where(canary, np.cumsum(canary) - 1, 0), mask=~canary)
    columns = {name: given[name] for name in ("kind", "number", "repetitions", "planted")}
    numbers = zip(given["number"].to_pylist(), canary.tolist(), strict=True)
    columns["seen"] = pa.array([seen.get(n, 0) if is_canary else 0 for n, is_canary in numbers], pa.int32())
    columns |= {"tokens": pa.array(tokens), "bits": pa.array(bits)}
    columns |= {name: pa.array(values).take(at) for name, values in of_canaries.items()}
    return pa.table(columns, schema=SCHEMA)


def summary(scored: pa.Table) -> dict[str, Any]:
    """Statistics of a scored table."""
    own = scored.filter(pa.compute.equal(scored["kind"], "canary"))
    planted = own["planted"].to_numpy()
    repetitions, ranks = own["repetitions"].to_numpy(), own["rank"].to_numpy()
    references = scored.num_rows - own.num_rows
    guessed = audit.guesses(ranks, repetitions, references)
    inside = own.filter(own["planted"])
    return {
        "groups": {
            str(n): _group(inside.filter(pa.compute.equal(inside["repetitions"], n)))
            for n in sorted(set(inside["repetitions"].to_pylist()))
        },
        "out": _group(own.filter(pa.compute.invert(own["planted"]))),
        "p_value": exposure.p_value(inside["exposure"].to_numpy()),
        "audit": audit.audit(guessed, planted).model_dump(mode="json"),
        "canaries": own.num_rows,
        "planted": inside.num_rows,
        "references": references,
    }


def _group(rows: pa.Table) -> dict[str, Any]:
    """Exposure of some canaries in bits, with its interval over canaries."""
    if not rows.num_rows:
        return {"canaries": 0}
    found, fitted = rows["exposure"].to_numpy(), rows["fitted_exposure"].to_numpy()
    return {
        "canaries": rows.num_rows,
        "seen": int(rows["seen"].to_numpy().sum()),
        "exposure": statistics.mean(found).model_dump(mode="json"),
        "median": float(np.median(found)),
        "least": float(found.min()),
        "fitted": float(np.median(fitted)),
    }


def _scored(ctx: Context, engine: ModelEngine, canaries: Manifest, seen: Mapping[int, int]) -> Part:
    given = planted_canaries.table(ctx.store, canaries)
    with engine:
        scores = engine.documents(given["text"].to_pylist())
    return write_table(ctx.store, TABLE, table(given, scores.bits, scores.tokens, seen))
