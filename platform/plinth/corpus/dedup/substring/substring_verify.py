"""Repeated windows as passages, each compared with its first occurrence on the words themselves.

    join      per part: windows that follow one another in both places are one passage
    spans     per part: where its own passages lie, and those that other passages repeat
    passages  per part: the place of each span in the text and a SHA-256 of its words
    answers   per part: the digests of what it has first, for the passages that repeat it
    proof     per part: its passages, but those whose first occurrence has another digest (none, unless 128-bit keys
              collided)

So nothing is cut because hashes of windows collided: what is cut has been compared word for word, as far as
SHA-256 distinguishes words. Only `passages` reads text, of the documents that have spans, and it knows nothing of
other parts: the same spans are never looked up again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import clusters, sorted_runs
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.edits import U64
from plinth.corpus.dedup.substring.windows import LATER, SlotTexts
from plinth.records import Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth_text.similarity.passages import WordPositions, word_positions

VERSION = "2"

#: Runs of (row, word, length); of (document, word, length, document and word that repeat it); of (document, word,
#: halves of the digest of what it repeats).
OWN, ASKED, ANSWERS = "passages", "asked passages", "answers"

_SPAN = [("row", pa.int64()), ("word", pa.int64()), ("length", pa.int64())]
_DIGEST = [("high", pa.uint64()), ("low", pa.uint64())]
_PLACE = [
    ("start_cp", pa.int64()),
    ("end_cp", pa.int64()),
    ("start_byte", pa.int64()),
    ("end_byte", pa.int64()),
    ("words", pa.int64()),  # of the document
    ("characters", pa.int64()),  # of the document
]
#: `length` words from `word` on; where they lie in the text as the stages before left it, with what goes with them.
#: Of spans that are not the part's `own`, the digest alone counts.
SPANS = pa.schema([*_SPAN, ("own", pa.bool_()), *_DIGEST, *_PLACE])


def verify(ctx: Context, sources: Sequence[SlotTexts], later: Sequence[Part], layout: SlotNumbers) -> list[Part]:
    """The proved passages of every slot, from its later windows.

    Returns:
        Parts of `SPANS`; their statistics count those that turned out not to be repeated, as `differing`.
    """
    tokens = sources[0].tokens if sources else 0
    joined = _each(ctx, "join", _join, [(part, base, tokens) for part, base in zip(later, layout.bases, strict=False)])
    asked = clusters.gather(ctx, "dedup/substring asked", [one[1] for one in joined], layout, ASKED, 5)
    spans = _each(ctx, "spans", _spans, [(own, mine) for (own, _), mine in zip(joined, asked, strict=True)])
    step = Step(name="dedup/substring/passages", version=VERSION)
    items = [
        Item((*source.inputs, mine.blob.sha256), _Task(source, mine), source.slot.documents.rows)
        for source, (mine,) in zip(sources, spans, strict=True)
    ]
    found = [made[0] for made in run_items(ctx, step, _passages, items, label="dedup/substring passages")]
    answered = _each(ctx, "answers", _answers, list(zip(found, asked, strict=True)))
    answers = clusters.gather(ctx, "dedup/substring answers", [one[0] for one in answered], layout, ANSWERS, 4)
    return [one[0] for one in _each(ctx, "proof", _proof, list(zip(found, answers, strict=True)))]


def _each(
    ctx: Context, name: str, fn: Callable[[Store, Any], tuple[Part, ...]], tasks: Sequence[tuple[Part | int, ...]]
) -> list[tuple[Part, ...]]:
    """A step for each slot, of parts and numbers."""
    step = Step(name=f"dedup/substring/{name}", version=VERSION)
    items = [
        Item(tuple(one.blob.sha256 if isinstance(one, Part) else str(one) for one in task), task) for task in tasks
    ]
    return run_items(ctx, step, fn, items, label=f"dedup/substring {name}")


def _all(store: Store, part: Part, kind: str) -> tuple[U64, ...]:
    with sorted_runs.SortedRun(store, part, kind) as opened:
        return opened.all()


def _join(store: Store, task: tuple[Part, int, int]) -> tuple[Part, ...]:
    later, base, tokens = task
    found = runs_of(*_all(store, later, LATER), tokens=tokens)
    own = sorted_runs.write(store, "own.run", OWN, [(found.at, found.word, found.length)], 3)
    columns = (found.first, found.first_word, found.length, found.at + np.uint64(base), found.word)
    order = sorted_runs.in_order(*columns)
    return own, sorted_runs.write(store, "asked.run", ASKED, [[column[order] for column in columns]], 5)


@dataclass(frozen=True)
class Runs:
    """Passages in order of place; R of them: document, first word, document and first word of the source, words."""

    at: U64
    word: U64
    first: U64
    first_word: U64
    length: U64


def runs_of(at: U64, word: U64, first: U64, first_word: U64, *, tokens: int) -> Runs:
    """Join later windows (`LATER`) that follow one another in both places."""
    order = np.lexsort((word, at))
    at, word, first, first_word = at[order], word[order], first[order], first_word[order]
    goes_on = (at[1:] == at[:-1]) & (word[1:] == word[:-1] + np.uint64(1))
    goes_on &= (first[1:] == first[:-1]) & (first_word[1:] == first_word[:-1] + np.uint64(1))
    begins = np.flatnonzero(np.r_[True, ~goes_on][: at.size])
    length = (np.diff(np.append(begins, at.size)) + tokens - 1).astype(np.uint64)
    return Runs(at[begins], word[begins], first[begins], first_word[begins], length)


def _spans(store: Store, task: tuple[Part, Part]) -> tuple[Part, ...]:
    """The different spans in order, with a last column: whether it is the part's own."""
    own, asked = _all(store, task[0], OWN), _all(store, task[1], ASKED)[:3]
    mine = np.repeat(np.array([1, 0], dtype=np.uint64), [own[0].size, asked[0].size])
    columns = [*(np.concatenate(both) for both in zip(own, asked, strict=True)), mine]
    order = np.lexsort((~mine, *reversed(columns[:3])))  # of equal ones, the own first
    columns = [column[order] for column in columns]
    new = np.ones(order.size, dtype=np.bool_)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns[:3]], axis=0)
    return (sorted_runs.write(store, "spans.run", "spans", [[column[new] for column in columns]], 4),)


