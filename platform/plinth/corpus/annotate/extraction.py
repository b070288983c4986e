"""Doubt of the extraction engine about a page: high on lists of links, search pages and shop windows."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.extract.page import UNSURE_KEY
from plinth.extensions import NoParams

SCHEMA = pa.schema([pa.field("unsure", pa.float64(), nullable=False)])


def annotate_extraction(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with the value in its metadata, 0 if there is none. Only metadata with it is parsed."""
    extra = batch.column("extra")
    rows = np.flatnonzero(pc.match_substring(extra, f'"{UNSURE_KEY}"').to_numpy(zero_copy_only=False))
    unsure = np.zeros(len(extra))
    for row, text in zip(rows.tolist(), extra.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            unsure[row] = float(json.loads(text).get(UNSURE_KEY, 0))
        except (TypeError, ValueError):  # another program's key of this name
            continue
    return pa.record_batch([pa.array(np.nan_to_num(unsure, posinf=0, neginf=0))], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="extraction",
    version="1",
    description="Doubt of the engine `blocks` about a page: text of undecided blocks divided by kept text.",
    source="Plinth's own engine; 0 for text of other engines and of other sources, and below 0.2.",
    params=NoParams,
    schema=SCHEMA,
    reads=("extra",),
    annotate=annotate_extraction,
)
