"""RefinedWeb's line rules: the lines to cut, and how many of the words they hold. Thresholds are policy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth.corpus.annotate.base import Annotator, spans
from plinth.corpus.annotate.rules.gopher_quality import ratio
from plinth.extensions import NoParams
from plinth.schemas import EDIT_TYPE
from plinth_text.arrays import I64
from plinth_text.rules import refinedweb
from plinth_text.rules.refinedweb import judge

#: Why a line is cut, by number.
REASONS = ("", "upper_case", "numeric", "counter", "one_word", "navigation")
SCHEMA = pa.schema(
    [
        pa.field("words", pa.int32(), nullable=False),
        pa.field("removed_words", pa.float64(), nullable=False),  # share of the words
        pa.field("emptied", pa.bool_(), nullable=False),
        pa.field("cuts", EDIT_TYPE, nullable=False),
    ]
)


def annotate(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Words that fastText's splitter finds and that begin with a letter or digit, the share of them that the rules
    take away, whether nothing is left, and the cuts."""
    texts = batch.column("text")
    found = refinedweb.line_cuts(texts)
    words, left, emptied = found.words, found.left, found.emptied
    more: list[tuple[int, int, int, int]] = []
    hard = np.flatnonzero(found.hard)
    for row, text in zip(hard.tolist(), texts.take(pa.array(hard)).to_pylist(), strict=True):
        words[row], left[row], emptied[row], cut = judge(text)
        more += [(row, *span) for span in cut]
    slowly: I64 = np.array(more, dtype=np.int64).reshape(-1, 4)
    columns = np.stack([found.of, found.begin, found.end, found.why], dtype=np.int64)
    of, begin, end, why = np.concatenate([columns, slowly.T], axis=1)
    return pa.record_batch(
        [
            pa.array(words.astype(np.int32)),
            pa.array(ratio(words - left, words)),
            pa.array(emptied),
            spans(of, begin, end, why, REASONS, batch.num_rows),
        ],
        schema=SCHEMA,
    )


ANNOTATOR = Annotator(
    name="refinedweb_lines",
    version="1",
    description="Lines of navigation, counters, numbers and capitals, and the share of words they hold.",
    source="Penedo et al. 2023 (RefinedWeb), section G.2; in the steps of DCLM's dclm_baseline_refinedweb.yaml.",
    params=NoParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
