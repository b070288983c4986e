"""C4's line rules with the lines that they cut, as three projects order them. Thresholds of pages are policy.

Profile `paper` is the authors' code (TensorFlow Datasets, `c4_utils.py`) with the paper's first numbers, 3 words a line
and 5 sentences; `dclm` rebuilds its later numbers, 5 and 3, as steps over the whole page, and keeps blank lines;
`dolma` is the tagger `c4_v2`, which looks for phrases anywhere and makes two checks of a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, spans
from plinth.records import Frozen, internal
from plinth.schemas import EDIT_TYPE
from plinth_text.arrays import I64, U8, Bools
from plinth_text.rules import c4 as kernel

#: Why a line is cut, by number; 0 is kept.
REASONS = ("", "long_word", "unended", "few_words", "javascript", "notice", "citation")
_LONG, _UNENDED, _FEW, _JAVASCRIPT, _NOTICE, _CITATION = range(1, 7)
_MIN_WORDS = {"paper": 3, "dclm": 5, "dolma": 3}

SCHEMA = pa.schema(
    [
        pa.field("characters", pa.int32(), nullable=False),
        pa.field("lines", pa.int32(), nullable=False),
        pa.field("kept_lines", pa.int32(), nullable=False),  # blank lines not counted
        pa.field("sentences", pa.int32(), nullable=False),
        pa.field("lorem_ipsum", pa.bool_(), nullable=False),
        pa.field("curly_bracket", pa.bool_(), nullable=False),
        pa.field("javascript", pa.bool_(), nullable=False),
        pa.field("cuts", EDIT_TYPE, nullable=False),
    ]
)


class C4LinesParams(Frozen):
    """The project whose rules are followed."""

    profile: Literal["paper", "dclm", "dolma"] = Field("paper", description="Whose rules, in whose order.")
    max_word_characters: int = internal(1000, ge=1, description="A line with a longer word is cut (not by `dolma`).")


def annotate(batch: pa.RecordBatch, params: C4LinesParams) -> pa.RecordBatch:
    """Lines, those that stay with their sentences, phrases that drop a page, and the lines to cut."""
    citations = params.profile != "dolma"
    found = kernel.lines(batch.column("text"), params.profile == "paper", params.max_word_characters, citations)
    why, lorem, curly = _JUDGES[params.profile](found, _MIN_WORDS[params.profile])
    doc = np.repeat(np.arange(batch.num_rows), np.diff(found.starts))
    stays = (why == 0) & ~_has(found, kernel.BLANK)

    def count(chosen: Bools, weights: Any = None) -> npt.NDArray[Any]:
        return np.bincount(doc[chosen], None if weights is None else weights[chosen], batch.num_rows)

    columns = [
        pa.array(found.characters.astype(np.int32)),
        pa.array(np.diff(found.starts).astype(np.int32)),
        pa.array(count(stays).astype(np.int32)),
        pa.array(count(stays, found.sentences).astype(np.int32)),
        pa.array(count(lorem) > 0),
        pa.array(count(curly) > 0),
        pa.array(count(_has(found, kernel.HAS_JAVASCRIPT)) > 0),
        _cuts(found, why, doc, batch.num_rows),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _has(found: kernel.CitedLines, fact: int) -> Bools:
    there: Bools = (found.facts & fact) != 0
    return there


def _first(*rules: tuple[int, Bools]) -> U8:
    """The number of the first rule that catches a line."""
    why = np.zeros(rules[0][1].size, dtype=np.uint8)
    for number, caught in reversed(rules):
        why[caught] = number
    return why


def _paper(found: kernel.CitedLines, min_words: int) -> tuple[U8, Bools, Bools]:
    """In the order of the code: a phrase drops the page when its line got that far."""
    ended = _has(found, kernel.ENDED) & ~_has(found, kernel.DOTS)
    return _ordered(found, ended, found.words < min_words)


def _dclm(found: kernel.CitedLines, min_words: int) -> tuple[U8, Bools, Bools]:
    """The same order, but an empty line is kept, and white space may follow the end."""
    empty = _has(found, kernel.EMPTY)
    ended = _has(found, kernel.BARE_ENDED) & ~_has(found, kernel.BARE_DOTS)
    return _ordered(found, ended | empty, (found.words < min_words) & ~empty)


def _ordered(found: kernel.CitedLines, ended: Bools, few: Bools) -> tuple[U8, Bools, Bools]:
    early = _first((_LONG, _has(found, kernel.HAS_LONG_WORD)), (_UNENDED, ~ended), (_FEW, few))
    lorem = (early == 0) & _has(found, kernel.HAS_LOREM_IPSUM)
    script = _has(found, kernel.HAS_JAVASCRIPT)
    curly = (early == 0) & ~script & _has(found, kernel.HAS_CURLY_BRACKET)
    late = _first((_JAVASCRIPT, script), (_NOTICE, _has(found, kernel.HAS_NOTICE)))
    return np.where(early > 0, early, late).astype(np.uint8), lorem, curly


def _dolma(found: kernel.CitedLines, min_words: int) -> tuple[U8, Bools, Bools]:
    """Phrases count wherever they are, and citations stay."""
    why = _first((_UNENDED, ~_has(found, kernel.ENDED)), (_FEW, found.words < min_words))
    return why, _has(found, kernel.HAS_LOREM_IPSUM), _has(found, kernel.HAS_CURLY_BRACKET)


_JUDGES: dict[str, Callable[[kernel.CitedLines, int], tuple[U8, Bools, Bools]]] = {
    "paper": _paper,
    "dclm": _dclm,
    "dolma": _dolma,
}


def _cuts(found: kernel.CitedLines, why: U8, doc: I64, rows: int) -> pa.Array:
    """Cut lines, and the citations of lines that stay."""
    line = np.flatnonzero(why)
    begin, end, reason, of = found.begin[line], found.end[line], why[line], doc[line]
    if found.cite_line.size:
        kept = why[found.cite_line] == 0
        begin = np.concatenate([begin, found.cite_begin[kept]])
        end = np.concatenate([end, found.cite_end[kept]])
        reason = np.concatenate([reason, np.full(int(kept.sum()), _CITATION, dtype=np.uint8)])
        of = np.concatenate([of, doc[found.cite_line[kept]]])
    return spans(of, begin, end, reason, REASONS, rows)


ANNOTATOR = Annotator(
    name="c4_lines",
    version="1",
    description="Lines that C4's rules cut, the sentences that stay, and phrases that drop a page.",
    source="Raffel et al. 2020, section 2.2, with TFDS c4_utils.py; DCLM c4.yaml; dolma 1.2, tagger c4_v2.",
    params=C4LinesParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
