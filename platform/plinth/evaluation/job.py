"""The asset `evaluation`: bits per byte of a checkpoint by slice of held-out text, beside two baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plinth.compute import context
from plinth.compute.context import Context
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.parameters import Evaluation
from plinth.evaluation.slices import choice, tables, totals
from plinth.evaluation.slices.tables import Trigram
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.tokens.tokenizer.sample import sample, sampled_texts

ASSET = "evaluation"
#: Of the held-out text of the run that gave a model its first weights.
PARENT = f"{ASSET}/parent"
VERSION = "3"

#: Training text that the trigram baseline is trained on, shared evenly by the buckets; chosen by hash of id.
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
    """Measure a checkpoint; part `documents.parquet` has a row per held-out document with its slices
    (`tables.DOCUMENT_COLUMNS`, then a column for each axis of the recipe), `tokens.parquet` the bits of its tokens.

    With the comparison with protected sets and the sets by name, part `items.parquet` has a row per item that was
    measured (`tables.ITEM_COLUMNS`), and the stat `protected` the same numbers by set and status; no other number
    counts items. A change of the ledger or of the slices costs no work of the model.

    Stats: `overall`, `slices` (by bucket) and `axes` (axis -> slice) with rows of `totals.row`; `positions`
    (`totals.by_position`); `worst` (`totals.worst`); `trigram_bytes` (text the trigram was trained on).

    Raises:
        CheckpointError: the checkpoint lacks a file that is needed, or does not load.
        IntegrityError: the ledger is of other documents.
        RecipeError: an expression of `slices` that does not fit the ledger.
        StageError: a bucket has no held-out text.
        TrainingError: the model could not be evaluated, with the end of its log.
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
    """Bits per byte of a checkpoint on held-out text of another run, by the buckets of that; it needs no ledger.

    Raises:
        CheckpointError, StageError, TrainingError: as `run`.
    """
    inputs = {"checkpoint": checkpoint} | {f"{bucket}/curated": made for bucket, made in sorted(curated.items())}
    parts = context.cached(
        ctx, _scores(params), inputs.values(), lambda: _measured(ctx, params, checkpoint, curated, None, None)
    )
    stats = {"overall": totals.row(read_table(ctx.store, parts[0]))}
    return context.manifest(PARENT, _scores(params), inputs, parts, stats)


def _scores(params: Evaluation) -> Step:
    """What the model says, whatever slices are made of it."""
    return Step(name=f"{ASSET}/scores", version=VERSION, params={**params.of_held_out(), "slices": {}})


def _measured(
    ctx: Context,
    params: Evaluation,
    checkpoint: Manifest,
    curated: Mapping[str, Manifest],
    protected: Manifest | None,
    sets: Mapping[str, Manifest] | None,
) -> tuple[Part, ...]:
    """What the model and the baselines say of documents, of their tokens, and of items, where there are any."""
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
    """The documents with their slices."""
    table = read_table(ctx.store, measured)
    labels = choice.labels(ctx.store, ledger, table, params.slices)
    return write_table(ctx.store, tables.DOCUMENTS, tables.with_labels(table, labels), stats=measured.stats)


def _stats(ctx: Context, parts: Sequence[Part]) -> dict[str, Any]:
    scored, tokens, *others = parts
    table = read_table(ctx.store, scored)
    by_axis = totals.by_axis(table)
    stats = {
        "overall": totals.row(table, paired=True),
        "slices": by_axis.pop("bucket"),
        "axes": by_axis,
        "positions": totals.by_position(tables.read_tokens(ctx.store, tokens), scored.stats["context_tokens"]),
        "worst": totals.worst(table),
        "trigram_bytes": scored.stats["trigram_bytes"],
    }
    return stats | ({"protected": totals.by_status(read_table(ctx.store, others[0]))} if others else {})


def _trigram(ctx: Context, curated: Mapping[str, Manifest]) -> Trigram:
    model = Trigram()
    for sampled in sample(ctx, curated, TRIGRAM_BYTES, f"{ASSET}: trigram"):
        model.train(text.encode() for text in sampled_texts(ctx.store, sampled))
    return model
