"""Gopher's repetition rules as scores. Thresholds are policy."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import Frozen
from plinth_text.rules import gopher

SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in gopher.REPETITION_COLUMNS])


class GopherRepetitionParams(Frozen):
    """The project whose counting is followed."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove",
        description="Copies beyond the first are duplicates; a top n-gram counts all its copies. Words as datatrove "
        "0.10 has them, by spaCy's English tokenizer, or at white space.",
    )


def annotate(batch: pa.RecordBatch, params: GopherRepetitionParams) -> pa.RecordBatch:
    """Shares of lines, paragraphs and characters that repeat; see `plinth_text.rules.gopher`."""
    shares = gopher.repetition_shares(batch.column("text"), params.profile == "datatrove")
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in shares.T], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="gopher_repetition",
    version="2",
    description="Shares of lines, paragraphs and word n-grams that repeat.",
    source="Rae et al. 2021, table A1; counted as datatrove 0.10.",
    params=GopherRepetitionParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
