r"""Counts for FineWeb's line rules (Penedo et al. 2024, section 3.4) and FineWeb-2's rules (Penedo et al. 2025).

Lines are separated by `\n`, as in datatrove. Words are spaCy's, or separated by white space. FineWeb applies C4's rules
first; its own rules then count only the lines that C4 keeps (`c4.pages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.english import column_words
from plinth_text.rules import gopher
from plinth_text.unicode import flags, utf8
from plinth_text.words import edge_buffer, hash_run, script_words, slots
from plinth_text.words.script_words import splitter

#: Columns of `fineweb_counts`.
(FULL_LINES, ENDED, SHORT, DUPLICATE_CHARACTERS, CHARACTERS, NEWLINES, WORDS) = range(7)


def fineweb_counts(
    data: U8, offsets: I64, short_line: int, english: bool = False, words: I64 | None = None
) -> I64:
    """Count lines, characters and words for FineWeb's rules, [documents, 7].

    The columns are: lines that are not blank; of these, lines that end a sentence, and lines of at most `short_line`
    characters; characters in repeated lines; characters without line ends; line ends; and words.

    Args:
        data, offsets: the texts, in the form of `unicode.utf8` and `c4.pages`.
        english: True if words are spaCy's.
        words: number of words in each text, if known.
    """
    out = np.zeros((offsets.size - 1, 7), dtype=np.int64)
    keys = slots(int(np.diff(offsets).max(initial=0)) // 2 + 1)  # a full line is a character and a line end
    if words is None:
        words = np.diff(column_words(data, offsets).first) if english else np.zeros(0, dtype=np.int64)
    fineweb(data, offsets, flags(), short_line, words, edge_buffer(offsets), keys, out)
    return out


@compiled
def fineweb(
    data: U8, offsets: I64, table: U8, short_line: int, words: I64, ends: I64, keys: U64, out: I64
) -> None:
    """Write the counts of all texts into `out`."""


# FineWeb-2, for text in any script.
#
# Words are those of `words.script_words`. Repeated n-grams are counted as in `gopher.repetition_shares`; lines that end
# a sentence and repeated characters as in `fineweb_counts`; bullets and ellipses as in `gopher_counts`.
#
# Stop words are looked up as words; in scripts without spaces in up to four words in a row too, because a splitter may
# cut inside one; in Korean at the end of words too, where particles are written.

#: Columns of `language_counts`; then the characters of repeated n-grams of 2 to 10 words.
(
    LANGUAGE_WORDS, LANGUAGE_PLAIN_WORDS, LANGUAGE_PLAIN_CHARACTERS, LANGUAGE_LETTER_WORDS, LANGUAGE_STOP_WORDS,
    LANGUAGE_SENTENCES, LANGUAGE_LINES, LANGUAGE_REPEATED_LINES, LANGUAGE_CHARACTERS, LANGUAGE_GRAMS,
) = range(10)  # fmt: skip
_COLUMNS = LANGUAGE_GRAMS + 9

#: Most stop words of a language, one bit each; slots of its set.
MAX_STOP_WORDS, _SLOTS, _STARTS = 64, 256, 1024


class StopWords(NamedTuple):
    """Sets of stop words, one for each of L lists.

    Args:
        keys: [L, 256] hashes, 0 for an empty slot.
        numbers: [L, 256] number of the word in its list.
        starts: [L, 1024] True if a stop word starts with a code point of this remainder modulo 1024; rules out most
            words.
    """

    keys: U64
    numbers: U8
    starts: Bools


def stop_words(lists: Sequence[Sequence[str]]) -> StopWords:
    """Return hash sets for these lists of stop words.

    Raises:
        ValueError: a list is longer than `MAX_STOP_WORDS`.
    """
    made = StopWords(
        np.zeros((len(lists), _SLOTS), dtype=np.uint64), np.zeros((len(lists), _SLOTS), dtype=np.uint8),
        np.zeros((len(lists), _STARTS), dtype=np.bool_),
    )  # fmt: skip
    for row, words in enumerate(lists):
        if len(words) > MAX_STOP_WORDS:
            raise ValueError(f"{len(words)} stop words, expected at most {MAX_STOP_WORDS}")
        for number, word in enumerate(words):
            data = np.frombuffer(word.encode(), dtype=np.uint8)
            value = int(hash_run(data, 0, data.size)) or 1
            slot = value % _SLOTS
            while made.keys[row, slot]:
                slot = (slot + 1) % _SLOTS
            made.keys[row, slot], made.numbers[row, slot] = value, number
            made.starts[row, ord(word[0]) % _STARTS] = True
    return made


def language_counts(texts: pa.Array, lists: npt.NDArray[np.int64], stops: StopWords) -> I64:
    """Count words, lines and n-grams for FineWeb-2's rules, [documents, 19].

    The columns are: words; words that are not only symbols, and their characters; words with a letter; distinct stop
    words; sentences (a line end ends a sentence too); runs of lines, and runs that occurred before; characters;
    characters in the most frequent n-gram of 2, 3 and 4 words; and characters in repeated n-grams of 5 to 10 words.

    Args:
        lists: [documents] row of `stops` for each text, or -1 for none.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), _COLUMNS), dtype=np.int64)
    longest = int(np.diff(offsets).max(initial=0))
    edges, buffers = script_words.edge_buffer(longest), gopher.copy_buffers(longest, longest)
    count_language(data, offsets, lists, *stops, flags(), *splitter(longest).arguments(), edges, *buffers, out)  # type: ignore[call-arg]
    return out


@compiled
def count_language(
    data: U8, offsets: I64, lists: I64, stop_keys: U64, stop_numbers: U8, stop_starts: Bools, table: U8, kinds: U8,
    variants: npt.NDArray[np.int8], ids: npt.NDArray[np.uint16], singles: I32, model_keys: U64, weights: I32,
    bases: I64, points: I32, point_places: I32, here: U8, scores: I32, first: Bools, thai: Bools, edges: I32,
    packed: U8, places: I32, words: U64, grams: U64, buckets: I32, starts: I32, limits: I32, active: I32,
    counts: I32, keys: U64, tally: I32, firsts: I32, out: I64,
) -> None:  # fmt: skip
    """Write the counts of all texts into `out`.

    The arguments after `lists` are those of `StopWords`, the flags of characters, a splitter
    (`ScriptSplitter.arguments`) with its edges, and `CopyBuffers`.
    """
