"""The asset `evaluation`: bits per byte of a checkpoint on every held-out slice, beside two baselines.

The model runs in a child process, so that the caller never imports torch and no crash takes it along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plinth.compute import stage
from plinth.compute.context import Context
from plinth.evaluation import items, slices, tables
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.parameters import Evaluation
from plinth.records import Manifest, Step
from plinth.tokens.tokenizer.sample import sample, sampled_texts

if TYPE_CHECKING:
    from plinth.evaluation.baselines import Trigram

ASSET = "evaluation"
VERSION = "2"

#: Training text that the trigram baseline is trained on, shared evenly by the buckets; chosen by hash of id.
TRIGRAM_BYTES = 64 * 2**20


def run(
    ctx: Context,
    params: Evaluation,
    checkpoint: Manifest,
    curated: Mapping[str, Manifest],
    documents: Mapping[str, Manifest] | None = None,
    language: Mapping[str, Manifest] | None = None,
    *,
    column: str = "label",
    protected: Manifest | None = None,
    sets: Mapping[str, Manifest] | None = None,
) -> Manifest:
    """Measure a checkpoint; part `documents.parquet` has a row per held-out document (`tables.DOCUMENTS`).

    With the comparison with protected sets and the sets by name, part `items.parquet` has a row per item that was
    measured (`tables.ITEMS`), and the stat `protected` the same numbers by set and status; `overall` is without them.

    Stats: `slices` (bucket -> bytes, documents, tokens, and bits per byte of model, gzip and trigram),
    `languages` (the same for `bucket/language`, in buckets that hold several), `overall`,
    `trigram_bytes` (text the trigram was trained on). Languages need both `documents` and `language`.

    Raises:
        CheckpointError: the checkpoint lacks a file that is needed.
        StageError: a bucket has no held-out text.
        TrainingError: the model could not be evaluated, with the end of its log.
    """
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json") | {"column": column})
    inputs: dict[str, Manifest] = {"checkpoint": checkpoint}
    inputs |= {f"{bucket}/curated": made for bucket, made in sorted(curated.items())}
    if documents is not None and language is not None:
        inputs |= {f"{bucket}/documents": made for bucket, made in sorted(documents.items())}
        inputs |= {f"{bucket}/language": made for bucket, made in sorted(language.items())}
    if protected is not None and sets:
        inputs |= {"protected": protected} | {f"protected/{name}": made for name, made in sorted(sets.items())}
    key = step.key([each.digest for each in inputs.values()])
    parts = ctx.cache.get(key)
    if parts is None:
        chosen = slices.choose(ctx.store, curated, params.max_bytes_per_slice)
        if documents is not None and language is not None:
            chosen = slices.with_languages(ctx, chosen, documents, language, column)
        asked = items.choose(ctx.store, protected, sets, params.max_bytes_per_slice) if protected and sets else []
        with ModelEngine.of(ctx, checkpoint) as engine:  # loads the model meanwhile
            trigram = _trigram(ctx, curated)
            tokens, bits, *_ = engine.documents([one.text for one in chosen] + [one.text for one in asked])
        parts = (tables.documents(ctx, chosen, tokens[: len(chosen)], bits[: len(chosen)], trigram),)
        if asked:
            parts = (*parts, tables.items(ctx, asked, tokens[len(chosen) :], bits[len(chosen) :], trigram))
        ctx.cache.put(key, parts)
    stats = tables.totals(ctx, parts[0])
    stats |= {"protected": tables.by_status(ctx, parts[1])} if len(parts) > 1 else {}
    return stage.manifest(ASSET, step, inputs, parts, stats)


def _trigram(ctx: Context, curated: Mapping[str, Manifest]) -> Trigram:
    from plinth.evaluation.baselines import Trigram  # numba is slow to import

    model = Trigram()
    for sampled in sample(ctx, curated, TRIGRAM_BYTES, f"{ASSET}: trigram"):
        model.train(text.encode() for text in sampled_texts(ctx.store, sampled))
    return model
