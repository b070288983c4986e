"""Gopher's rules as scores, counted as Dolma counts them. Thresholds are policy: profile `gopher/dolma`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth.corpus.annotate.base import Annotator
from plinth.records import Frozen, internal
from plinth_text.rules import gopher

_COUNTS = frozenset({"word_count", "stop_words"})
SCHEMA = pa.schema(
    [pa.field(name, pa.int32() if name in _COUNTS else pa.float64(), nullable=False) for name in gopher.DOLMA_COLUMNS]
)


class GopherDolmaParams(Frozen):
    """The definition of a line."""

    join_blank_lines: bool = internal(
        False, description="A run of line ends is one (tagger `gopher_v2`); else every blank line is a line."
    )


def annotate(batch: pa.RecordBatch, params: GopherDolmaParams) -> pa.RecordBatch:
    """Words, their median length, shares of words and lines, and what repeats; see `plinth_text.rules.gopher`.

    `duplicate_line_characters` is of characters that are no white space and so may pass 1.
    """
    shares = gopher.dolma_shares(batch.column("text"), params.join_blank_lines)
    columns = [np.ascontiguousarray(column) for column in shares.T]
    return pa.record_batch(
        [pa.array(one).cast(field.type) for one, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


ANNOTATOR = Annotator(
    name="gopher_dolma",
    version="1",
    description="Gopher's quality and repetition scores in the counting of Dolma.",
    source="Soldaini et al. 2024 (Dolma), section 4.1; counted as dolma 1.2, tagger gopher_v1.",
    params=GopherDolmaParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
