"""FineWeb's line rules as scores. Thresholds are policy."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.rules.gopher_quality import ratio
from plinth.records import Frozen, internal
from plinth.text.rules import gopher_quality

_COLUMNS = ("ended_lines", "short_lines", "duplicate_characters", "newlines_per_word")
SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in _COLUMNS])


class FineWebParams(Frozen):
    """The project whose counting is followed."""

    profile: Literal["datatrove"] = internal("datatrove", description="Counts as datatrove 0.10 does.")
    short_line_characters: int = internal(30, ge=1, description="A line of at most this many characters is short.")


def annotate(batch: pa.RecordBatch, params: FineWebParams) -> pa.RecordBatch:
    """Shares of lines that end a sentence and that are short, share of characters in repeated lines, and
    line ends per word. Lines of white space alone do not count."""
    n = gopher_quality.fineweb_counts(batch.column("text"), params.short_line_characters)
    lines = n[:, gopher_quality.FULL_LINES]
    columns = [
        ratio(n[:, gopher_quality.ENDED], lines),
        ratio(n[:, gopher_quality.SHORT], lines),
        ratio(n[:, gopher_quality.DUPLICATE_CHARACTERS], n[:, gopher_quality.CHARACTERS]),
        ratio(n[:, gopher_quality.NEWLINES], n[:, gopher_quality.ALL_WORDS]),
    ]
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="fineweb",
    version="1",
    description="Line endings, short lines, repeated lines and line ends per word.",
    source="Penedo et al. 2024 (FineWeb), section 3.4; counted as datatrove 0.10.",
    params=FineWebParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
