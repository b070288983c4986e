"""Cuts of passages of at least `n` words that are repeated across documents or within a document.

    windows   every window of n words that occurred earlier                   `edits`
    verify    windows joined to passages, compared word by word               here
    sidecar   per part: the columns of `edits.SCHEMA`

A word is cut if it is in a window of n words that occurred earlier, in the order of bucket, part, row and word.
Therefore the first occurrence of every repeated passage is kept. Lee et al. 2022 find the same passages with a suffix
array over the whole corpus in memory. This stage needs no more memory than one part or one range of keys. Words are
compared in lower case and without punctuation. A cut begins and ends with a sentence, so that what is left reads on, or
with a word if no sentence of the passage ends near; the punctuation attached to it goes, too. It is measured in code
points. Text that earlier stages cut is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, edits, sorted_runs
from plinth.corpus.dedup.edits import LATER, SlotTexts
from plinth.corpus.dedup.parameters import Substring
from plinth.corpus.sidecars import Slot, SlotNumbers, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_table, write_batches, write_table
from plinth.storage.store import Store
from plinth.text import sentences
from plinth_text.arrays import U64
from plinth_text.similarity import WordPositions, word_positions

ASSET = "dedup/substring"
VERSION = "1"
SCHEMA = edits.SCHEMA
REASONS = ("repeated_passage",)


def run(
    ctx: Context,
    params: Substring,
    documents: Mapping[str, Manifest],
    before: Manifest,
    *,
    range_rows: int = sorted_runs.RANGE_ROWS,
) -> Manifest:
    """Find repeated passages in the documents that survived the previous stage.

    Args:
        documents: `{b}/documents` by bucket.
        before: manifest of the previous stage over all buckets, with the columns `survivor` and `text_bytes`, and
            `edits` if that stage cuts text.
        range_rows: rows per reduce task; affects memory use only.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`. Statistics: `edits.STATS`, `spans` and `span_bytes` by reason,
        `buckets`, and `differing`: passages with equal hashes but different words, which are not cut.

    Raises:
        IntegrityError: `before` does not belong to the documents, or a part is damaged.
    """
    places = slots(documents, before=before)
    compared = [slot for slot in places if slot.bucket not in params.exclude]
    sides = [slot.sides["before"] for slot in compared]
    cuts: Sequence[Part | None] = (
        edits.columns(ctx, sides, ["edits"]) if "spans" in before.stats else [None] * len(sides)
    )
    sources = [SlotTexts(slot, params.min_tokens, cut) for slot, cut in zip(compared, cuts, strict=True)]
    layout, mask = sidecars.layout(compared), sidecars.mask(ctx, [(side, "survivor") for side in sides])
    later = edits.find(ctx, sources, mask, layout, range_rows)
    found = dict(zip([slot.number for slot in compared], verify(ctx, sources, later, layout), strict=True))
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    items = []
    for slot in places:
        runs, side = found.get(slot.number), slot.sides["before"]
        keys = (slot.documents.blob.sha256, side.blob.sha256, runs.blob.sha256 if runs else "")
        items.append(Item(keys, _Task(slot, runs, "spans" in before.stats, params), slot.documents.rows))
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()} | {before.asset: before}
    differing = sum(part.stats["differing"] for part in found.values())
    return manifest(ASSET, step, inputs, parts, edits.summary(parts, REASONS) | {"differing": differing})


@dataclass(frozen=True)
class _Task:
    slot: Slot
    passages: Part | None  # none where the bucket is excluded
    edited: bool  # whether the stage before has edits
    params: Substring


def _sidecar(store: Store, task: _Task) -> tuple[Part, ...]:
    runs = read_table(store, task.passages) if task.passages else SPANS.empty_table()
    stats = edits.no_stats(REASONS)
    part = write_batches(store, task.slot.documents.name, SCHEMA, _batches(store, task, runs, stats))
    return (part.model_copy(update={"stats": stats}),)


def _batches(store: Store, task: _Task, runs: pa.Table, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    rows, first = runs.column("row").to_numpy(), 0
    names = ["survivor", "text_bytes"] + (["edits"] if task.edited else [])
    for before in iter_batches(store, task.slot.sides["before"], names):
        begin, end = np.searchsorted(rows, [first, first + before.num_rows])
        considered = before.column("survivor").to_numpy(zero_copy_only=False) & (task.passages is not None)
        cuts = [
            _Cuts(row - first, mine, before.column("edits")[row - first].as_py() if task.edited else [])
            for row, mine in _by_row(runs.slice(begin, end - begin))
        ]
        short = np.zeros(before.num_rows, dtype=np.bool_)
        docs = np.array([one.doc for one in cuts], dtype=np.int64)
        words, left, size = (np.array([getattr(one, n) for one in cuts]) for n in ("words", "left", "characters"))
        short[docs] = edits.too_little(task.params, np.ones_like(docs, dtype=np.bool_), words, left, size)
        yield edits.batch(before, considered, short, _marks(cuts), REASONS, stats)
        first += before.num_rows


def _by_row(runs: pa.Table) -> Iterator[tuple[int, list[dict[str, int]]]]:
    for row, found in groupby(runs.to_pylist(), key=itemgetter("row")):
        yield row, list(found)


class _Cuts:
    """Passages to cut from one document. Passages that overlap or touch are joined.

    Args:
        doc: row of the document in the batch.
        runs: passages of the document, in order.
        earlier: cuts of earlier stages. Spaces replaced the cut text before the passages were searched.
    """

    def __init__(self, doc: int, runs: list[dict[str, int]], earlier: list[dict[str, Any]]) -> None:
        self.doc = doc
        self.spans: list[list[int]] = []  # start_cp, end_cp, start_byte, end_byte
        self.words, self.characters = runs[0]["words"], runs[0]["characters"]
        known = 0  # words are cut up to here
        for run in runs:
            if run["start_cp"] == run["end_cp"]:
                continue  # parts of two sentences
            span = [run[name] for name in ("start_cp", "end_cp", "start_byte", "end_byte")]
            end = run["word"] + run["length"]
            self.words -= max(0, end - max(known, run["word"]))
            known = max(known, end)
            if self.spans and span[0] <= self.spans[-1][1]:
                self.spans[-1][1::2] = [max(pair) for pair in zip(self.spans[-1][1::2], span[1::2], strict=True)]
            else:
                self.spans.append(span)
        blank = [(edit["start_cp"], edit["end_cp"]) for edit in earlier]
        inside = [sum(max(0, min(b, end) - max(a, start)) for a, b in blank) for start, end, *_ in self.spans]
        self.removed = [last - first - n for (_, _, first, last), n in zip(self.spans, inside, strict=True)]
        gone = sum(end - start for start, end, *_ in self.spans) - sum(inside) + sum(b - a for a, b in blank)
        self.left = self.characters - gone


def _marks(cuts: list[_Cuts]) -> edits.Marks:
    flat = [(one.doc, *span[:2], removed) for one in cuts for span, removed in zip(one.spans, one.removed, strict=True)]
    table = np.array(flat, dtype=np.int64).reshape(-1, 4)
    start, end = table[:, 1].astype(np.int32), table[:, 2].astype(np.int32)
    return edits.Marks(table[:, 0], start, end, np.zeros(table.shape[0], dtype=np.int64), table[:, 3])


# Repeated windows as passages, each compared with its first occurrence on the words themselves.
#
#     join      per part: windows that follow one another in both places are one passage
#     spans     per part: where its own passages lie, and those that other passages repeat
#     passages  per part: the place of each span in the text and a SHA-256 of its words
#     answers   per part: the digests of what it has first, for the passages that repeat it
#     proof     per part: its passages, but those whose first occurrence has another digest (none, unless 128-bit keys
#               collided)
#
# So hash collisions of windows cut nothing: cut passages are compared by the SHA-256 of their words. Only `passages`
# reads text, only of documents with spans, and independently of other parts.

VERIFY_VERSION = "3"

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
    """Return the verified repeated passages of every part of documents, built from its repeated windows of words.

    Returns:
        Parts of `SPANS`. In their statistics, `differing` counts passages with equal hashes but different words.
    """
    tokens = sources[0].tokens if sources else 0
    joined = _each(ctx, "join", _join, [(part, base, tokens) for part, base in zip(later, layout.bases, strict=False)])
    asked = clusters.gather(ctx, "dedup/substring asked", [one[1] for one in joined], layout, ASKED, 5)
    spans = _each(ctx, "spans", _spans, [(own, mine) for (own, _), mine in zip(joined, asked, strict=True)])
    step = Step(name="dedup/substring/passages", version=VERIFY_VERSION)
    items = [
        Item((*source.inputs, mine.blob.sha256), _VerifyTask(source, mine), source.slot.documents.rows)
        for source, (mine,) in zip(sources, spans, strict=True)
    ]
    found = [made[0] for made in run_items(ctx, step, _passages, items, label="dedup/substring passages")]
    answered = _each(ctx, "answers", _answers, list(zip(found, asked, strict=True)))
    answers = clusters.gather(ctx, "dedup/substring answers", [one[0] for one in answered], layout, ANSWERS, 4)
    return [one[0] for one in _each(ctx, "proof", _proof, list(zip(found, answers, strict=True)))]


def _each(
    ctx: Context, name: str, fn: Callable[[Store, Any], tuple[Part, ...]], tasks: Sequence[tuple[Part | int, ...]]
) -> list[tuple[Part, ...]]:
    """Run a step once per part of documents. Each task is a tuple of parts and numbers."""
    step = Step(name=f"dedup/substring/{name}", version=VERIFY_VERSION)
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
    """Repeated passages, sorted by position. R is the number of passages; all arrays are [R].

    Args:
        at, word: document and first word of the passage.
        first, first_word: document and first word of the earliest occurrence of the passage.
        length: number of words.
    """

    at: U64
    word: U64
    first: U64
    first_word: U64
    length: U64


def runs_of(at: U64, word: U64, first: U64, first_word: U64, *, tokens: int) -> Runs:
    """Join repeated windows (`LATER`) to passages. Two windows are joined if one follows the other both in their
    document and at their earliest occurrence."""
    order = np.lexsort((word, at))
    at, word, first, first_word = at[order], word[order], first[order], first_word[order]
    goes_on = (at[1:] == at[:-1]) & (word[1:] == word[:-1] + np.uint64(1))
    goes_on &= (first[1:] == first[:-1]) & (first_word[1:] == first_word[:-1] + np.uint64(1))
    begins = np.flatnonzero(np.r_[True, ~goes_on][: at.size])
    length = (np.diff(np.append(begins, at.size)) + tokens - 1).astype(np.uint64)
    return Runs(at[begins], word[begins], first[begins], first_word[begins], length)


def _spans(store: Store, task: tuple[Part, Part]) -> tuple[Part, ...]:
    """Return the distinct spans of words to hash, in order. The last column is 1 if the span is a repeated passage of
    this part, and 0 if another part repeats it."""
    own, asked = _all(store, task[0], OWN), _all(store, task[1], ASKED)[:3]
    mine = np.repeat(np.array([1, 0], dtype=np.uint64), [own[0].size, asked[0].size])
    columns = [*(np.concatenate(both) for both in zip(own, asked, strict=True)), mine]
    order = np.lexsort((~mine, *reversed(columns[:3])))  # of equal ones, the own first
    columns = [column[order] for column in columns]
    new = np.ones(order.size, dtype=np.bool_)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns[:3]], axis=0)
    return (sorted_runs.write(store, "spans.run", "spans", [[column[new] for column in columns]], 4),)


@dataclass(frozen=True)
class _VerifyTask:
    source: SlotTexts
    spans: Part


def _passages(store: Store, task: _VerifyTask) -> tuple[Part, ...]:
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
    """Return the start and end of a passage with its punctuation and white space, first in code points and then in
    bytes."""
    inner = int(words.start_cp[first]), int(words.end_cp[last])
    start, end = widened(
        text,
        int(words.end_cp[first - 1]) if first else 0,
        *inner,
        int(words.start_cp[last + 1]) if last + 1 < words.start_cp.size else len(text),
    )
    from_byte = int(words.start_byte[first]) - len(text[start : inner[0]].encode())
    to_byte = int(words.end_byte[last]) + len(text[inner[1] : end].encode())
    low, high = sentences(text, start, end)
    return low, high, from_byte + len(text[start:low].encode()), to_byte - len(text[high:end].encode())


def widened(text: str, low: int, start: int, end: int, high: int) -> tuple[int, int]:
    """Extend a span by attached punctuation and the white space after it, but never into another word.

    At the start, the span is extended by punctuation, such as an opening quote, if white space or the start of the text
    precedes the punctuation. At the end, the span is extended by punctuation if white space or the end of the text
    follows the punctuation, and then by this white space. If the span does not start a line, line ends and the white
    space after them are kept.

    Args:
        low, high: end of the previous word, and start of the next word.
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
