"""The words of a text as spaCy's blank English tokenizer has them (`spacy/tokenizer.pyx`), white space left out.

A chunk is what stands between white space. Prefixes and suffixes are taken off its ends until none is left or an
exception remains; what remains is an exception with its pieces, a URL, or is split at infixes. Most chunks are letters
alone and one word. Exceptions across words come last (`merges`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth.compiled import kernel
from plinth.text.english.affixes import infix, prefix, suffix
from plinth.text.english.merges import Merges, merged, merges_of
from plinth.text.english.tables import (
    BEFORE_PERIOD,
    BLANK,
    I32,
    I64,
    INERT,
    JOINT,
    NUMBER,
    SUFFIX,
    U8,
    U16,
    U64,
    EnglishRules,
    exception_at,
    put_pieces,
    rules,
    source,
    with_exceptions,
)
from plinth.text.english.urls import is_url
from plinth.text.unicode.codepoints import decode
from plinth.text.words.chunks import letters_end

_DOT = 46


class Splitter(NamedTuple):
    """Tables, and scratch memory for the longest text of a column.

    Args:
        rules, merges: the tables.
        points: code points of a chunk.
        places: where each starts; in the second half, where suffixes of the chunk start, from the last.
        matched: by word: bit n where an exception of n words starts.
        starts, taken, copy: for the exceptions across words.
    """

    rules: EnglishRules
    merges: Merges
    points: I32
    places: I32
    matched: npt.NDArray[np.uint64]
    starts: I64
    taken: U8
    copy: I32


def splitter(longest: int) -> Splitter:
    """For texts of up to `longest` bytes; untouched pages cost nothing."""
    return _splitter(rules(), _merges(), longest)


def edge_buffer(longest: int) -> I32:
    """A buffer for the edges of the words of the longest text: every character may be one."""
    return np.empty(2 * longest + 4, dtype=np.int32)


def _splitter(tables: EnglishRules, merges: Merges, longest: int) -> Splitter:
    return Splitter(
        tables, merges, np.empty(longest + 1, dtype=np.int32), np.empty(2 * longest + 2, dtype=np.int32),
        np.empty(longest + 1, dtype=np.uint64), np.empty(longest + 1, dtype=np.int64),
        np.empty(longest + 1, dtype=np.uint8), edge_buffer(longest),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _merges() -> Merges:
    """The exceptions that are several words when no exception is known."""
    bare, found = _splitter(with_exceptions([]), merges_of([]), 256), []
    for spaced in source()["exceptions"]:
        text = np.frombuffer(spaced.replace(" ", "").encode(), dtype=np.uint8)
        edges = edge_buffer(text.size)
        count = split(text, 0, text.size, bare, edges)
        if count > 1:
            found.append([text[edges[2 * i] : edges[2 * i + 1]].copy() for i in range(count)])
    return merges_of(found)


@kernel
def split(data: U8, start: int, end: int, by: Splitter, edges: I32) -> int:
    """The words of `data[start:end]`: word i is `data[edges[2 * i] : edges[2 * i + 1]]`; returns how many."""
    count, chunks = _chunks(data, start, end, by.rules.flags, by.rules.tables, by.points, by.places, edges)
    return merged(data, count, by, edges) if chunks else count


@kernel
def _chunks(
    data: U8, start: int, end: int, flags: U16, tables: U64, points: I32, places: I32, edges: I32
) -> tuple[int, int]:
    """The words before exceptions across them, and how many chunks are more than letters."""
    count, at, chunks = 0, start, 0
    while at < end:
        begin = at
        at = letters_end(data, begin, end)
        if at > begin and (at == end or (data[at] < 128 and flags[data[at]] & BLANK)):
            count = _plain(data, begin, at, tables, edges, count)
            at += 1
            continue
        at, size, last, what = begin, 1, begin, np.uint16(0)
        most, all_but_last, previous = np.uint16(INERT), np.uint16(INERT), np.uint16(0)
        while at < end:
            point, size = np.int64(data[at]), 1
            if point >= 128:
                point, size = decode(data, at, end)
            here = flags[point]
            if here & BLANK:
                break
            all_but_last, previous, last, what = most, what, at, here
            most &= here
            at += size
        if at > begin:
            if most:
                count = _plain(data, begin, at, tables, edges, count)
            elif (
                all_but_last
                and last > begin
                and (what & SUFFIX or (data[last] == _DOT and previous & BEFORE_PERIOD))
                and exception_at(data, begin, at, tables) < 0
            ):  # letters and one mark
                count = _plain(data, begin, last, tables, edges, count)
                edges[2 * count], edges[2 * count + 1] = last, at
                count += 1
                chunks += 1
            else:
                count = _chunk(data, begin, at, flags, tables, points, places, edges, count)
                chunks += 1
        at += size if at < end else 0
    return count, chunks


@kernel
def _plain(data: U8, start: int, end: int, tables: U64, edges: I32, count: int) -> int:
    """Append letters as one word, or as the pieces of an exception; returns how many words there are then."""
    slot = exception_at(data, start, end, tables)
    if slot >= 0:
        return put_pieces(slot, start, tables, edges, count)
    edges[2 * count], edges[2 * count + 1] = start, end
    return count + 1


@kernel
def _chunk(
    data: U8, start: int, end: int, flags: U16, tables: U64, points: I32, places: I32, edges: I32, count: int
) -> int:
    """Append the words of a chunk; returns how many there are then."""
    high, held = _decoded(data, start, end, flags, points, places)
    low, last, cuts, digits = 0, -1, places.size // 2, (held & NUMBER) != 0
    suffixes = cuts
    while low < high and high - low != last:
        if exception_at(data, places[low], places[high], tables) >= 0:
            break
        last = high - low
        ahead = prefix(points, low, high, flags)
        if 0 < ahead < last and exception_at(data, places[low + ahead], places[high], tables) >= 0:
            edges[2 * count], edges[2 * count + 1] = places[low], places[low + ahead]
            count += 1
            low += ahead
            break
        behind = suffix(points, low + ahead, high, digits, flags, tables)
        if 0 < behind < last and exception_at(data, places[low], places[high - behind], tables) >= 0:
            places[suffixes] = places[high - behind]
            suffixes += 1
            high -= behind
            break
        if ahead:
            edges[2 * count], edges[2 * count + 1] = places[low], places[low + ahead]
            count += 1
            low += ahead
        if behind:
            places[suffixes] = places[high - behind]
            suffixes += 1
            high -= behind
    if low < high:
        count = _middle(data, low, high, flags, tables, points, places, edges, count)
    while suffixes > cuts:
        suffixes -= 1
        edges[2 * count] = places[suffixes]
        edges[2 * count + 1] = places[suffixes - 1] if suffixes > cuts else end
        count += 1
    return count


@kernel
def _decoded(data: U8, start: int, end: int, flags: U16, points: I32, places: I32) -> tuple[int, Any]:
    """Put the code points of a chunk into `points` and where each starts into `places`; returns how many, and the
    flags that any has."""
    count, at, held = 0, start, np.uint16(0)
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        points[count], places[count] = point, at
        held |= flags[point]
        count += 1
        at += size
    places[count] = end
    return count, held


@kernel
def _middle(
    data: U8, low: int, high: int, flags: U16, tables: U64, points: I32, places: I32, edges: I32, count: int
) -> int:
    """What is left of a chunk without affixes: an exception in its pieces, a URL, or words and infixes."""
    slot = exception_at(data, places[low], places[high], tables)
    if slot >= 0:
        return put_pieces(slot, places[low], tables, edges, count)
    joints = np.uint16(0)
    for at in range(low + 1, high):
        joints |= flags[points[at]]
    if joints & JOINT and not is_url(points, low, high, flags):
        begin, at = low, low + 1
        if flags[points[low]] & JOINT:  # an infix at the start is none, but what it covers is passed over
            at = low + max(1, infix(points, low, high, low, flags))
        while at < high:
            size = infix(points, low, high, at, flags) if flags[points[at]] & JOINT else 0
            if size:
                if at > begin:
                    edges[2 * count], edges[2 * count + 1] = places[begin], places[at]
                    count += 1
                edges[2 * count], edges[2 * count + 1] = places[at], places[at + size]
                count += 1
                begin = at + size
            at += max(size, 1)
        low = begin
    if low < high:
        edges[2 * count], edges[2 * count + 1] = places[low], places[high]
        count += 1
    return count


def words(text: str) -> list[str]:
    """The words of one text, for people and tests."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    edges = edge_buffer(data.size)
    count = split(data, 0, data.size, splitter(data.size), edges)
    return [bytes(data[edges[2 * i] : edges[2 * i + 1]]).decode() for i in range(count)]
