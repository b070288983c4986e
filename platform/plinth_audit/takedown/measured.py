"""Extraction and exposure of removed text under a checkpoint: before and after, the same measure on the same text.

    extraction   of every document the first tokens are given, and the next ones compared with what the checkpoint
                 writes greedily (`plinth_audit.extraction`); held-out documents are the control
    exposure     rank of a document's bits per byte among those of held-out documents (`plinth_audit.canaries`)

Removed text is no random canary: it may be easier than held-out text to a model that never read it. What counts is the
difference between a checkpoint that read it and one that did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.evaluation import statistics
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Sampling
from plinth.model.hugging_face import TOKENIZER
from plinth.records import Frozen, Manifest
from plinth.storage.parts import iter_batches
from plinth.tokens.tokenizer import encode
from plinth_audit.canaries import exposure
from plinth_audit.extraction import extraction
from plinth_audit.extraction.parameters import ExtractionTest
from plinth_audit.takedown.search import FoundDocuments, text_of

#: Removed documents, and held-out ones, that are measured.
MEASURED = 200
SLICE = "taken down"
_DEFAULTS = ExtractionTest()


class TakedownMeasure(Frozen):
    """A checkpoint on removed text.

    Args:
        read_it: whether its run read some of it before this step.
        extraction: of `extraction.summary`, or None where no text is long enough.
        exposure: mean bits with interval, `p_value`, `documents`, `references`; None without held-out text.
    """

    checkpoint: str
    run: str
    step: int
    read_it: bool
    documents: int
    extraction: dict[str, Any] | None
    exposure: dict[str, Any] | None


def texts_of(ctx: Context, found: Sequence[FoundDocuments]) -> list[str]:
    """Removed texts that an earlier snapshot still has, each once; at most `MEASURED`."""
    documents = {one.id: one for each in found for one in each.documents if not one.published}
    texts = (text_of(ctx, one) for _, one in sorted(documents.items()))
    return list(islice(dict.fromkeys(text for text in texts if text is not None), MEASURED))


def heldout_texts(ctx: Context) -> list[str]:
    """Held-out texts of the published corpus; at most `MEASURED`."""
    return list(islice(_heldout(ctx), MEASURED))


def measure(
    ctx: Context,
    checkpoint: Manifest,
    texts: Sequence[str],
    heldout: Sequence[str],
    *,
    read_it: bool,
    params: ExtractionTest = _DEFAULTS,
) -> TakedownMeasure:
    """Extraction and exposure of texts under a checkpoint.

    Raises:
        TrainingError, CheckpointError: the checkpoint cannot be loaded, or cannot write.
    """
    with ModelEngine.of(ctx, checkpoint, label="takedown") as engine:
        windows = [_windows(ctx, checkpoint, own, params) for own in (texts, heldout)]
        prompts = [own[: params.prefix_tokens] for group in windows for own in group]
        said = engine.generate(prompts, Sampling(max_tokens=params.suffix_tokens)) if prompts else []
        scores = engine.documents([*texts, *heldout])
    flat = [(own, at == 1) for at, group in enumerate(windows) for own in group]
    outcomes = [
        extraction.outcome(own[params.prefix_tokens :], answer.tokens, params.near_edits)[1]
        for (own, _), answer in zip(flat, said, strict=True)
    ]
    columns = {"slice": [SLICE] * len(flat), "heldout": [held for _, held in flat], "outcome": outcomes}
    per_byte = scores.bits / np.array([max(1, len(text.encode())) for text in (*texts, *heldout)])
    return TakedownMeasure(
        checkpoint=checkpoint.digest,
        run=str(checkpoint.stats.get("run_id", "")),
        step=int(checkpoint.stats.get("step", 0)),
        read_it=read_it,
        documents=len(texts),
        extraction=extraction.summary(pa.table(columns), [SLICE])["slices"][SLICE] if windows[0] else None,
        exposure=_exposure(per_byte[: len(texts)], per_byte[len(texts) :]),
    )


def _exposure(own: Any, references: Any) -> dict[str, Any] | None:
    if not len(own) or len(references) < 2:
        return None
    found = exposure.exposures(exposure.ranks(own, references), len(references))
    mean = statistics.mean(found).model_dump(mode="json") if len(found) > 1 else None
    facts = {"documents": len(own), "references": len(references), "p_value": exposure.p_value(found)}
    return {**facts, "mean": mean, "median": float(np.median(found)), "bits_per_byte": float(np.mean(own))}


def _windows(
    ctx: Context, checkpoint: Manifest, texts: Sequence[str], params: ExtractionTest
) -> list[tuple[int, ...]]:
    """The first tokens of every text that has so many."""
    (file,) = checkpoint.named(TOKENIZER)
    with encode.parallel(False):
        encoded = list(encode.encode_texts(encode.load(ctx.store, file.blob), texts, "<u4"))
    return [tuple(own[: params.width].tolist()) for own in encoded if len(own) >= params.width]


def _heldout(ctx: Context) -> Iterator[str]:
    for ref in ctx.refs.all():
        if ref.asset.endswith("/curated"):
            for part in ctx.refs.load(ref.digest).named("heldout-"):
                for batch in iter_batches(ctx.store, part, ["text"]):
                    yield from batch.column("text").to_pylist()
