"""Line rules of C4 and RefinedWeb: scores of pages, and the lines to cut. Thresholds are set in policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, spans
from plinth.corpus.annotate.rules.gopher import ratio
from plinth.extensions import NoParams
from plinth.records import Frozen, internal
from plinth.storage.parts import EDIT_TYPE
from plinth_text.arrays import I64, U8, Bools
from plinth_text.rules import c4, refinedweb
from plinth_text.rules.refinedweb import judge

_COUNTS = (
    "lines", "kept_lines", "sentences", "long_word_lines", "unended_lines", "few_word_lines", "lorem_ipsum_lines",
    "javascript_lines", "curly_bracket_lines", "notice_lines",
)  # fmt: skip
C4_SCHEMA = pa.schema(
    [pa.field(name, pa.int32(), nullable=False) for name in _COUNTS]
    + [pa.field("kept_line_share", pa.float64(), nullable=False)]
)


class C4Params(Frozen):
    """Parameters of the annotator `c4`: the sentence splitter, and the conditions to keep a line."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove",
        description="Sentence splitter; the rules run in the order of datatrove 0.10. `datatrove`: sentences as in "
        "datatrove, by spaCy; `white-space`: sentences end with punctuation before white space.",
    )
    min_words_per_line: int = internal(
        3,
        ge=0,
        description="Minimum number of words in a line that is kept; the paper uses 3, DCLM 5.",
    )
    terminal_punctuation: bool = Field(
        True,
        description="If true, only lines that end a sentence are kept. FineWeb disables this rule.",
    )
    max_word_characters: int = internal(
        1000,
        ge=1,
        description="Maximum number of characters of a word in a line that is kept.",
    )


def annotate_c4(batch: pa.RecordBatch, params: C4Params) -> pa.RecordBatch:
    """Annotate each document with its number of lines by outcome of the rules, and the number of sentences in kept
    lines; see `plinth_text.rules.c4` for the rules."""
    lines = c4.Lines(
        params.min_words_per_line,
        params.max_word_characters,
        params.terminal_punctuation,
        params.profile == "datatrove",
    )
    n = c4.pages(batch.column("text"), lines).counts
    counts = [pa.array(np.ascontiguousarray(column)) for column in n.T.astype(np.int32)]
    return pa.record_batch([*counts, pa.array(ratio(n[:, c4.KEPT], n[:, c4.LINES]))], schema=C4_SCHEMA)


C4 = Annotator(
    name="c4",
    version="2",
    description="Lines that C4 would keep, their sentences, and lines caught by each of its rules.",
    source="Raffel et al. 2020, section 2.2; counted as in datatrove 0.10.",
    params=C4Params,
    schema=C4_SCHEMA,
    reads=("text",),
    annotate=annotate_c4,
)


# C4's line rules and the lines that they cut, in the order of three projects. Thresholds for pages are set in policies.
#
# Profile `paper` is the authors' code (TensorFlow Datasets, `c4_utils.py`) with the paper's first numbers, 3 words per
# line and 5 sentences. Profile `dclm` uses the paper's later numbers, 5 and 3, runs the rules as steps over the whole
# page, and keeps blank lines. Profile `dolma` is the tagger `c4_v2`, which matches phrases anywhere and has two checks
# per line.

#: Reasons why a line is cut, by number; 0 means the line is kept.
REASONS = ("", "long_word", "unended", "few_words", "javascript", "notice", "citation")
_LONG, _UNENDED, _FEW, _JAVASCRIPT, _NOTICE, _CITATION = range(1, 7)
_MIN_WORDS = {"paper": 3, "dclm": 5, "dolma": 3}

C4_LINES_SCHEMA = pa.schema(
    [
        pa.field("characters", pa.int32(), nullable=False),
        pa.field("lines", pa.int32(), nullable=False),
        pa.field("kept_lines", pa.int32(), nullable=False),  # without blank lines
        pa.field("sentences", pa.int32(), nullable=False),
        pa.field("lorem_ipsum", pa.bool_(), nullable=False),
        pa.field("curly_bracket", pa.bool_(), nullable=False),
        pa.field("javascript", pa.bool_(), nullable=False),
        pa.field("cuts", EDIT_TYPE, nullable=False),
    ]
)


class C4LinesParams(Frozen):
    """Parameters of the annotator `c4_lines`: the implementation of the rules, and their limits."""

    profile: Literal["paper", "dclm", "dolma"] = Field(
        "paper", description="Implementation that defines the rules and their order."
    )
    max_word_characters: int = internal(
        1000,
        ge=1,
        description="Maximum number of characters of a word; a line with a longer word is cut. `dolma` has no such "
        "limit.",
    )


def annotate_c4_lines(batch: pa.RecordBatch, params: C4LinesParams) -> pa.RecordBatch:
    """Annotate each document with its number of lines, the number of kept lines and of the sentences in them, whether
    it has phrases that drop a page, and the spans to cut."""
    citations = params.profile != "dolma"
    found = c4.lines(batch.column("text"), params.profile == "paper", params.max_word_characters, citations)
    why, lorem, curly = _JUDGES[params.profile](found, _MIN_WORDS[params.profile])
    doc = np.repeat(np.arange(batch.num_rows), np.diff(found.starts))
    stays = (why == 0) & ~_has(found, c4.BLANK)

    def count(chosen: Bools, weights: Any = None) -> npt.NDArray[Any]:
        return np.bincount(doc[chosen], None if weights is None else weights[chosen], batch.num_rows)

    columns = [
        pa.array(found.characters.astype(np.int32)),
        pa.array(np.diff(found.starts).astype(np.int32)),
        pa.array(count(stays).astype(np.int32)),
        pa.array(count(stays, found.sentences).astype(np.int32)),
        pa.array(count(lorem) > 0),
        pa.array(count(curly) > 0),
        pa.array(count(_has(found, c4.HAS_JAVASCRIPT)) > 0),
        _cuts(found, why, doc, batch.num_rows),
    ]
    return pa.record_batch(columns, schema=C4_LINES_SCHEMA)


