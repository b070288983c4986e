"""C4's line and page rules as scores. Thresholds are policy."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.rules.gopher_quality import ratio
from plinth.records import Frozen, internal
from plinth_text.rules import c4

_COUNTS = (
    "lines", "kept_lines", "sentences", "long_word_lines", "unended_lines", "few_word_lines", "lorem_ipsum_lines",
    "javascript_lines", "curly_bracket_lines", "notice_lines",
)  # fmt: skip
SCHEMA = pa.schema(
    [pa.field(name, pa.int32(), nullable=False) for name in _COUNTS]
    + [pa.field("kept_line_share", pa.float64(), nullable=False)]
)


class C4Params(Frozen):
    """The project whose counting is followed, and the lines that count."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove",
        description="Rules in the order of datatrove 0.10. Sentences as it has them, by spaCy, or ended by marks "
        "before white space.",
    )
    min_words_per_line: int = internal(3, ge=0, description="Words a line needs (paper: 3, DCLM: 5).")
    terminal_punctuation: bool = Field(
        True, description="Whether a line must end a sentence. FineWeb leaves this rule out."
    )
    max_word_characters: int = internal(1000, ge=1, description="A line with a longer word does not count.")


def annotate(batch: pa.RecordBatch, params: C4Params) -> pa.RecordBatch:
    """Lines by outcome, and the sentences of those that would be kept; see `plinth_text.rules.c4`."""
    lines = c4.Lines(
        params.min_words_per_line,
        params.max_word_characters,
        params.terminal_punctuation,
        params.profile == "datatrove",
    )
    n = c4.page_counts(batch.column("text"), lines)
    counts = [pa.array(np.ascontiguousarray(column)) for column in n.T.astype(np.int32)]
    return pa.record_batch([*counts, pa.array(ratio(n[:, c4.KEPT], n[:, c4.LINES]))], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="c4",
    version="2",
    description="Lines that C4 would keep, their sentences, and lines caught by each of its rules.",
    source="Raffel et al. 2020, section 2.2; counted as datatrove 0.10.",
    params=C4Params,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
