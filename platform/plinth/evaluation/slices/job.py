"""The asset `evaluation`: bits per byte by slice and position, with intervals, and the documents with the highest loss.

The bits per byte of a slice are its bits divided by its bytes. Bits are multiples of `tables.GRID`, so the slices of an
axis add up exactly to the total. Intervals come from a bootstrap over documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compute import context
from plinth.compute.context import Context
from plinth.evaluation import statistics
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.parameters import Evaluation
from plinth.evaluation.slices import choice, tables
from plinth.evaluation.slices.choice import LENGTHS
from plinth.evaluation.slices.tables import GRID, Trigram, axes_of
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.tokens.tokenizer.sample import sample, sampled_texts

#: Seed of every bootstrap.
SEED = 0
#: Maximum number of labels on an axis. The labels with the least text are merged into one slice.
MOST_SLICES, OTHERS = 24, "(others)"
WORST = 20
_BASELINES = ("gzip", "trigram")
_DIGITS = 6


def axis_totals(table: pa.Table) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the totals over a table of documents, as axis -> slice -> row (see `row`)."""
    return {axis: _slices(table, column, axis) for axis, column in axes_of(table).items()}


def by_status(table: pa.Table) -> dict[str, dict[str, Any]]:
    """Return the totals over a table of protected items, as set -> status -> row (see `row`)."""
    found: dict[str, dict[str, Any]] = {}
    names, statuses = _strings(table, "set"), _strings(table, "status")
    for name, status in sorted(set(zip(names, statuses, strict=True))):
        one = row(table.filter(pa.array((names == name) & (statuses == status))))
        found.setdefault(name, {})[status] = {"items": one.pop("documents"), **one}
    return found


def row(table: pa.Table, *, paired: bool = False) -> dict[str, Any]:
    """Return the totals over the texts in a table. With `paired`, also compare the model with each baseline.

    Returns:
        `bytes`, `documents`, `tokens`, `bits` (exact); `model`, `gzip`, `trigram` in bits per byte; `low` and `high` of
        `model`, with `n` documents, the `method` and the `seed` of its draws, if any; `flags` of the estimate,
        if any; `perplexity` per token, which depends on the tokenizer (bits per byte do not). If paired,
        `above`: model minus baseline on the same documents, by baseline, with its interval and `p`.
    """
    sizes, tokens, bits = (_numbers(table, name) for name in ("bytes", "tokens", "model_bits"))
    size, count, total = int(sizes.sum()), int(tokens.sum()), exact_sum(bits)
    found = statistics.ratio(bits, sizes, seed=SEED)
    flags = {"flags": list(found.flags)} if found.flags else {}
    others = {name: _numbers(table, f"{name}_bits") for name in _BASELINES}
    return {
        "bytes": size,
        "documents": len(sizes),
        "tokens": count,
        "bits": total,
        "model": round(total / size, _DIGITS),
        "low": round(found.low, _DIGITS),
        "high": round(found.high, _DIGITS),
        "n": found.n,
        "method": found.method,
        "seed": found.seed,
        "perplexity": round(2 ** (total / count), 4) if count else None,
        **{name: round(exact_sum(own) / size, _DIGITS) for name, own in others.items()},
        **({"above": {name: _difference(bits, own, sizes) for name, own in others.items()}} if paired else {}),
        **flags,
    }


def _difference(bits: NDArray[np.float64], others: NDArray[np.float64], sizes: NDArray[np.int64]) -> dict[str, Any]:
    found = statistics.ratio_difference(bits, others, sizes, seed=SEED)
    return {name: round(getattr(found, name), _DIGITS) for name in ("value", "low", "high", "p")}


def interval(row: Mapping[str, Any], digits: int = 4) -> str:
    """Format the interval of a row. Returns `none` if the spread is unknown, for example for a single document."""
    if statistics.DEGENERATE in row.get("flags", ()):
        return "none"
    return f"{row['low']:.{digits}f} to {row['high']:.{digits}f}"


