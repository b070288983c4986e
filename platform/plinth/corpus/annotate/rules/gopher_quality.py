"""Gopher's quality rules as scores. Thresholds are policy.

Profile `datatrove`: what datatrove 0.10 counts, on the words of spaCy's blank English tokenizer. That makes a word of
every punctuation mark, so the share of words with a letter is lower and its threshold of 0.8 drops many a README and
source file that passes under `white-space`: the same counts on the words that white space separates, as in Gopher.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import Frozen
from plinth_text.arrays import F64
from plinth_text.rules import gopher

_RATIOS = (
    "mean_word_characters", "hash_ratio", "ellipsis_ratio", "bullet_lines", "ellipsis_lines", "letter_words",
)  # fmt: skip
SCHEMA = pa.schema(
    [pa.field("word_count", pa.int32(), nullable=False)]
    + [pa.field(name, pa.float64(), nullable=False) for name in _RATIOS]
    + [pa.field("stop_words", pa.int32(), nullable=False)]
)


class GopherQualityParams(Frozen):
    """The project whose counting is followed."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove", description="Words as datatrove 0.10 has them, by spaCy's English tokenizer, or at white space."
    )


def annotate(batch: pa.RecordBatch, params: GopherQualityParams) -> pa.RecordBatch:
    """Word count (words of symbols alone left out), mean word length, symbols per word, shares of lines that
    start with a bullet or end with an ellipsis, share of words with a letter, distinct stop words (of 8)."""
    n = gopher.gopher_counts(batch.column("text"), params.profile == "datatrove")
    words, lines = n[:, gopher.WORDS], n[:, gopher.LINES]
    columns = [
        n[:, gopher.PLAIN_WORDS].astype(np.int32),
        ratio(n[:, gopher.PLAIN_CHARACTERS], n[:, gopher.PLAIN_WORDS]),
        ratio(n[:, gopher.HASHES], words),
        ratio(n[:, gopher.ELLIPSES], words),
        ratio(n[:, gopher.BULLETS], lines),
        ratio(n[:, gopher.ELLIPSIS_LINES], lines),
        ratio(n[:, gopher.ALPHA_WORDS], words),
        n[:, gopher.STOP_WORDS].astype(np.int32),
    ]
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)


def ratio(above: npt.NDArray[Any], below: npt.NDArray[Any]) -> F64:
    """Element by element; 0 where there is nothing to divide by."""
    shares: F64 = np.divide(above, below, out=np.zeros(len(above)), where=below != 0)
    return shares


ANNOTATOR = Annotator(
    name="gopher_quality",
    version="2",
    description="Word counts and ratios of Gopher's quality rules.",
    source="Rae et al. 2021, table A1; counted as datatrove 0.10.",
    params=GopherQualityParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