@dataclass(frozen=True)
class _Task:
    source: SlotTexts
    spans: Part


def _passages(store: Store, task: _Task) -> tuple[Part, ...]:
    row, word, length, own = (column.astype(np.int64) for column in _all(store, task.spans, "spans"))
    digests, places = np.zeros((row.size, 2), dtype=np.uint64), np.zeros((row.size, len(_PLACE)), dtype=np.int64)
    rows, begins = np.unique(row, return_index=True)
    spans = dict(zip(rows.tolist(), map(range, begins.tolist(), [*begins[1:].tolist(), row.size]), strict=True))
    for numbers, texts in task.source.read_rows(store, rows):
        for number, text in zip(numbers.tolist(), texts.to_pylist(), strict=True):
            words = word_positions(text)
            for i in spans[number]:
                first, count = int(word[i]), int(length[i])
                digests[i] = np.frombuffer(_digest(words, first, count), dtype=">u8")
                if own[i]:
                    places[i] = *_place(text, words, first, first + count - 1), words.start_cp.size, len(text)
    columns = [row, word, length, own.astype(np.bool_), *digests.T, *places.T]
    return (write_table(store, "passages.parquet", pa.table([pa.array(one) for one in columns], schema=SPANS)),)


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


def _answers(store: Store, task: tuple[Part, Part]) -> tuple[Part, ...]:
    found, asked = read_table(store, task[0], ["row", "word", "length", "high", "low"]), _all(store, task[1], ASKED)
    spans = np.stack([found.column(i).to_numpy() for i in range(3)], axis=1)
    wanted = np.stack([column.astype(np.int64) for column in asked[:3]], axis=1)
    # spans has all that are wanted, each once and in order: its places are those of the different ones
    _, place = np.unique(np.concatenate([spans, wanted]), axis=0, return_inverse=True)
    place = place.reshape(-1)[spans.shape[0] :]
    columns = (*asked[3:], *(found.column(name).to_numpy()[place] for name in ("high", "low")))
    order = sorted_runs.in_order(*columns)
    return (sorted_runs.write(store, "answers.run", ANSWERS, [[column[order] for column in columns]], 4),)


def _proof(store: Store, task: tuple[Part, Part]) -> tuple[Part, ...]:
    found, (_, _, high, low) = read_table(store, task[0]), _all(store, task[1], ANSWERS)
    own = found.filter(found.column("own"))  # in order of row and word, as its answers are
    proved = (own.column("high").to_numpy() == high) & (own.column("low").to_numpy() == low)
    part = write_table(store, "proved.parquet", own.filter(pa.array(proved)))
    return (part.model_copy(update={"stats": {"differing": int((~proved).sum())}}),)
