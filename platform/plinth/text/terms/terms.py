"""Find the words and phrases of a lexicon in texts: whole words only, in any case, and lightly obfuscated ones.

A term matches where its words stand one after the other, by the words of `ngrams`; of terms that begin at one word the
longest counts. A term of one word is also found obfuscated, where the text shows one of these signs:

- digits and signs for letters (`h3ll0`, `$pam`), at least one letter among them;
- a letter three times or more in a row (`spaaaam`): then runs count once, in text and term;
- single letters with one and the same character between them (`s.p.a.m`, `s p a m`), three or more;
- accents, letters of other alphabets that look the same, wide letters, invisible characters inside.

Spans are in code points. Letters: D texts, T terms, H hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.terms.obfuscation import FILTER_BITS, MIN_LETTERS, grown, look_up, obfuscated_terms
from plinth.text.unicode.codepoints import LOWER, SEPARATOR, SINGLE, decode, kind, utf8
from plinth.text.unicode.fold_letters import FOLDED, INVISIBLE, code
from plinth.text.words.hash_sets import FNV, PRIME
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.word_hashes import hash_words, mix, scratch

#: Words of the longest phrase.
MAX_WORDS = 8
_NEXT = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class TermHits:
    """Hits of all texts in reading order, disjoint: those of text d are `starts[d]:starts[d + 1]`.

    Args:
        starts: [D + 1].
        terms: [H], positions in the list of terms.
        spans: [H, 2], first code point and the one after the last.
        obfuscated: [H], whether the text obfuscated the term.
    """

    starts: I64
    terms: I64
    spans: I64
    obfuscated: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Table:
    """Sorted hashes, the term and number of words of each, and a filter of their top bits."""

    hashes: U64
    terms: I64
    bits: npt.NDArray[np.bool_]


class TermTable:
    """Terms, ready to be searched for.

    Raises:
        ValueError: a term without words, or with more than `MAX_WORDS`.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        self.terms = tuple(terms)
        phrases: dict[int, int] = {}
        firsts: dict[int, int] = {}
        skeletons: dict[int, int] = {}
        collapsed: dict[int, int] = {}
        for index, term in enumerate(self.terms):
            words = _word_hashes(term)
            if not 0 < words.size <= MAX_WORDS:
                raise ValueError(f"{term!r} has {words.size} words, expected 1 to {MAX_WORDS}")
            phrases.setdefault(int(_joined(words, 0, words.size)), index)
            firsts[int(words[0])] = max(firsts.get(int(words[0]), 0), words.size)
            if words.size == 1:
                plain, runs, letters = _skeletons(term)
                if letters >= MIN_LETTERS:
                    skeletons.setdefault(plain, index)
                    collapsed.setdefault(runs, index)
        self._tables = tuple(_table(one) for one in (firsts, phrases, skeletons, collapsed))

    def find(self, texts: pa.Array, obfuscated: bool = True) -> TermHits:
        """All hits.

        Args:
            obfuscated: whether to find obfuscated terms as well.
        """
        data, offsets = utf8(texts)
        words = scratch(offsets)
        ends = np.empty((words.size, 2), dtype=np.int64)
        starts = np.zeros(offsets.size, dtype=np.int64)
        one, two, three, four = self._tables
        found = _find(
            data, offsets, words, ends, starts, obfuscated,
            one.hashes, one.terms, one.bits, two.hashes, two.terms, two.bits,
            three.hashes, three.terms, three.bits, four.hashes, four.terms, four.bits,
        )  # fmt: skip
        return TermHits(starts, found[:, 0].copy(), found[:, 1:3].copy(), found[:, 3].astype(np.bool_))

    @staticmethod
    def word_counts(texts: pa.Array) -> I64:
        """The number of words of every text, [D]."""
        data, offsets = utf8(texts)
        words = scratch(offsets)
        out = np.zeros(len(texts), dtype=np.int64)
        for doc in range(out.size):
            out[doc] = hash_words(data, offsets[doc], offsets[doc + 1], words)
        return out


def _table(values: dict[int, int]) -> _Table:
    keys = np.array(sorted(values), dtype=np.uint64)
    bits = np.zeros(1 << FILTER_BITS, dtype=np.bool_)
    bits[keys >> np.uint64(64 - FILTER_BITS)] = True
    return _Table(keys, np.array([values[int(key)] for key in keys], dtype=np.int64), bits)


def _word_hashes(term: str) -> U64:
    data, offsets = utf8(pa.array([term], pa.large_string()))
    words = scratch(offsets)
    ends = np.empty((words.size, 2), dtype=np.int64)
    return words[: _words(data, offsets[0], offsets[1], words, ends)]