def exact_sum(bits: NDArray[np.float64]) -> float:
    """Return the exact sum of bits that are multiples of `GRID`."""
    return int(np.rint(bits / GRID).astype(np.int64).sum()) * GRID


def worst(table: pa.Table, most: int = WORST) -> list[dict[str, Any]]:
    """Return the documents with the most bits above the average of their bucket, largest excess first.

    Returns:
        `id`, `bucket`, `uri`, `bytes`, `model` (bits per byte) and `excess_bits` of each document.
    """
    sizes, bits, buckets = _numbers(table, "bytes"), _numbers(table, "model_bits"), _strings(table, "bucket")
    excess = np.zeros(len(sizes))
    for name in set(buckets):
        own = buckets == name
        excess[own] = bits[own] - sizes[own] * (exact_sum(bits[own]) / sizes[own].sum())
    ids = [one.hex() for one in table["id"].to_pylist()]
    first = sorted(range(len(ids)), key=lambda at: (-excess[at], ids[at]))[:most]
    rows = table.select(["bucket", "uri", "bytes"]).take(first).to_pylist()
    return [
        {"id": ids[at], **own, "model": round(cost / own["bytes"], _DIGITS), "excess_bits": round(more, 1)}
        for at, own, cost, more in zip(first, rows, bits[first].tolist(), excess[first].tolist(), strict=True)
        if more > 0
    ]


