"""Tokens that a text repeats in a row. Thresholds are policy: profile `dolma/1.6`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth.corpus.annotate.base import Annotator
from plinth.extensions import NoParams
from plinth_text.rules import gopher

SCHEMA = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in ("tokens", "times", "longest")])


def annotate(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Tokens, how often the most repeated sequence of 1 to 13 tokens stands in a row, and the tokens of the longest
    stretch that repeats; see `plinth_text.rules.gopher`."""
    found = gopher.periods(batch.column("text")).astype(np.int32)
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in found.T], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="repeated_tokens",
    version="1",
    description="How often the same few tokens stand in a row.",
    source="Soldaini et al. 2024 (Dolma 1.6); dolma 1.2, tagger tokenizer_repetitions_v2r2, on other tokens.",
    params=NoParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
