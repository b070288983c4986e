"""Obfuscated terms: words written with signs for letters or with repeated letters, and words in single letters.

A piece is a run of letters and of characters that may stand for one (`fold_letters`). Its letters are hashed only where
it shows obfuscation: a sign, a digit, an accent or another alphabet's letter among plain ones, or one letter three
times in a row. Does not belong here: the lexicon, and which hits count (`terms`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plinth.compiled import njit
from plinth.text.unicode.codepoints import decode
from plinth.text.unicode.fold_letters import BOTH, FOLDED, INVISIBLE, LEET, LEET_L, MARK, SIGN, code
from plinth.text.words.hash_sets import FNV, PRIME
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.word_hashes import mix

FILTER_BITS = 16
#: Letters of the longest run of single letters in which terms are sought, and of the shortest term.
_RUN, MIN_LETTERS = 24, 3
#: By byte: whether it is a plain letter.
_PLAIN = np.array([byte < 128 and chr(byte).isalpha() for byte in range(256)])


@njit(nogil=True, cache=True)
def grown(rows: I64, count: int) -> I64:
    """The same rows, twice as many where they are full."""
    if count < rows.shape[0]:
        return rows
    more = np.empty((2 * rows.shape[0], rows.shape[1]), dtype=np.int64)
    more[: rows.shape[0]] = rows
    return more


@njit(inline="always")
def look_up(table: Any, bits: Any, value: Any) -> Any:
    """Position of a hash in a sorted table, or -1."""
    found = np.int64(-1)
    if bits[value >> np.uint64(64 - FILTER_BITS)]:
        at = np.searchsorted(table, value)
        if at < table.size and table[at] == value:
            found = np.int64(at)
    return found


@njit(nogil=True, cache=True)
def obfuscated_terms(
    data: U8, start: int, end: int, out: I64, skeletons: U64, terms: I64, bits: Any, runs: U64, run_terms: I64,
    run_bits: Any,
) -> tuple[I64, int]:  # fmt: skip
    """Terms in pieces that show obfuscation, and in runs of single letters."""
    count = 0
    before: Any = np.int64(-1)
    at: Any = start
    # of the piece: bytes, letters, signs of obfuscation, the run of one letter
    first: Any = np.int64(-1)
    last: Any = start
    letters: Any = 0
    size: Any = 0
    shows, repeated, row = False, False, 0
    # single letters that stand apart: where each begins, its letter, what separates them
    places, singles, joint, run = np.empty(_RUN, np.int64), np.empty(_RUN, np.int64), np.int64(-1), 0
    last_single: Any = start
    while at <= end:
        here = at
        while at < end and _PLAIN[data[at]]:  # most of any text, and obfuscated only by repetition
            lower = np.int64(data[at]) | 32
            row = row + 1 if lower == before else 1
            repeated |= row >= 3
            before = lower
            at += 1
        if at > here:
            first, last = (here if first < 0 else first), at
            letters, size = letters + at - here, size + at - here
        point, length = np.int64(10), 1
        if at < end:
            point = np.int64(data[at])
            if point >= 128:
                point, length = decode(data, at, end)
        sort = code(point)
        plain = sort & FOLDED
        if at < end and sort and not (sort & MARK and _ends(data, at + length, end)):
            first = at if first < 0 else first
            last = at + length
            shows |= sort & LEET != 0
            if plain != INVISIBLE:
                letters += (sort & SIGN) == 0
                size += 1
                row = row + 1 if plain == before else 1
                repeated |= row >= 3 and sort & LEET == 0
                before = plain
        else:
            if first >= 0 and size > 1 and letters and (shows or repeated):
                one, two, once = _hashed(data, first, last)
                found = look_up(skeletons, bits, one)
                found = found if found >= 0 else look_up(skeletons, bits, two)
                term = terms[found] if found >= 0 else np.int64(-1)
                if term < 0 and repeated:
                    found = look_up(runs, run_bits, once)
                    term = run_terms[found] if found >= 0 else term
                if term >= 0:
                    out = grown(out, count)
                    out[count] = first, last, term
                    count += 1
            single = size == 1 and letters == 1
            if first >= 0 and (run or single):
                mark = np.int64(data[first - 1]) if first > start else np.int64(10)
                beside = single and 0 < run < _RUN and last_single + 1 == first and mark != 10
                if not beside or (run > 1 and mark != joint):
                    out, count = _apart(places, singles, run, last_single, out, count, skeletons, terms, bits)
                    if beside:  # the letter before begins a run of another mark
                        places[0], singles[0] = places[run - 1], singles[run - 1]
                    run = 1 if beside else 0
                joint = mark
                if single:
                    places[run], singles[run] = first, before
                    run, last_single = run + 1, last
            if at == end:
                out, count = _apart(places, singles, run, last_single, out, count, skeletons, terms, bits)
            first, letters, size, before = np.int64(-1), 0, 0, np.int64(-1)
            shows, repeated, row = False, False, 0
        at += length
    return out, count


@njit(nogil=True, cache=True)
def _hashed(data: U8, start: int, end: int) -> tuple[Any, Any, Any]:
    """Hashes of a piece's letters: signs for i or l read as i, as l, and runs of one letter once."""
    one, two, once = FNV, FNV, FNV
    at: Any = start
    before: Any = np.int64(-1)
    while at < end:
        point, length = np.int64(data[at]), 1
        if point >= 128:
            point, length = decode(data, at, end)
        sort = code(point)
        plain = sort & FOLDED
        if plain != INVISIBLE:
            other = np.int64(LEET_L) if sort & BOTH else plain
            one, two = (one ^ np.uint64(plain)) * PRIME, (two ^ np.uint64(other)) * PRIME
            once = (once ^ np.uint64(plain)) * PRIME if plain != before else once
            before = plain
        at += length
    return mix(one), mix(two), mix(once)


@njit(inline="always")
def _ends(data: Any, at: Any, end: Any) -> Any:
    """Whether the piece is over: a mark such as `!` is a letter only before another one."""
    after = np.int64(data[at]) if at < end else np.int64(32)
    return not (after >= 128 or 97 <= after <= 122 or 65 <= after <= 90 or 48 <= after <= 57)


@njit(nogil=True, cache=True)
def _apart(
    places: I64, singles: I64, run: int, end: int, out: I64, count: int, skeletons: U64, terms: I64, bits: Any
) -> tuple[I64, int]:
    """Terms spelt in single letters: from every letter on the longest one."""
    i = 0
    while i + MIN_LETTERS <= run:
        value, taken, term = FNV, 0, np.int64(-1)
        for j in range(i, run):
            value = (value ^ np.uint64(singles[j])) * PRIME
            found = look_up(skeletons, bits, mix(value)) if j - i + 1 >= MIN_LETTERS else np.int64(-1)
            if found >= 0:
                taken, term = j - i + 1, terms[found]
        if taken:
            out = grown(out, count)
            out[count] = places[i], (places[i + taken] - 1 if i + taken < run else end), term
            count += 1
        i += max(taken, 1)
    return out, count