def _skeletons(term: str) -> tuple[int, int, int]:
    """Hashes of a word's letters, as they are and with runs once, and their number."""
    plain, runs, letters, before = int(FNV), int(FNV), 0, -1
    for character in term:
        point = int(code(ord(character))) & FOLDED
        if point == INVISIBLE:
            continue
        plain, letters = _fnv(plain, point), letters + 1
        runs = _fnv(runs, point) if point != before else runs
        before = point
    return int(mix(np.uint64(plain))), int(mix(np.uint64(runs))), letters


def _fnv(value: int, point: int) -> int:
    return ((value ^ point) * int(PRIME)) & 0xFFFFFFFFFFFFFFFF


@njit(nogil=True, cache=True)
def _find(
    data: U8, offsets: I64, words: U64, ends: I64, starts: I64, obfuscated: bool,
    firsts: U64, lengths: I64, first_bits: Any, phrases: U64, terms: I64, phrase_bits: Any,
    skeletons: U64, skeleton_terms: I64, skeleton_bits: Any, runs: U64, run_terms: I64, run_bits: Any,
) -> I64:  # fmt: skip
    found, count = np.empty((64, 4), dtype=np.int64), 0
    plain, hidden = np.empty((64, 3), dtype=np.int64), np.empty((64, 3), dtype=np.int64)
    for doc in range(offsets.size - 1):
        start, end = offsets[doc], offsets[doc + 1]
        total = _words(data, start, end, words, ends)
        clear, i = 0, 0
        while i < total:
            taken = 0
            place = look_up(firsts, first_bits, words[i])
            if place >= 0:
                for length in range(min(lengths[place], total - i), 0, -1):
                    at = look_up(phrases, phrase_bits, _joined(words, i, length))
                    if at >= 0 and taken == 0:
                        taken = length
                        plain = grown(plain, clear)
                        plain[clear] = ends[i, 0], ends[i + length - 1, 1], terms[at]
                        clear += 1
            i += max(taken, 1)
        covered = 0
        if obfuscated:
            hidden, covered = obfuscated_terms(data, start, end, hidden, skeletons, skeleton_terms, skeleton_bits,
                                         runs, run_terms, run_bits)  # fmt: skip
        a, b, points = 0, 0, 0
        reached: Any = start
        byte: Any = start
        while a < clear or b < covered:
            take_plain = b >= covered or (a < clear and plain[a, 0] <= hidden[b, 0])
            hit = plain[a] if take_plain else hidden[b]
            if hit[0] >= reached:
                found = grown(found, count)
                while byte < hit[0]:
                    points += (data[byte] & 0xC0) != 0x80
                    byte += 1
                found[count, 0], found[count, 1], found[count, 3] = hit[2], points, not take_plain
                while byte < hit[1]:
                    points += (data[byte] & 0xC0) != 0x80
                    byte += 1
                found[count, 2] = points
                reached = hit[1]
                count += 1
            a += take_plain
            b += not take_plain
        starts[doc + 1] = count
    return found[:count]


@njit(nogil=True, cache=True)
def _joined(words: U64, start: int, count: int) -> Any:
    value = words[start]
    for i in range(start + 1, start + count):
        value = mix(value * _NEXT + words[i])
    return value


@njit(nogil=True, cache=True)
def _words(data: U8, start: int, end: int, words: U64, ends: I64) -> int:
    """Hashes of words with the bytes where they begin and end; `words` and `ends` as for `hash_words`."""
    count, value = 0, FNV
    at: Any = start
    first: Any = np.int64(-1)
    what: Any = SEPARATOR
    while at < end:
        point, size = np.int64(data[at]), 1
        if point < 128:
            what = 0 if 97 <= point <= 122 or 65 <= point <= 90 or 48 <= point <= 57 or point == 95 else SEPARATOR
        else:
            point, size = decode(data, at, end)
            what = np.int64(kind(point))
        if what != 0 and first >= 0:
            words[count], ends[count, 0], ends[count, 1] = mix(value), first, at
            count, value, first = count + 1, FNV, np.int64(-1)
        if what != SEPARATOR:
            lower = np.uint64(LOWER[point]) if point < LOWER.size else np.uint64(point)
            first = at if first < 0 else first
            value = (value ^ lower) * PRIME
        if what == SINGLE:
            words[count], ends[count, 0], ends[count, 1] = mix(value), at, at + size
            count, value, first = count + 1, FNV, np.int64(-1)
        at += size
    if first >= 0:
        words[count], ends[count, 0], ends[count, 1] = mix(value), first, end
        count += 1
    return count