def _has(found: c4.CitedLines, fact: int) -> Bools:
    there: Bools = (found.facts & fact) != 0
    return there


def _first(*rules: tuple[int, Bools]) -> U8:
    """Return, for each line, the number of the first rule that cuts the line, or 0 if no rule does."""
    why = np.zeros(rules[0][1].size, dtype=np.uint8)
    for number, caught in reversed(rules):
        why[caught] = number
    return why


def _paper(found: c4.CitedLines, min_words: int) -> tuple[U8, Bools, Bools]:
    """Apply the rules in the order of the C4 authors' code. A forbidden phrase drops the page, unless an earlier rule
    cuts the line that contains the phrase."""
    ended = _has(found, c4.ENDED) & ~_has(found, c4.DOTS)
    return _ordered(found, ended, found.words < min_words)


def _dclm(found: c4.CitedLines, min_words: int) -> tuple[U8, Bools, Bools]:
    """Apply C4's rules in the order of `_paper`, but keep empty lines, and allow white space at the end of a line."""
    empty = _has(found, c4.EMPTY)
    ended = _has(found, c4.BARE_ENDED) & ~_has(found, c4.BARE_DOTS)
    return _ordered(found, ended | empty, (found.words < min_words) & ~empty)


def _ordered(found: c4.CitedLines, ended: Bools, few: Bools) -> tuple[U8, Bools, Bools]:
    early = _first((_LONG, _has(found, c4.HAS_LONG_WORD)), (_UNENDED, ~ended), (_FEW, few))
    lorem = (early == 0) & _has(found, c4.HAS_LOREM_IPSUM)
    script = _has(found, c4.HAS_JAVASCRIPT)
    curly = (early == 0) & ~script & _has(found, c4.HAS_CURLY_BRACKET)
    late = _first((_JAVASCRIPT, script), (_NOTICE, _has(found, c4.HAS_NOTICE)))
    return np.where(early > 0, early, late).astype(np.uint8), lorem, curly


def _dolma(found: c4.CitedLines, min_words: int) -> tuple[U8, Bools, Bools]:
    """Apply C4's rules as Dolma does: phrases match anywhere in a line, and citations are kept."""
    why = _first((_UNENDED, ~_has(found, c4.ENDED)), (_FEW, found.words < min_words))
    return why, _has(found, c4.HAS_LOREM_IPSUM), _has(found, c4.HAS_CURLY_BRACKET)


_JUDGES: dict[str, Callable[[c4.CitedLines, int], tuple[U8, Bools, Bools]]] = {
    "paper": _paper,
    "dclm": _dclm,
    "dolma": _dolma,
}


def _cuts(found: c4.CitedLines, why: U8, doc: I64, rows: int) -> pa.Array:
    """Return the spans to cut, which are the lines that a rule cuts and the citations in the other lines."""
    line = np.flatnonzero(why)
    begin, end, reason, of = found.begin[line], found.end[line], why[line], doc[line]
    if found.cite_line.size:
        kept = why[found.cite_line] == 0
        begin = np.concatenate([begin, found.cite_begin[kept]])
        end = np.concatenate([end, found.cite_end[kept]])
        reason = np.concatenate([reason, np.full(int(kept.sum()), _CITATION, dtype=np.uint8)])
        of = np.concatenate([of, doc[found.cite_line[kept]]])
    return spans(of, begin, end, reason, REASONS, rows)


C4_LINES = Annotator(
    name="c4_lines",
    version="1",
    description="Lines that C4's rules cut, the sentences that are kept, and phrases that drop a page.",
    source="Raffel et al. 2020, section 2.2, with TFDS c4_utils.py; DCLM c4.yaml; dolma 1.2, tagger c4_v2.",
    params=C4LinesParams,
    schema=C4_LINES_SCHEMA,
    reads=("text",),
    annotate=annotate_c4_lines,
)

#: Why a line is cut, by number.
REFINEDWEB_LINES_REASONS = ("", "upper_case", "numeric", "counter", "one_word", "navigation")
REFINEDWEB_LINES_SCHEMA = pa.schema(
    [
        pa.field("words", pa.int32(), nullable=False),
        pa.field("removed_words", pa.float64(), nullable=False),  # as a share of all words
        pa.field("emptied", pa.bool_(), nullable=False),
        pa.field("cuts", EDIT_TYPE, nullable=False),
    ]
)


def annotate_refinedweb_lines(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with its number of words (by fastText's splitter) that begin with a letter or digit, the
    share of these words that the rules remove, whether no text is left, and the spans to cut."""
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
            spans(of, begin, end, why, REFINEDWEB_LINES_REASONS, batch.num_rows),
        ],
        schema=REFINEDWEB_LINES_SCHEMA,
    )


REFINEDWEB_LINES = Annotator(
    name="refinedweb_lines",
    version="1",
    description="Lines of navigation, counters, numbers and capitals, and the share of words in such lines.",
    source="Penedo et al. 2023 (RefinedWeb), section G.2; steps as in DCLM's dclm_baseline_refinedweb.yaml.",
    params=NoParams,
    schema=REFINEDWEB_LINES_SCHEMA,
    reads=("text",),
    annotate=annotate_refinedweb_lines,
)
