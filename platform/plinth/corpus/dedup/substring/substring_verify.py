"""Repeated windows as passages, each compared with its first occurrence on the words themselves.

    runs      per part: windows that follow one another in both places are one passage; its place in the text
              and a SHA-256 of its words
    exchange  per group of parts: the passages by where they were first
    check     per part: the same SHA-256 of the first occurrences in it; passages that differ
    join      once: all that differ (none, unless 128-bit keys collided)

So nothing is cut because hashes of windows collided: what is cut has been compared word for word, as far as
SHA-256 distinguishes words. Every part is read once for its own passages and once for those of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import shuffle
from plinth.corpus.dedup.edits import I64, U64
from plinth.corpus.dedup.substring.windows import LATER, SlotTexts
from plinth.records import Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth.text.similarity.passages import WordPositions, word_positions

_PLACE = [("at", pa.uint64()), ("word", pa.uint32())]
_CLAIM = [("first", pa.uint64()), ("first_word", pa.uint32()), ("length", pa.uint32()), ("digest", pa.binary(16))]

#: A passage of `length` words; spans in the text as the stages before left it, widened to what goes with them.
RUNS = pa.schema(
    [
        *_PLACE,
        ("length", pa.uint32()),
        ("start_cp", pa.int32()),
        ("end_cp", pa.int32()),
        ("start_byte", pa.int64()),
        ("end_byte", pa.int64()),
        ("words", pa.int32()),  # of the document
        ("characters", pa.int32()),  # of the document
    ]
)
_LOOKUPS = pa.schema([*_CLAIM, *_PLACE])
_ORDER = ["first", "first_word", "length", "at", "word"]
WRONG = pa.schema(_PLACE)


@dataclass(frozen=True)
class Passages:
    """The passages of every slot, and those that turned out not to be repeated."""

    runs: tuple[Part, ...]
    wrong: Part


def verify(
    ctx: Context, sources: tuple[SlotTexts, ...], later: tuple[Part, ...], version: str, range_rows: int
) -> Passages:
    """Passages from later windows, checked."""
    tokens = {"min_tokens": sources[0].tokens} if sources else {}
    keys = tuple(part.blob.sha256 for part in later)
    step = Step(name="dedup/substring/runs", version=version, params=tokens)
    items = [
        Item((*source.inputs, str(source.slot.number), *keys), _Task(source, later), source.slot.documents.rows)
        for source in sources
    ]
    made = run_items(ctx, step, _runs, items, label="dedup/substring passages")
    runs, lookups = (tuple(parts[which] for parts in made) for which in (0, 1))
    groups = _exchange(ctx, lookups, version, range_rows)
    step = Step(name="dedup/substring/check", version=version)
    items = [
        Item((*source.inputs, str(source.slot.number), groups[source.slot.number].blob.sha256), one)
        for source in sources
        for one in [_Task(source, (groups[source.slot.number],))]
    ]
    wrong = tuple(parts[0] for parts in run_items(ctx, step, _check, items, label="dedup/substring check"))
    step = Step(name="dedup/substring/join", version=version)
    item = Item(tuple(part.blob.sha256 for part in wrong), wrong)
    return Passages(runs, run_items(ctx, step, _join, [item], label="dedup/substring join")[0][0])


def _exchange(ctx: Context, lookups: tuple[Part, ...], version: str, range_rows: int) -> list[Part]:
    """For each slot, a part that has all passages which were first in it."""
    count = min(len(lookups), max(1, -(-sum(part.rows for part in lookups) // range_rows)))
    cuts = [len(lookups) * i // count for i in range(count + 1)] if count else [0]
    keys = tuple(part.blob.sha256 for part in lookups)
    step = Step(name="dedup/substring/exchange", version=version)
    spans = list(pairwise(cuts))
    items = [Item((f"{low}-{high}", *keys), _Group(lookups, low << 32, high << 32)) for low, high in spans]
    made = run_items(ctx, step, _gather, items, label="dedup/substring exchange")
    return [parts[0] for (low, high), parts in zip(spans, made, strict=True) for _ in range(low, high)]


@dataclass(frozen=True)
class _Task:
    source: SlotTexts
    parts: tuple[Part, ...]

    @property
    def addresses(self) -> tuple[int, int]:
        return shuffle.slot_range(self.source.slot.number)


def _texts(store: Store, source: SlotTexts, at: U64) -> Iterator[tuple[int, str, WordPositions]]:
    """Of the rows with these addresses: address, text, where its words are; in order."""
    rows = np.unique(at & np.uint64(0xFFFFFFFF)).astype(np.int64)
    for found, texts in source.read(store, rows) if rows.size else ():
        for row, text in zip(found.tolist(), texts.to_pylist(), strict=True):
            yield (source.slot.number << 32) | row, text, word_positions(text)


def _by_address(at: U64) -> dict[int, range]:
    """The rows, sorted by address, of each address."""
    addresses, begins = np.unique(at, return_index=True)
    bounds = [*begins.tolist(), at.size]
    return {address: range(*bounds[i : i + 2]) for i, address in enumerate(addresses.tolist())}


def _runs(store: Store, task: _Task) -> tuple[Part, ...]:
    tables = [shuffle.read_range(store, part, "at", *task.addresses) for part in task.parts]
    found = runs_of(pa.concat_tables([LATER.empty_table(), *tables]), task.source.tokens)
    of = _by_address(found.at)
    places, digests = np.zeros((found.at.size, 6), dtype=np.int64), [b""] * found.at.size
    for address, text, words in _texts(store, task.source, found.at):
        for i in of[address]:
            first, length = int(found.word[i]), int(found.length[i])
            places[i] = *_place(text, words, first, first + length - 1), words.start_cp.size, len(text)
            digests[i] = _digest(words, first, length)
    columns = [found.at, found.word, found.length, *places.T]
    runs = pa.table([pa.array(column) for column in columns], names=RUNS.names).cast(RUNS)
    columns = [found.first, found.first_word, found.length, pa.array(digests, pa.binary(16)), found.at, found.word]
    lookups = pa.table(columns, names=_LOOKUPS.names).cast(_LOOKUPS)
    return write_table(store, "runs.parquet", runs), shuffle.write_sorted(store, "asked.parquet", lookups, _ORDER)


@dataclass(frozen=True)
class Runs:
    """Passages in order of place; R of them: address, first word, address and first word of the source, words."""

    at: U64
    word: I64
    first: U64
    first_word: I64
    length: I64


def runs_of(later: pa.Table, tokens: int) -> Runs:
    """Join later windows (`LATER`) that follow one another in both places."""
    at, first = later.column("at").to_numpy(), later.column("first").to_numpy()
    word, first_word = (later.column(name).to_numpy().astype(np.int64) for name in ("word", "first_word"))
    order = np.lexsort((word, at))
    at, word, first, first_word = at[order], word[order], first[order], first_word[order]
    goes_on = (at[1:] == at[:-1]) & (word[1:] == word[:-1] + 1)
    goes_on &= (first[1:] == first[:-1]) & (first_word[1:] == first_word[:-1] + 1)
    begins = np.flatnonzero(np.r_[True, ~goes_on][: at.size])
    length = np.diff(np.append(begins, at.size)) + tokens - 1
    return Runs(at[begins], word[begins], first[begins], first_word[begins], length)


def _digest(words: WordPositions, first: int, length: int) -> bytes:
    return hashlib.sha256(words.passage(first, length)).digest()[:16]


def _place(text: str, words: WordPositions, first: int, last: int) -> tuple[int, int, int, int]:
    """Where a passage lies with what goes with it: code points, then bytes."""
    inner = int(words.start_cp[first]), int(words.end_cp[last])
    start, end = widened(
        text,
        int(words.end_cp[first - 1]) if first else 0,
        *inner,
        int(words.start_cp[last + 1]) if last + 1 < words.start_cp.size else len(text),
    )
    before, after = len(text[start : inner[0]].encode()), len(text[inner[1] : end].encode())
    return start, end, int(words.start_byte[first]) - before, int(words.end_byte[last]) + after


def widened(text: str, low: int, start: int, end: int, high: int) -> tuple[int, int]:
    """A span with the punctuation that clings to it and the white space after it; never into another word.

    At its start, punctuation up to white space or the beginning (an opening quote). At its end, punctuation up to
    white space or the end of the text, then that white space: all of it where the span begins a line, else none
    from a line end on.

    Args:
        low, high: where the word before ends and where the next one begins.
    """
    clings = start
    while clings > low and not text[clings - 1].isspace():
        clings -= 1
    if clings == 0 or text[clings - 1].isspace():
        start = clings
    clings = end
    while clings < high and not text[clings].isspace():
        clings += 1
    if clings < len(text) and not text[clings].isspace():
        return start, end  # a hyphen or the like ties it to the next word
    end = clings
    whole_lines = start == 0 or text[start - 1] == "\n"
    while end < high and text[end].isspace() and (whole_lines or text[end] != "\n"):
        end += 1
    return start, end


@dataclass(frozen=True)
class _Group:
    lookups: tuple[Part, ...]
    low: int
    high: int


def _gather(store: Store, task: _Group) -> tuple[Part, ...]:
    tables = [shuffle.read_range(store, part, "first", task.low, task.high) for part in task.lookups]
    table = pa.concat_tables([_LOOKUPS.empty_table(), *tables])
    return (shuffle.write_sorted(store, "asked.parquet", table, _ORDER),)


def _check(store: Store, task: _Task) -> tuple[Part, ...]:
    table = shuffle.read_range(store, task.parts[0], "first", *task.addresses)
    first, word, length = (table.column(name).to_numpy() for name in ("first", "first_word", "length"))
    claimed = table.column("digest").to_pylist()
    of = _by_address(first)
    wrong = np.ones(first.size, dtype=np.bool_)
    for address, _, words in _texts(store, task.source, first):
        for i in of[address]:
            wrong[i] = _digest(words, int(word[i]), int(length[i])) != claimed[i]
    return (write_table(store, "wrong.parquet", table.select(WRONG.names).filter(pa.array(wrong))),)


def _join(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    table = pa.concat_tables([WRONG.empty_table(), *(read_table(store, part) for part in parts if part.rows)])
    return (shuffle.write_sorted(store, "wrong.parquet", table, WRONG.names),)