def in_order(axis: str, slices: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the slice names of an axis in display order: lengths from short to long, other names alphabetically."""
    if axis == "length":
        return [name for name in LENGTHS if name in slices]
    return sorted(slices, key=lambda name: (name == OTHERS, -slices[name]["bytes"], name))


def _slices(table: pa.Table, column: str, axis: str) -> dict[str, dict[str, Any]]:
    labels, sizes = _strings(table, column), _numbers(table, "bytes")
    names = sorted(set(labels))
    if axis != "bucket" and len(names) > MOST_SLICES:
        largest = sorted(names, key=lambda name: (-int(sizes[labels == name].sum()), name))[: MOST_SLICES - 1]
        labels = np.array([name if name in largest else OTHERS for name in labels], dtype=object)
        names = sorted({*largest, OTHERS})
    return {name: row(table.filter(pa.array(labels == name)), paired=axis == "bucket") for name in names}


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    found: NDArray[Any] = table[name].to_numpy()
    return found


def _strings(table: pa.Table, name: str) -> NDArray[np.object_]:
    return np.array(table[name].to_pylist(), dtype=object)


# Bits per token by position in the document: shows whether, and up to which length, context helps.
#
# Every token has a position, so the bins add up to the total. Late positions occur only in long documents, which
# differ from short ones. `long` is therefore the same curve over only those documents that fill the context, so that
# every bin has the same documents. A token at a position below the context length is predicted from all tokens before
# it, a later one from at least an eighth of the context (`engine.batches.windows`).

#: Start of the second bin; each later bin starts at twice the position of the previous.
FIRST = 8


def by_position(tokens: Sequence[TokenBits], context_tokens: int) -> dict[str, Any]:
    """Return the mean loss by token position in the document.

    Args:
        tokens: tokens of every document.
        context_tokens: context length of the model.

    Returns:
        `context_tokens`, `all` and `long`: rows with `start` and `end` of the bin (positions from 0, half open),
        `tokens`, `bits` (exact), `value` in bits per token with `low`, `high`, `n` documents and `seed`. `long` is
        empty if no document fills the context.
    """
    edges = bins(max((len(one.bits) for one in tokens), default=0))
    long = [one for one in tokens if len(one.bits) >= context_tokens]
    within = bins(context_tokens)
    return {
        "context_tokens": context_tokens,
        "all": _rows(tokens, edges),
        "long": _rows([TokenBits(one.ends[:context_tokens], one.bits[:context_tokens]) for one in long], within),
    }


def bins(longest: int) -> NDArray[np.int64]:
    """Return the edges of the token-position bins up to a document length: 0, 8, 16, 32, …, length."""
    doublings = FIRST * 2 ** np.arange(0, 63 - 3, dtype=np.int64)
    return np.concatenate(([0], doublings[doublings < longest], [longest])).astype(np.int64)


def _rows(tokens: Sequence[TokenBits], edges: NDArray[np.int64]) -> list[dict[str, Any]]:
    if not tokens or edges[-1] == 0:
        return []
    sums, counts = (np.array(each) for each in zip(*(_binned(one.bits, edges) for one in tokens), strict=True))
    return [_row(edges[at], edges[at + 1], sums[:, at], counts[:, at]) for at in range(len(edges) - 1)]


def _binned(bits: NDArray[np.float64], edges: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the bits and the number of tokens of one document in each bin. Bits are multiples of `GRID`, so
    differences of sums are exact."""
    upto = np.minimum(edges, len(bits))
    return np.diff(np.concatenate(([0.0], np.cumsum(bits)))[upto]), np.diff(upto)


def _row(start: int, end: int, bits: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, Any]:
    there = counts > 0
    found, total = statistics.ratio(bits[there], counts[there], seed=SEED), exact_sum(bits)
    numbers = {"value": total / int(counts.sum()), "low": found.low, "high": found.high}
    return {
        "start": int(start),
        "end": int(end),
        "tokens": int(counts.sum()),
        "bits": total,
        **{name: round(value, 6) for name, value in numbers.items()},
        "n": found.n,
        "seed": found.seed,
    }


# The asset: a checkpoint on held-out text, with two baselines.

ASSET = "evaluation"
#: Name of the asset on the held-out text of a model's parent run.
PARENT = f"{ASSET}/parent"
VERSION = "3"

#: Bytes of training text for the trigram baseline, divided evenly among buckets. Documents are chosen by the hash of
#: their id.
TRIGRAM_BYTES = 64 * 2**20


def run(
    ctx: Context,
    params: Evaluation,
    checkpoint: Manifest,
    curated: Mapping[str, Manifest],
    ledger: Manifest,
    *,
    protected: Manifest | None = None,
    sets: Mapping[str, Manifest] | None = None,
) -> Manifest:
    """Evaluate a checkpoint on held-out text and protected items.

    The part `documents.parquet` has one row per held-out document with its slices (`tables.DOCUMENT_COLUMNS`, then one
    column per axis of the recipe). The part `tokens.parquet` has the bits of the documents' tokens.

    If `protected` and `sets` are given, the part `items.parquet` has one row per scored item (`tables.ITEM_COLUMNS`),
    and the statistic `protected` has the same numbers by set and status. No other number includes items. A change of
    the ledger or of the slices does not rerun the model.

    Statistics: `overall`, `slices` (by bucket) and `axes` (axis -> slice), with the rows of `row`; `positions`
    (`by_position`); `worst` (see `worst`); `trigram_bytes` (size of the text that the trigram was trained on).

    Raises:
        CheckpointError: the checkpoint lacks a file or does not load.
        IntegrityError: the ledger was built from other documents.
        RecipeError: an expression of `slices` is invalid for the ledger.
        StageError: a bucket has no held-out text.
        TrainingError: the model could not be evaluated; the error contains the end of the model's log.
    """
    inputs: dict[str, Manifest] = {"checkpoint": checkpoint}
    inputs |= {f"{bucket}/curated": made for bucket, made in sorted(curated.items())}
    if protected is not None and sets:
        inputs |= {"protected": protected} | {f"protected/{name}": made for name, made in sorted(sets.items())}
    step, read = Step(name=ASSET, version=VERSION, params=params.of_held_out()), tuple(inputs.values())

    def sliced() -> list[Part]:
        first, *more = context.cached(
            ctx, _scores(params), read, lambda: _measured(ctx, params, checkpoint, curated, protected, sets)
        )
        return [_sliced(ctx, params, ledger, first), *more]

    parts = context.cached(ctx, step, (*read, ledger), sliced)
    return context.manifest(ASSET, step, inputs | {"ledger": ledger}, parts, _stats(ctx, parts))


def of_parent(ctx: Context, params: Evaluation, checkpoint: Manifest, curated: Mapping[str, Manifest]) -> Manifest:
    """Evaluate a checkpoint on the held-out text of another run, by the buckets of that run. No ledger is needed.

    Raises:
        CheckpointError, StageError, TrainingError: raised under the same conditions as by `run`.
    """
    inputs = {"checkpoint": checkpoint} | {f"{bucket}/curated": made for bucket, made in sorted(curated.items())}
    parts = context.cached(
        ctx, _scores(params), inputs.values(), lambda: _measured(ctx, params, checkpoint, curated, None, None)
    )
    stats = {"overall": row(read_table(ctx.store, parts[0]))}
    return context.manifest(PARENT, _scores(params), inputs, parts, stats)


def _scores(params: Evaluation) -> Step:
    """Return the step that caches the scores. Scores do not depend on slices."""
    return Step(name=f"{ASSET}/scores", version=VERSION, params={**params.of_held_out(), "slices": {}})


def _measured(
    ctx: Context,
    params: Evaluation,
    checkpoint: Manifest,
    curated: Mapping[str, Manifest],
    protected: Manifest | None,
    sets: Mapping[str, Manifest] | None,
) -> tuple[Part, ...]:
    """Score the documents, their tokens and the protected items, if any, with the model and the baselines."""
    chosen = choice.choose_documents(ctx.store, curated, params.max_bytes_per_slice)
    asked = choice.choose_items(ctx.store, protected, sets, params.max_bytes_per_slice) if protected and sets else []
    with ModelEngine.of(ctx, checkpoint) as engine:  # loads the model meanwhile
        trigram = _trigram(ctx, curated)
        scored = engine.documents([one.text for one in chosen] + [one.text for one in asked], per_token=True)
        context_tokens = engine.facts["sequence_tokens"]
    tokens = tables.by_text(scored)
    own, rest = tokens[: len(chosen)], tokens[len(chosen) :]
    stats = {"trigram_bytes": trigram.trained_bytes, "context_tokens": context_tokens}
    parts = (
        write_table(ctx.store, tables.DOCUMENTS, tables.documents(chosen, own, trigram), stats=stats),
        tables.write_tokens(ctx.store, own),
    )
    return (*parts, write_table(ctx.store, tables.ITEMS, tables.items(asked, rest, trigram))) if asked else parts


def _sliced(ctx: Context, params: Evaluation, ledger: Manifest, measured: Part) -> Part:
    """Write the scored documents to a part with their slice labels added."""
    table = read_table(ctx.store, measured)
    labels = choice.labels(ctx.store, ledger, table, params.slices)
    return write_table(ctx.store, tables.DOCUMENTS, tables.with_labels(table, labels), stats=measured.stats)


def _stats(ctx: Context, parts: Sequence[Part]) -> dict[str, Any]:
    scored, tokens, *others = parts
    table = read_table(ctx.store, scored)
    by_axis = axis_totals(table)
    stats = {
        "overall": row(table, paired=True),
        "slices": by_axis.pop("bucket"),
        "axes": by_axis,
        "positions": by_position(tables.read_tokens(ctx.store, tokens), scored.stats["context_tokens"]),
        "worst": worst(table),
        "trigram_bytes": scored.stats["trigram_bytes"],
    }
    return stats | ({"protected": by_status(read_table(ctx.store, others[0]))} if others else {})


def _trigram(ctx: Context, curated: Mapping[str, Manifest]) -> Trigram:
    model = Trigram()
    for sampled in sample(ctx, curated, TRIGRAM_BYTES, f"{ASSET}: trigram"):
        model.train(text.encode() for text in sampled_texts(ctx.store, sampled))
    return model
