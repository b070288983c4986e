"""Doubt of the extraction engine about a page, and the share of its text that only announces other pages."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.extract.page import TEASERS_KEY, UNSURE_KEY
from plinth.extensions import NoParams

KEYS = {"unsure": UNSURE_KEY, "teasers": TEASERS_KEY}
SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in KEYS])


def annotate_extraction(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with the values in its metadata, 0 if there is none. Only metadata with one is parsed."""
    extra = batch.column("extra")
    stated = pc.match_substring_regex(extra, "|".join(f'"{key}"' for key in KEYS.values()))
    rows = np.flatnonzero(stated.to_numpy(zero_copy_only=False))
    values = {name: np.zeros(len(extra)) for name in KEYS}
    for row, text in zip(rows.tolist(), extra.take(pa.array(rows)).to_pylist(), strict=True):
        found = json.loads(text)
        for name, key in KEYS.items():
            values[name][row] = _number(found.get(key, 0))
    arrays = [pa.array(np.nan_to_num(each, posinf=0, neginf=0)) for each in values.values()]
    return pa.record_batch(arrays, schema=SCHEMA)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # another program's key of this name
        return 0.0


ANNOTATOR = Annotator(
    name="extraction",
    version="2",
    description="Doubt of the engine `blocks` about a page (1 minus the F1 that its model expects, or the share of "
    "unsure text), and the share of the text that announces other pages.",
    source="Plinth's own engine; 0 for text of other engines and of other sources, and for low values.",
    params=NoParams,
    schema=SCHEMA,
    reads=("extra",),
    annotate=annotate_extraction,
)
