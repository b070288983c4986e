"""The test text of an experiment under a model, and what is kept of a run: one manifest, however the run ended.

Test text is scored as the items of protected sets are, document by document, all of it; no arm chooses among it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute import stage
from plinth.compute.context import Context
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.slices.tables import on_grid
from plinth.experiment.arms import Arm
from plinth.experiment.scores import FINISHED, ArmScores, Status
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.training import config, manifests
from plinth.training.checkpoint.checkpoint import committed

VERSION = "1"
SCORES = "scores.parquet"
#: A row for each document of the test text, in the order of its sets and of the items in them.
COLUMNS = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("document", "slice", "item")),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
    ]
)


def score(ctx: Context, checkpoint: Manifest, sets: Mapping[str, Manifest]) -> Part:
    """Bits of every document of the test text under a checkpoint; a part with `COLUMNS`, from the step cache if it is
    there.

    Raises:
        CheckpointError, TrainingError: the model could not be loaded or evaluated.
    """
    step = Step(name="experiment/scores", version=VERSION)
    key = step.key([checkpoint.digest, *(sets[name].digest for name in sorted(sets))])
    known = ctx.cache.get(key)
    if known is None:
        items = _items(ctx, sets)
        with ModelEngine.of(ctx, checkpoint, label="test text") as engine:
            found = engine.documents(items.column("text").to_pylist())
        data = [text.encode() for text in items.column("text").to_pylist()]
        table = items.drop_columns(["text"]).append_column("bytes", pa.array([len(one) for one in data], pa.int64()))
        table = table.append_column("bits", pa.array(on_grid(found.bits)))
        known = ctx.cache.put(key, [write_table(ctx.store, SCORES, table.cast(COLUMNS))])
    return known[0]


def _items(ctx: Context, sets: Mapping[str, Manifest]) -> pa.Table:
    tables = []
    for name in sorted(sets):
        (part,) = sets[name].parts
        own = read_table(ctx.store, part)
        ids = [hashlib.sha256(f"{name}\0{item}".encode()).hexdigest()[:32] for item in own.column("item").to_pylist()]
        columns = {"document": ids, "slice": [name] * len(ids), "item": own.column("item"), "text": own.column("text")}
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def measured(
    ctx: Context, arm: Arm, points: int, made: Mapping[str, Manifest], sets: Mapping[str, Manifest]
) -> Manifest:
    """What is kept of a run that ended: the scores of its last checkpoint, and its curve.

    Args:
        points: checkpoints to score at most, evenly among those that the run kept.
        made: the run's `run` and `checkpoint`.
        sets: the test text.

    Raises:
        CheckpointError, TrainingError: as `score`.
    """
    run = made["run"]
    prepared = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json")
    last = score(ctx, made["checkpoint"], sets)
    end, curve = made["checkpoint"].stats, []
    for step in _spread([step for step in committed(prepared.directory) if step < end["step"]], points - 1):
        part = score(ctx, manifests.committed_manifest(ctx, prepared, step), sets)
        curve.append((step, prepared.tokens_through(step), _bits_per_byte(ctx, part)))
    curve.append((end["step"], end["tokens"], _bits_per_byte(ctx, last)))
    return kept(arm, FINISHED, "", {**made, **_named(sets)}, [last], tokens=curve[-1][1], curve=curve)


def kept(
    arm: Arm, status: Status, reason: str, inputs: Mapping[str, Manifest], parts: list[Part], **stats: Any
) -> Manifest:
    """The manifest of a run of an experiment, however it ended."""
    step = Step(name="experiment/arm", version=VERSION, params={"arm": arm.arm, "size": arm.size, "seed": arm.seed})
    spent = arm.flops * stats.get("tokens", 0) / arm.tokens
    return stage.manifest(arm.asset, step, inputs, parts, {"status": status, "reason": reason, "flops": spent, **stats})


def scores_of(ctx: Context, made: Manifest) -> ArmScores:
    """What effects are made of, from the manifest of a run; its seconds are in no manifest and are 0."""
    stats, run = made.stats, made.params
    columns: dict[str, Any] = {}
    if made.parts:
        table = read_table(ctx.store, made.parts[0])
        columns = {name: np.array(table.column(name).to_pylist()) for name in ("bytes", "bits")}
        columns = {name: column.astype(np.float64) for name, column in columns.items()}
        columns["documents"], columns["slices"] = (
            np.array(table.column(name).to_pylist()) for name in ("document", "slice")
        )
    return ArmScores(
        arm=run["arm"],
        size=run["size"],
        seed=run["seed"],
        status=stats["status"],
        reason=stats["reason"],
        tokens=stats.get("tokens", 0),
        flops=stats["flops"],
        curve=tuple((step, tokens, bits) for step, tokens, bits in stats.get("curve", ())),
        **columns,
    )


def _named(sets: Mapping[str, Manifest]) -> dict[str, Manifest]:
    return {made.asset: made for made in sets.values()}


def _spread(steps: list[int], count: int) -> list[int]:
    """At most so many of the steps, evenly, the earliest among them."""
    if count <= 0 or not steps:
        return []
    return [steps[at] for at in sorted({round(at) for at in np.linspace(0, len(steps) - 1, min(count, len(steps)))})]


def _bits_per_byte(ctx: Context, part: Part) -> float:
    table = read_table(ctx.store, part, ["bytes", "bits"])
    return float(np.sum(table.column("bits").to_numpy()) / np.sum(table.column("bytes").to_numpy()))
