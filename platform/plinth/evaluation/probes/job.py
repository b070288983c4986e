"""The asset `probes`: every probe under one checkpoint.

Items that do not fit the training length are not asked. What the comparison with training text says of an item enters
after the model has answered, so another corpus costs no new answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from plinth.compute.context import Context, cached, manifest
from plinth.evaluation.engine import encode
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request
from plinth.evaluation.probes import probe_sets, scoring, tables
from plinth.evaluation.probes.base import ProbeItem
from plinth.evaluation.probes.scoring import ItemScore
from plinth.model.hugging_face import CONFIG, TOKENIZER
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.tokens.tokenizer.encode import load as load_tokenizer

ASSET = "probes"
VERSION = "2"


def run(ctx: Context, checkpoint: Manifest, sets: Manifest, compared: Manifest) -> Manifest:
    """Score every probe.

    Args:
        ctx: workspace and machinery.
        checkpoint: `checkpoint`.
        sets: `probe_sets`.
        compared: `protected`, with the statuses of items.

    Returns:
        Manifest of `items.parquet` (`tables.SCHEMA`). Statistics: `probes` and `families` (by name items, statuses,
        too_long, and estimates of bits_per_byte, control, signal, margin, accuracy), `templates`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        TrainingError: it could not be scored.
    """
    step = Step(name=ASSET, version=VERSION)
    answers = Step(name=f"{ASSET}/answers", version=VERSION)
    inputs = {"checkpoint": checkpoint, probe_sets.ASSET: sets, "protected": compared}

    def made() -> list[Part]:
        (found,) = cached(ctx, answers, [checkpoint, sets], lambda: [_answers(ctx, checkpoint, sets)])
        return [_with_statuses(ctx, found, compared)]

    parts = cached(ctx, step, inputs.values(), made)
    rows = read_table(ctx.store, parts[0]).to_pylist()
    return manifest(ASSET, step, inputs, parts, tables.statistics_of(rows))


def _answers(ctx: Context, checkpoint: Manifest, sets: Manifest) -> Part:
    """What the model says of every item that fits it."""
    items = probe_sets.load(ctx.store, sets)
    with ModelEngine.of(ctx, checkpoint, label=ASSET) as engine:  # loads the model meanwhile
        fit = _fitting(ctx, checkpoint, items)
        kept = [one for one, fits in zip(items, fit, strict=True) if fits]
        bits = engine.likelihoods([Request(*pair) for pair in scoring.requests(kept)]).bits
    scores = iter(scoring.scored(kept, bits.tolist()))
    answered: list[ItemScore | None] = [next(scores) if fits else None for fits in fit]
    return write_table(ctx.store, tables.FILE, _table(tables.measured(items, answered)))


def _fitting(ctx: Context, checkpoint: Manifest, items: Sequence[ProbeItem]) -> list[bool]:
    files = {part.name: part for part in checkpoint.parts}
    tokenizer = load_tokenizer(ctx.store, files[TOKENIZER].blob)
    config = json.loads(ctx.store.read_bytes(files[CONFIG].blob))
    streams = encode.requests(tokenizer, 0, [Request(*pair) for pair in scoring.requests(items)])
    return scoring.fitting(items, [len(one.ids) - 1 for one in streams], int(config["max_position_embeddings"]))


def _with_statuses(ctx: Context, answers: Part, compared: Manifest) -> Part:
    statuses = probe_sets.statuses(ctx.store, compared)
    rows = read_table(ctx.store, answers).to_pylist()
    return write_table(
        ctx.store, tables.FILE, _table([row | {"status": statuses[row["probe"], row["item"]]} for row in rows])
    )


def _table(rows: Sequence[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=tables.SCHEMA)
