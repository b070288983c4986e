"""FineWeb's line rules as scores. Thresholds are policy."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.rules.gopher_quality import ratio
from plinth.records import Frozen, internal
from plinth_text.rules import c4, fineweb
from plinth_text.unicode import utf8

_COLUMNS = ("ended_lines", "short_lines", "duplicate_characters", "newlines_per_word")
SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in _COLUMNS])

#: C4 as FineWeb applies it (datatrove, examples/fineweb.py). Sentences do not decide which lines stay.
_C4 = {
    profile: c4.Lines(min_words=3, max_word_characters=1000, ends_required=False, english=profile == "datatrove")
    for profile in ("datatrove", "white-space")
}


class FineWebParams(Frozen):
    """The project whose counting is followed."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove", description="Words as datatrove 0.10 has them, by spaCy's English tokenizer, or at white space."
    )
    after_c4: bool = Field(
        False,
        description="Count on what C4 without terminal punctuation leaves of a text, as in FineWeb's order of filters.",
    )
    short_line_characters: int = internal(30, ge=1, description="A line of at most this many characters is short.")


def annotate(batch: pa.RecordBatch, params: FineWebParams) -> pa.RecordBatch:
    """Shares of lines that end a sentence and that are short, share of characters in repeated lines, and
    line ends per word. Lines of white space alone do not count."""
    texts, english = batch.column("text"), params.profile == "datatrove"
    (data, offsets), words = utf8(texts), None
    if params.after_c4:
        data, offsets, counted = c4.kept_lines(texts, _C4[params.profile])
        words = counted if english else None
    n = fineweb.fineweb_counts(data, offsets, params.short_line_characters, english, words)
    lines = n[:, fineweb.FULL_LINES]
    columns = [
        ratio(n[:, fineweb.ENDED], lines),
        ratio(n[:, fineweb.SHORT], lines),
        ratio(n[:, fineweb.DUPLICATE_CHARACTERS], n[:, fineweb.CHARACTERS]),
        ratio(n[:, fineweb.NEWLINES], n[:, fineweb.WORDS]),
    ]
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="fineweb",
    version="2",
    description="Line endings, short lines, repeated lines and line ends per word.",
    source="Penedo et al. 2024 (FineWeb), section 3.4; counted as datatrove 0.10.",
    params=FineWebParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
