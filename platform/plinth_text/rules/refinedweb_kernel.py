"""RefinedWeb's line rules (Penedo et al. 2023, table 5) as DCLM's code applies them, step by step over a page.

Lines end with `\\n`. In this order: a line goes when more than half of its characters are upper case; when all are
digits; when it is a counter ("3 likes"); when it is not empty and has fewer than two words; and from lines of at most
ten words "items in cart", a closing "read more" with three characters behind it, and an opening "sign-in" are taken
out. Between the steps the page loses the white space at its ends. Words that count are those of fastText's splitter,
which knows ASCII white space only, when they begin with a letter or digit.

The few pages with one of the three phrases are left to `refinedweb_reference`, which works on Python strings.

Letters: D texts, L lines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U16, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode.classes import classes
from plinth_text.unicode.codepoints import utf8

#: Why a line is cut.
UPPER_CASE, NUMERIC, COUNTER, ONE_WORD, NAVIGATION = range(1, 6)
#: Above these shares of a line's characters it goes (DCLM, `dclm_baseline_refinedweb.yaml`).
MAX_UPPER, MAX_DIGITS = 0.5, 0.999999
#: Fewer words than this and a line goes; phrases are looked for in lines of at most so many.
MIN_WORDS, MAX_NAVIGATION_WORDS = 2, 10

#: Nouns of a counter.
COUNTED = (
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes", "downloads",
    "views", "followers",
)  # fmt: skip
#: Facts of a line (`Facts` in `refinedweb_kernel.c`).
_FACTS = 14


class LineCuts(NamedTuple):
    """The lines that the rules cut from a column of texts.

    Args:
        words, left: [D] words before and after.
        emptied: [D] whether a step left nothing.
        of, begin, end, why: [L] the lines that are cut: text, code points (half open, the line end inside), reason.
        hard: [D] texts that `refinedweb_reference` must judge; the other fields leave them out.
    """

    words: I64
    left: I64
    emptied: Bools
    of: I64
    begin: I32
    end: I32
    why: U8
    hard: Bools


def line_cuts(texts: pa.Array) -> LineCuts:
    """Apply the rules to every text."""
    data, offsets = utf8(texts)
    documents = offsets.size - 1
    most = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + documents
    per_text = np.zeros((2, documents), dtype=np.int64)
    emptied, hard = np.zeros(documents, dtype=np.bool_), np.zeros(documents, dtype=np.bool_)
    of, places = np.zeros(most, dtype=np.int64), np.zeros((2, most), dtype=np.int32)
    why = np.zeros(most, dtype=np.uint8)
    facts = np.zeros((_FACTS, most + 1), dtype=np.int32)
    n = cuts(data, offsets, classes(), facts, per_text, emptied, hard, of, places, why)
    return LineCuts(per_text[0], per_text[1], emptied, of[:n], places[0, :n], places[1, :n], why[:n], hard)


@compiled
def cuts(
    data: U8, offsets: I64, table: U16, facts: I32, per_text: I64, emptied: Bools, hard: Bools, of: I64, places: I32,
    why: U8,
) -> int:  # fmt: skip
    """Fill in `LineCuts`; returns the number of lines that are cut. `facts`: scratch, [`_FACTS`, lines of a text]."""
