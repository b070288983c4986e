"""The asset `probes`: scores of every probe for one checkpoint.

Items longer than the training length are not scored. Contamination statuses are added after scoring, so items need not
be scored again if the corpus changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context, cached, manifest
from plinth.evaluation import statistics
from plinth.evaluation.engine import batches
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request
from plinth.evaluation.probes import probe_sets, scoring
from plinth.evaluation.probes.base import ProbeItem
from plinth.evaluation.probes.scoring import EXCLUDED, ItemScore
from plinth.model.hugging_face import CONFIG, TOKENIZER
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.tokens.tokenizer.encode import load as load_tokenizer

ASSET = "probes"
VERSION = "2"


def run(ctx: Context, checkpoint: Manifest, sets: Manifest, compared: Manifest) -> Manifest:
    """Score every probe on a checkpoint.

    Args:
        ctx: workspace, engine and progress display.
        checkpoint: manifest of `checkpoint`.
        sets: manifest of `probe_sets`.
        compared: manifest of `protected`, which has the contamination statuses of items.

    Returns:
        Manifest of `items.parquet` (`SCHEMA`). Statistics: `probes` and `families` (by name items, statuses,
        too_long, and estimates of bits_per_byte, control, signal, margin, accuracy), `templates`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        TrainingError: the checkpoint could not be scored.
    """
    step = Step(name=ASSET, version=VERSION)
    answers = Step(name=f"{ASSET}/answers", version=VERSION)
    inputs = {"checkpoint": checkpoint, probe_sets.ASSET: sets, "protected": compared}

    def made() -> list[Part]:
        (found,) = cached(ctx, answers, [checkpoint, sets], lambda: [_answers(ctx, checkpoint, sets)])
        return [_with_statuses(ctx, found, compared)]

    parts = cached(ctx, step, inputs.values(), made)
    rows = read_table(ctx.store, parts[0]).to_pylist()
    return manifest(ASSET, step, inputs, parts, statistics_of(rows))


def _answers(ctx: Context, checkpoint: Manifest, sets: Manifest) -> Part:
    """Score every item that fits the training length, and store the scores as a part."""
    items = probe_sets.load(ctx.store, sets)
    with ModelEngine.of(ctx, checkpoint, label=ASSET) as engine:  # loads the model meanwhile
        fit = _fitting(ctx, checkpoint, items)
        kept = [one for one, fits in zip(items, fit, strict=True) if fits]
        bits = engine.likelihoods([Request(*pair) for pair in scoring.requests(kept)]).bits
    scores = iter(scoring.scored(kept, bits.tolist()))
    answered: list[ItemScore | None] = [next(scores) if fits else None for fits in fit]
    return write_table(ctx.store, FILE, _table(measured(items, answered)))


def _fitting(ctx: Context, checkpoint: Manifest, items: Sequence[ProbeItem]) -> list[bool]:
    files = {part.name: part for part in checkpoint.parts}
    tokenizer = load_tokenizer(ctx.store, files[TOKENIZER].blob)
    config = json.loads(ctx.store.read_bytes(files[CONFIG].blob))
    streams = batches.requests(tokenizer, 0, [Request(*pair) for pair in scoring.requests(items)])
    return scoring.fitting(items, [len(one.ids) - 1 for one in streams], int(config["max_position_embeddings"]))


def _with_statuses(ctx: Context, answers: Part, compared: Manifest) -> Part:
    statuses = probe_sets.statuses(ctx.store, compared)
    rows = read_table(ctx.store, answers).to_pylist()
    return write_table(ctx.store, FILE, _table([row | {"status": statuses[row["probe"], row["item"]]} for row in rows]))


def _table(rows: Sequence[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


# Scores of items as a part, and their statistics by probe and family, with intervals clustered by template.
#
# Headline scores use items that fit the training length and were not found in training text. Other scored items are
# reported separately as `held`.

FILE = "items.parquet"
#: Scores are null if the item does not fit the training length. Margin and correctness are also null without wrong
#: answers.
SCHEMA = pa.schema(
    [
        pa.field("probe", pa.string(), nullable=False),
        pa.field("family", pa.string(), nullable=False),
        pa.field("template", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),  # from the comparison with training text
        pa.field("bytes", pa.int64(), nullable=False),  # of the correct answer
        pa.field("bits", pa.float64()),  # of the correct answer
        pa.field("control_bits", pa.float64()),  # the same after the control
        pa.field("margin", pa.float64()),  # bits per byte of the best wrong answer minus the correct one's
        pa.field("correct", pa.bool_()),
        pa.field("centred", pa.float64()),  # (correct - chance) / (1 - chance)
    ]
)
SEED = 0
#: Number of bootstrap draws per template. It is low because there are many templates, and no decision uses their
#: intervals.
TEMPLATE_DRAWS = 1000

Row = Mapping[str, Any]


def measured(items: Sequence[ProbeItem], scores: Sequence[ItemScore | None]) -> list[dict[str, Any]]:
    """Return one row per item, without contamination status. Items without a score have None."""
    return [_row(one, score) for one, score in zip(items, scores, strict=True)]


def _row(one: ProbeItem, score: ItemScore | None) -> dict[str, Any]:
    row: dict[str, Any] = {"probe": one.probe, "family": one.family, "template": one.template, "item": one.item}
    row |= {"status": "", "bytes": len(one.gold.encode())}
    if score is None:
        return row | dict.fromkeys(("bits", "control_bits", "margin", "correct", "centred"))
    chosen = not math.isnan(score.margin)
    row |= {"bits": score.bits, "control_bits": score.control_bits, "margin": score.margin if chosen else None}
    return row | {"correct": score.correct if chosen else None, "centred": score.centred if chosen else None}


def statistics_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the statistics of all rows, with intervals: `probes` and `families` by name, and `templates` by probe."""
    probes, families = _groups(rows, "probe"), _groups(rows, "family")
    templates = {name: _groups(_kept(own), "template") for name, own in probes.items()}
    return {
        "probes": {name: _of(own) for name, own in probes.items()},
        "families": {name: _of(own) for name, own in families.items()},
        "templates": {name: {one: _short(some) for one, some in own.items()} for name, own in templates.items()},
    }


