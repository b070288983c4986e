"""Counts behind FineWeb-2's rules, for text in any script (Penedo et al. 2025).

Words are those of `text.words.script_words`. Repeated n-grams are counted as in `repetition`; lines that end a sentence
and repeated characters as in `fineweb`; bullets and ellipses as in `gopher_quality`.

Stop words are looked up as words; in scripts without spaces in up to four words in a row too, because a splitter may
cut inside one; in Korean at the end of words too, where particles are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.rules import copies
from plinth.text.rules.copies import CopyBuffers, pack, repeated, tops
from plinth.text.unicode.characters import ALPHA, PUNCTUATION, TERMINAL, flags
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.unicode.scripts import HAN, MYANMAR, SIZE, kinds
from plinth.text.words.chunks import characters, hash_padded, hash_run, is_ascii
from plinth.text.words.hash_sets import seen, shift_for, slot_count
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.script_words import I32, ScriptSplitter, edge_buffer, split, splitter
from plinth.text.words.split import line_ends

#: Columns of `language_counts`; then the characters of repeated n-grams of 2 to 10 words.
(
    WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, LETTER_WORDS, STOP_WORDS, SENTENCES, LINES, REPEATED_LINES, CHARACTERS, GRAMS,
) = range(10)  # fmt: skip
_COLUMNS = GRAMS + 9

#: Most stop words of a language, one bit each; slots of its set.
MAX_STOP_WORDS, _SLOTS, _STARTS = 64, 256, 1024
_ROW = 4
_FIRST_HANGUL, _LAST_HANGUL = 0xAC00, 0xD7A3


class StopWords(NamedTuple):
    """Sets of stop words, L of them.

    Args:
        keys: [L, 256] hashes, 0 for an empty slot.
        numbers: [L, 256] the word's number in its list.
        starts: [L, 1024] whether a word starts with a character of this remainder: most words are ruled out by it.
    """

    keys: U64
    numbers: U8
    starts: npt.NDArray[np.bool_]


def stop_words(lists: Sequence[Sequence[str]]) -> StopWords:
    """Sets of these lists.

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
    """Counts of each text, [documents, 19]: words; words that are not only symbols and their characters; words with a
    letter; distinct stop words; sentences (a line end ends one too); runs of lines and those that came before;
    characters; characters in the most frequent n-gram of 2, 3 and 4 words, and in repeated ones of 5 to 10.

    Args:
        lists: [documents] the row of `stops` for each text, -1 for none.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), _COLUMNS), dtype=np.int64)
    longest = int(np.diff(offsets).max(initial=0))
    edges, buffers = edge_buffer(longest), copies.copy_buffers(longest, longest)
    _counts(data, offsets, lists, stops, flags(), kinds(), splitter(longest), edges, buffers, out)
    return out


@njit(nogil=True, cache=True)
def _counts(
    data: U8, offsets: I64, lists: I64, stops: StopWords, table: U8, scripts: U8, by: ScriptSplitter, edges: I32,
    buffers: CopyBuffers, out: I64,
) -> None:  # fmt: skip
    for doc in range(offsets.size - 1):
        text, size, counts = data[offsets[doc] :], offsets[doc + 1] - offsets[doc], out[doc]
        if not size:
            continue
        plain = is_ascii(text, 0, size)
        counts[CHARACTERS] = size if plain else characters(text, 0, size)
        n = split(text, 0, size, by, edges)
        _words(text, edges, n, table, counts)
        row = lists[doc]
        if row >= 0:
            counts[STOP_WORDS] = _stops(text, edges, n, scripts, stops.keys[row], stops.numbers[row], stops.starts[row])
        pack(text, edges, n, buffers)
        tops(n, plain, buffers, counts[GRAMS : GRAMS + 3])
        repeated(n, plain, buffers, counts[GRAMS + 3 :])
        _lines(text, size, edges, buffers.keys, counts)  # the words are counted: their edges may go


@njit(nogil=True, cache=True)
def _words(data: U8, edges: I32, n: int, table: U8, counts: I64) -> None:
    """Words, those with a letter, those that are not only symbols, their characters, and sentences."""
    text, stopped = False, np.int32(0)
    for i in range(n):
        start, end = edges[2 * i], edges[2 * i + 1]
        at, length, letter, plain, first = start, 0, False, False, np.uint8(0)
        while at < end:
            point, size = np.int64(data[at]), 1
            if point >= 128:
                point, size = decode(data, at, end)
            flag = table[point]
            first = flag if at == start else first
            letter |= (flag & ALPHA) != 0
            plain |= (flag & PUNCTUATION) == 0
            length += 1
            at += size
        counts[LETTER_WORDS] += letter
        counts[PLAIN_WORDS] += plain
        counts[PLAIN_CHARACTERS] += length * plain
        if text and (_breaks(data, stopped, start) or (first & TERMINAL and not plain)):
            counts[SENTENCES] += 1
            text = False
        text |= plain
        stopped = end
    counts[WORDS] = n
    counts[SENTENCES] += text


@njit(inline="always")
def _breaks(data: Any, start: Any, end: Any) -> Any:
    """Whether a line ends between two words."""
    found = False
    for at in range(start, end):
        found |= data[at] == 10
    return found


@njit(nogil=True, cache=True)
def _stops(data: U8, edges: I32, n: int, scripts: U8, keys: U64, numbers: U8, starts: npt.NDArray[np.bool_]) -> int:
    """Distinct stop words."""
    found = np.uint64(0)
    for i in range(n):
        start, end = edges[2 * i], edges[2 * i + 1]
        point = np.int64(data[start])
        if point >= 128:
            point, _ = decode(data, start, end)
        if starts[point & (_STARTS - 1)]:
            found |= _stop(data, start, end, keys, numbers)
            if point < SIZE and HAN <= scripts[point] <= MYANMAR:
                for k in range(i + 1, min(i + _ROW, n)):
                    if edges[2 * k] != edges[2 * k - 1]:
                        break
                    found |= _stop(data, start, edges[2 * k + 1], keys, numbers)
        if _FIRST_HANGUL <= point <= _LAST_HANGUL:
            for syllables in range(1, 3):
                if end - start > 3 * syllables:
                    found |= _stop(data, end - 3 * syllables, end, keys, numbers)
    count: Any = np.int64(0)
    for bit in range(MAX_STOP_WORDS):
        count += np.int64((found >> np.uint64(bit)) & np.uint64(1))
    return int(count)


@njit(inline="always")
def _stop(data: Any, start: Any, end: Any, keys: Any, numbers: Any) -> Any:
    """The bit of a stop word, or 0."""
    value = np.uint64(hash_padded(data, start, end) if end + 8 <= data.size else hash_run(data, start, end))
    value |= np.uint64(value == 0)
    slot = np.int64(value & np.uint64(_SLOTS - 1))
    while keys[slot] != 0 and keys[slot] != value:
        slot = (slot + 1) & (_SLOTS - 1)
    return np.uint64(keys[slot] != 0) << np.uint64(numbers[slot])


@njit(nogil=True, cache=True)
def _lines(data: U8, end: int, ends: I32, keys: U64, counts: I64) -> None:
    """Pieces between runs of line ends, and those that came before."""
    found = line_ends(data, 0, end, ends)
    size = slot_count(min(found + 1, end // 2 + 3))
    shift = shift_for(size)
    keys[:size] = 0
    begin = 0
    for i in range(found + 1):
        stop = int(ends[i]) if i < found else end
        if i == found or i == 0 or stop > begin:  # an empty piece inside belongs to a run of line ends
            counts[LINES] += 1
            counts[REPEATED_LINES] += seen(keys, size, shift, hash_run(data, begin, stop))
        begin = stop + 1
