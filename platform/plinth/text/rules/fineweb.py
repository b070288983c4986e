"""Counts behind FineWeb's line rules (Penedo et al. 2024, section 3.4).

Lines are separated by `\\n`, as in datatrove; words are spaCy's, or what white space separates. FineWeb's own order has
C4 before these rules, which counts what C4 leaves of a text: `c4_pages.kept_lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plinth.compiled import kernel, njit
from plinth.text.english.columns import column_words
from plinth.text.unicode.characters import SPACE, TERMINAL, flags
from plinth.text.unicode.codepoints import decode
from plinth.text.words.chunks import characters, hash_run, is_ascii
from plinth.text.words.hash_sets import seen, shift_for, slot_count, slots
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.split import count_words, edge_buffer, line_ends

#: Columns of `fineweb_counts`.
(FULL_LINES, ENDED, SHORT, DUPLICATE_CHARACTERS, CHARACTERS, NEWLINES, WORDS) = range(7)


def fineweb_counts(
    data: U8, offsets: I64, short_line: int, english: bool = False, words: I64 | None = None
) -> I64:
    """Counts of each text, [documents, 7]: lines with a character that is not white space, of those the ones
    that end a sentence and the ones of at most `short_line` characters, characters in repeated lines,
    characters without line ends, line ends, and words.

    Args:
        data, offsets: the texts, as `codepoints.utf8` and `c4_pages.kept_lines` give them.
        english: words are spaCy's.
        words: how many each text has, where that is known.
    """
    out = np.zeros((offsets.size - 1, 7), dtype=np.int64)
    keys = slots(int(np.diff(offsets).max(initial=0)) // 2 + 1)  # a full line is a character and a line end
    if words is None:
        words = np.diff(column_words(data, offsets).first) if english else np.zeros(0, dtype=np.int64)
    _fineweb(data, offsets, flags(), short_line, words, edge_buffer(offsets), keys, out)
    return out


@kernel
def _fineweb(
    data: U8, offsets: I64, table: U8, short_line: int, words: I64, ends: I64, keys: U64, out: I64
) -> None:
    for doc in range(offsets.size - 1):
        counts, start, end = out[doc], offsets[doc], offsets[doc + 1]
        plain = is_ascii(data, start, end)
        counts[WORDS] = words[doc] if words.size else count_words(data, start, end, plain, table)
        found = line_ends(data, start, end, ends)
        counts[NEWLINES] = found
        counts[CHARACTERS] = (end - start if plain else characters(data, start, end)) - found
        slots = slot_count(min(found, (end - start) // 2) + 1)
        shift = shift_for(slots)
        keys[:slots] = 0
        ends[found] = end
        begin = start
        for i in range(found + 1):
            stop = ends[i]
            if not _blank(data, begin, stop, table):
                size = stop - begin if plain else characters(data, begin, stop)
                counts[FULL_LINES] += 1
                counts[ENDED] += (_last(data, begin, stop, table) & TERMINAL) != 0
                counts[SHORT] += size <= short_line
                if seen(keys, slots, shift, hash_run(data, begin, stop)):
                    counts[DUPLICATE_CHARACTERS] += size
            begin = stop + 1


@kernel
def _blank(data: U8, start: int, end: int, table: U8) -> bool:
    """Whether there is nothing but white space."""
    at = start
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        if not table[point] & SPACE:
            return False
        at += size
    return True


@njit(inline="always")
def _last(data: Any, start: Any, end: Any, table: Any) -> Any:
    """Flags of the last character."""
    at = end - 1
    point = np.int64(data[at])
    if point >= 128:
        while at > start and data[at] & 0xC0 == 0x80:
            at -= 1
        point, _ = decode(data, at, end)
    return table[point]