def estimates(row: Row) -> dict[str, Mapping[str, Any]]:
    """Return the estimates in the statistics of one probe, by name."""
    return {name: found for name, found in row.items() if isinstance(found, Mapping) and "low" in found}


def _groups(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _kept(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that headline scores include: scored items without contamination."""
    return [row for row in rows if row["bits"] is not None and row["status"] not in EXCLUDED]


def _of(rows: Sequence[Row]) -> dict[str, Any]:
    """Summarize one probe: items by status, number of items that are too long, scores of clean items, scores of
    contaminated items."""
    asked = [row for row in rows if row["bits"] is not None]
    kept, held = _kept(rows), [row for row in asked if row["status"] in EXCLUDED]
    counts = {name: len(own) for name, own in sorted(_groups(rows, "status").items())}
    found: dict[str, Any] = {"items": len(kept), "statuses": counts, "too_long": len(rows) - len(asked)}
    found |= _numbers(kept) if kept else {}
    return found | ({"held": {"items": len(held)} | _numbers(held)} if held else {})


def _numbers(rows: Sequence[Row]) -> dict[str, Any]:
    """Return estimates over the rows as JSON: bits per byte, control, signal, margin and accuracy."""
    clusters = [f"{row['probe']}/{row['template']}" for row in rows]
    bits, control, size = ([float(row[name]) for row in rows] for name in ("bits", "control_bits", "bytes"))
    found = {
        "bits_per_byte": statistics.ratio(bits, size, clusters, seed=SEED),
        "control": statistics.ratio(control, size, clusters, seed=SEED),
        "signal": statistics.ratio_difference(control, bits, size, clusters, seed=SEED),
    }
    chosen = [(row, cluster) for row, cluster in zip(rows, clusters, strict=True) if row["margin"] is not None]
    if chosen:
        own = [cluster for _, cluster in chosen]
        for name, column in (("margin", "margin"), ("accuracy", "centred")):
            found[name] = statistics.mean([row[column] for row, _ in chosen], own)
    shown: dict[str, Any] = {name: one.model_dump(mode="json") for name, one in found.items()}
    if chosen:
        shown["correct"] = sum(row["correct"] for row, _ in chosen)
        shown["of"] = len(chosen)
    return shown


def _short(rows: Sequence[Row]) -> dict[str, Any]:
    """Summarize one template. Its items are similar, so the interval does not apply to other templates."""
    bits, control, size = ([float(row[name]) for row in rows] for name in ("bits", "control_bits", "bytes"))
    signal = statistics.ratio_difference(control, bits, size, seed=SEED, draws=TEMPLATE_DRAWS)
    shown = {"items": len(rows), "bits_per_byte": round(math.fsum(bits) / math.fsum(size), 6)}
    shown |= {"signal": signal.value, "low": signal.low, "high": signal.high}
    chosen = [row["centred"] for row in rows if row["centred"] is not None]
    return shown | ({"accuracy": round(math.fsum(chosen) / len(chosen), 6)} if chosen else {})
