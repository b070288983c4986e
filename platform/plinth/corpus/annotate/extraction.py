"""Risk that the text of a page is not its main content."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.extract.page import RISK_KEY
from plinth.extensions import NoParams

SCHEMA = pa.schema([pa.field("risk", pa.float64(), nullable=False)])


def annotate_extraction(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with the value in its metadata, 0 if there is none. Only metadata with one is parsed."""
    extra = batch.column("extra")
    rows = np.flatnonzero(pc.match_substring(extra, f'"{RISK_KEY}"').to_numpy(zero_copy_only=False))
    risks = np.zeros(len(extra))
    for row, text in zip(rows.tolist(), extra.take(pa.array(rows)).to_pylist(), strict=True):
        risks[row] = _number(json.loads(text).get(RISK_KEY, 0))
    return pa.record_batch([pa.array(np.nan_to_num(risks, posinf=0, neginf=0))], schema=SCHEMA)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # another program's key of this name
        return 0.0


ANNOTATOR = Annotator(
    name="extraction",
    version="3",
    description="Risk that the text of a page has much that is foreign to it, or misses much.",
    source="Plinth's own engine `blocks`; 0 for text of other engines and of other sources, and for risks up to 0.05.",
    params=NoParams,
    schema=SCHEMA,
    reads=("extra",),
    annotate=annotate_extraction,
)
