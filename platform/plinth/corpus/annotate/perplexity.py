"""Perplexity under an n-gram model of reference text, and the band it falls into."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models.ngram import ngram_file
from plinth.records import Frozen, internal

SCHEMA = pa.schema(
    [
        pa.field("perplexity", pa.float32()),  # per token, sentence ends counted; null for a text without tokens
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("unknown", pa.float32(), nullable=False),  # share of tokens that the model does not know
        pa.field("band", pa.string()),  # head, middle, tail; null where perplexity is
    ]
)
BANDS = ("head", "middle", "tail")


class PerplexityParams(Frozen):
    """Which model scores."""

    model: str = internal("perplexity", description="Name of an `ngram` model in `corpus.models`.")


def annotate(batch: pa.RecordBatch, model: ngram_file.NgramModel) -> pa.RecordBatch:
    """Perplexity of each text, lines taken as sentences."""
    values, counts = model.perplexity(batch.column("text"))
    none = ~np.isfinite(values)
    band = np.searchsorted(np.asarray(model.head["bands"]), np.where(none, 0.0, values), side="right")
    unknown = counts[:, 2] / np.maximum(counts[:, 0], 1)
    columns = [
        pa.array(values.astype(np.float32), mask=none),
        pa.array(counts[:, 0].astype(np.int32)),
        pa.array(unknown.astype(np.float32)),
        pa.array(BANDS).take(pa.array(band, mask=none)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def prepare(params: PerplexityParams, files: Files) -> ngram_file.NgramModel:
    """The model.

    Raises:
        IntegrityError: it is of another version, or damaged.
    """
    key = f"models/{params.model}"
    return ngram_file.read(files[key], key)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


ANNOTATOR = Annotator(
    name="perplexity",
    version="1",
    description="Perplexity under an n-gram model of reference text, with its band: head, middle or tail.",
    source="CCNet (Wenzek et al. 2020); modified Kneser-Ney (Chen and Goodman 1998).",
    params=PerplexityParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=_resources,
    prepare=prepare,
)
