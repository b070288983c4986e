"""Overlap of training documents with the held-out set, by word n-grams.

    grams     per part: n-gram hashes of all documents that are or ever were held out
    union     once: the hashes of all parts, sorted, as raw little-endian uint64 that every worker memory-maps
    hits      per part: held-out n-grams in training documents, with their positions and numbers of documents
    common    once: n-grams that too many training documents contain
    sidecar   per part: the share of each document's n-grams that is held out, and the spans to cut (`cuts`)

GPT-3 (Brown et al. 2020, appendix C) compares 13-grams of lower-cased words without punctuation. GPT-3's method ignores
n-grams that match more than 10 training documents, because they are usually license headers and stock phrases. Other
matches are cut with 200 characters around them; `remove: document` drops the whole document instead. A document with
fewer than n words gets one n-gram with all its words. Hashes have 64 bits: with G held-out n-grams, an unrelated n-gram
matches with probability G / 2^64, which is 5e-12 for a hundred million n-grams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.dedup.run_tree import levels
from plinth.corpus.dedup.sorted_runs import iter_rows
from plinth.corpus.protected import protected_index
from plinth.corpus.protected.parameters import Contamination
from plinth.corpus.sidecars import Slot, slots, summed
from plinth.errors import IntegrityError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import EDIT_TYPE, iter_aligned, read_table, write_batches, write_table
from plinth.storage.store import Store
from plinth.text import NEAR_END, SENTENCE_END
from plinth_text.arrays import I64, U64
from plinth_text.similarity import word_positions
from plinth_text.words import HashLookup, ngram_hashes

ASSET = "contamination"
VERSION = "3"

#: `overlap` and `matched` (n-grams, repeats counted) are null for documents that training would not see anyway;
#: `contaminated` documents are dropped, of others the matches are cut.
SCHEMA = pa.schema(
    [
        pa.field("overlap", pa.float32()),
        pa.field("matched", pa.int32()),
        pa.field("contaminated", pa.bool_(), nullable=False),
        pa.field("edits", EDIT_TYPE, nullable=False),
    ]
)

_GRAMS = pa.schema([pa.field("gram", pa.uint64(), nullable=False)])
_COUNTS = pa.schema([pa.field("grams", pa.int64())])
#: A match: row, position among the held-out n-grams, its first word.
_HITS = pa.schema([("row", pa.int64()), ("gram", pa.int64()), ("word", pa.int64())])
_STATS = ("considered", "matched", "contaminated", "contaminated_bytes", "cut", "cut_characters")


def run(
    ctx: Context, params: Contamination, documents: Mapping[str, Manifest], near: Manifest, holdout: Manifest
) -> Manifest:
    """Compare every training document with the held-out documents of all buckets.

    Args:
        documents: `{b}/documents` by bucket.
        near: manifest of the last deduplication stage. The unedited texts of its survivors are compared.
        holdout: manifest of `holdout`.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`.
    """
    places = slots(documents, near=near, holdout=holdout)
    table = _held_out_grams(ctx, params, places)
    step = Step(
        name="contamination/hits",
        version=VERSION,
        params={"ngram_words": params.ngram_words},
        libraries=fingerprint.UNICODE,
    )
    items = [
        Item((*_inputs(slot), table.blob.sha256), _Hits(slot, params.ngram_words, table), slot.documents.rows)
        for slot in places
    ]
    found = run_items(ctx, step, _hits, items, label=f"{ASSET} overlap")
    limit = params.boilerplate_documents
    bound = None if limit is None else limit + 1
    step = Step(name="contamination/tally", version=VERSION, params={"bound": bound})
    counted = [parts[2] for parts in found]
    tally = protected_index.narrowed(ctx, step, counted, label=f"{ASSET} boilerplate", bound=bound)
    step = Step(name="contamination/common", version=VERSION, params={"boilerplate_documents": limit})
    item = Item((table.blob.sha256, *(part.blob.sha256 for part in tally)), _Common(table.rows, tally, limit))
    common = run_items(ctx, step, _common, [item], label=f"{ASSET} boilerplate")[0][0]
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    items = [
        Item(
            (*_inputs(slot), counts.blob.sha256, mine.blob.sha256, common.blob.sha256),
            _Judge(slot, counts, mine, common, params),
            slot.documents.rows,
        )
        for slot, (counts, mine, _) in zip(places, found, strict=True)
    ]
    made = run_items(ctx, step, _judge, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    stats = {**summed(parts, _STATS), "held_out_ngrams": table.rows, "boilerplate_ngrams": common.rows}
    return manifest(ASSET, step, {**inputs, near.asset: near, "holdout": holdout}, parts, stats)


def _inputs(slot: Slot) -> tuple[str, ...]:
    return tuple(part.blob.sha256 for part in (slot.documents, slot.sides["near"], slot.sides["holdout"]))


def _held_out_grams(ctx: Context, params: Contamination, places: tuple[Slot, ...]) -> Part:
    step = Step(
        name="contamination/grams",
        version=VERSION,
        params={"ngram_words": params.ngram_words},
        libraries=fingerprint.UNICODE,
    )
    items = [
        Item((slot.documents.blob.sha256, slot.sides["holdout"].blob.sha256), _Hits(slot, params.ngram_words, None))
        for slot in places
        if slot.sides["holdout"].stats["reserved"]
    ]
    made = [one[0] for one in run_items(ctx, step, _grams, items, label=f"{ASSET} held-out n-grams")]
    step = Step(name="contamination/joined", version=VERSION)

    def joined(groups: Sequence[Sequence[Part]]) -> list[Part]:
        items = [Item(tuple(part.blob.sha256 for part in some), tuple(some)) for some in groups]
        return [one[0] for one in run_items(ctx, step, _joined, items, label=f"{ASSET} held-out set")]

    parts = tuple(levels(made, joined))
    step = Step(name="contamination/union", version=VERSION)
    item = Item(tuple(part.blob.sha256 for part in parts), parts)
    return run_items(ctx, step, _union, [item], label=f"{ASSET} held-out set")[0][0]


@dataclass(frozen=True)
class _Hits:
    slot: Slot
    words: int
    table: Part | None


def _grams(store: Store, task: _Hits) -> tuple[Part, ...]:
    """Write the distinct n-grams of all documents of one part that are or ever were held out."""
    found = [np.empty(0, dtype=np.uint64)]
    for documents, holdout in iter_aligned(
        store, (task.slot.documents, ["text"]), (task.slot.sides["holdout"], ["reserved"])
    ):
        texts = documents.column("text").filter(holdout.column("reserved"))
        found.append(np.unique(ngram_hashes(texts, task.words)[1]))
    table = pa.table({"gram": np.unique(np.concatenate(found))}, schema=_GRAMS)
    return (write_table(store, "grams.parquet", table),)


def _all_grams(store: Store, parts: tuple[Part, ...]) -> U64:
    columns = [read_table(store, part).column("gram").to_numpy() for part in parts]
    found: U64 = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *columns]))
    return found


def _joined(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return (write_table(store, "grams.parquet", pa.table({"gram": _all_grams(store, parts)}, schema=_GRAMS)),)


def _union(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    table = _all_grams(store, parts)
    return (Part(name="grams.bin", blob=store.put_bytes(table.astype("<u8").tobytes()), rows=table.size),)


def _lookup(store: Store, table: Part) -> HashLookup:
    path = store.open_path(table.blob)
    values: U64 = np.memmap(path, dtype="<u8", mode="r") if table.rows else np.empty(0, dtype=np.uint64)
    try:
        return HashLookup(values)
    except ValueError as error:
        raise IntegrityError(f"{path} (held-out n-grams) cannot be trusted", found=error) from error


def _hits(store: Store, task: _Hits) -> tuple[Part, ...]:
    """Return three parts: the number of n-grams of every compared document, the matches with held-out n-grams, and the
    number of documents that contain each held-out n-gram."""
    assert task.table is not None
    lookup = _lookup(store, task.table)
    counts, rows, grams, words = [], [], [], []
    first = 0
    sides = task.slot.sides
    sources = ((task.slot.documents, ["text"]), (sides["near"], ["survivor"]), (sides["holdout"], ["held_out"]))
    for documents, near, holdout in iter_aligned(store, *sources):
        considered = pc.and_not(near.column("survivor"), holdout.column("held_out"))
        starts, hashes = ngram_hashes(documents.column("text").filter(considered), task.words)
        index = np.flatnonzero(considered.to_numpy(zero_copy_only=False))
        number = np.full(documents.num_rows, -1, dtype=np.int64)
        number[index] = np.diff(starts)
        counts.append(number)
        where = lookup.find(hashes)
        matched = np.flatnonzero(where >= 0)
        owner = np.searchsorted(starts, matched, side="right") - 1
        rows.append(index[owner] + first)
        grams.append(where[matched].astype(np.int64))
        words.append(matched - starts[owner])
        first += documents.num_rows
    every = np.concatenate([np.empty(0, np.int64), *counts])
    columns = [np.concatenate([np.empty(0, np.int64), *column]) for column in (rows, grams, words)]
    pairs = np.unique(np.stack(columns[:2], axis=1), axis=0)
    documents_of = np.bincount(pairs[:, 1], minlength=task.table.rows)
    return (
        write_table(store, "counts.parquet", pa.table([pa.array(every, mask=every < 0)], schema=_COUNTS)),
        write_table(store, "hits.parquet", pa.table([pa.array(column) for column in columns], schema=_HITS)),
        protected_index.sparse(store, "tally.parquet", documents_of),
    )


@dataclass(frozen=True)
class _Common:
    grams: int
    tally: tuple[Part, ...]
    limit: int | None


def _common(store: Store, task: _Common) -> tuple[Part, ...]:
    """Write the indices of held-out n-grams that more than `limit` training documents contain."""
    documents = protected_index.dense(store, task.tally, task.grams)
    found = np.flatnonzero(documents > task.limit) if task.limit is not None else np.empty(0, np.int64)
    return (write_table(store, "common.parquet", pa.table({"gram": found.astype(np.uint64)}, schema=_GRAMS)),)


@dataclass(frozen=True)
class _Judge:
    slot: Slot
    counts: Part
    hits: Part
    common: Part
    params: Contamination


def _judge(store: Store, task: _Judge) -> tuple[Part, ...]:
    common = read_table(store, task.common).column("gram").to_numpy().astype(np.int64)
    hits = read_table(store, task.hits)
    telling = ~np.isin(hits.column("gram").to_numpy(), common)
    rows, words = (hits.column(name).to_numpy()[telling] for name in ("row", "word"))
    matched = np.bincount(rows, minlength=task.counts.rows)
    cut = _cuts(store, task, rows, words) if task.params.remove == "match" else None
    stats = dict.fromkeys(_STATS, 0)

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for counts, near in iter_aligned(store, (task.counts, ["grams"]), (task.slot.sides["near"], ["text_bytes"])):
            column = counts.column("grams")
            skipped = column.is_null().to_numpy(zero_copy_only=False)
            mine = matched[first : first + len(column)]
            overlap = mine / np.maximum(column.fill_null(0).to_numpy(), 1)
            spans = [cut.get(first + row, ()) if cut else () for row in range(len(column))]
            dropped = np.array([one is None for one in spans], np.bool_) if cut is not None else None
            contaminated = overlap > task.params.max_overlap if dropped is None else dropped
            stats["considered"] += int((~skipped).sum())
            stats["matched"] += int((mine > 0).sum())
            stats["contaminated"] += int(contaminated.sum())
            stats["contaminated_bytes"] += int(near.column("text_bytes").to_numpy()[contaminated].sum())
            stats["cut"] += sum(1 for one in spans if one)
            stats["cut_characters"] += sum(end - start for one in spans for start, end in one or ())
            arrays = [
                pa.array(overlap.astype(np.float32), mask=skipped),
                pa.array(mine.astype(np.int32), mask=skipped),
                pa.array(contaminated),
                pa.array([[_edit(*span) for span in one or ()] for one in spans], EDIT_TYPE),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
            first += len(column)

    part = write_batches(store, task.slot.documents.name, SCHEMA, batches())
    return (part.model_copy(update={"stats": stats}),)


def _cuts(store: Store, task: _Judge, rows: I64, words: I64) -> dict[int, list[Span] | None]:
    """Return the spans to cut for each row with a match. A row to drop gets None. Only the texts of rows with a match
    are read."""
    affected = np.unique(rows)
    bounds = np.searchsorted(rows, affected), np.searchsorted(rows, affected, side="right")
    texts = (
        text
        for batch in iter_rows(store, task.slot.documents, ["text"], affected)
        for text in batch.column("text").to_pylist()
    )
    found = {}
    for row, begin, end, text in zip(affected.tolist(), *bounds, texts, strict=True):
        places = word_positions(text)
        last = np.minimum(words[begin:end] + task.params.ngram_words, places.start_cp.size) - 1
        spans = zip(places.start_cp[words[begin:end]].tolist(), places.end_cp[last].tolist(), strict=True)
        found[row] = cuts(text, spans)
    return found


def _edit(start: int, end: int) -> dict[str, int | str]:
    return {"start_cp": start, "end_cp": end, "replacement": SEAM, "reason": REASON}


# GPT-3's rule for a document that shares n-grams with held-out text (Brown et al. 2020, appendix C).
#
# Every match is removed with 200 characters on both sides; what is left between the matches are pieces. A piece of
# fewer than 200 characters is removed too; a document that falls into more than 10 pieces is dropped. Here a cut is
# widened to the end of a sentence or a line, or to white space if none is near, so that no piece begins or ends amid a
# sentence, and the pieces stay one document, an empty line apart.

WINDOW, LEAST_PIECE, MOST_PIECES = 200, 200, 10
REASON, SEAM = "contaminated", "\n\n"

Span = tuple[int, int]


def cuts(text: str, matches: Iterable[Span]) -> list[Span] | None:
    """Return the spans to cut from a document with matches, or None if the document must be dropped.

    Args:
        matches: half-open code point spans of the shared n-grams; at least one.

    Returns:
        Half-open code point spans, sorted and disjoint.
    """
    removed = list(_joined_spans(_widened(text, start - WINDOW, end + WINDOW) for start, end in sorted(matches)))
    bounds = [0, *(at for span in removed for at in span), len(text)]
    pieces = [(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if text[start:end].strip()]
    kept = [(start, end) for start, end in pieces if end - start >= LEAST_PIECE]
    if len(pieces) > MOST_PIECES or not kept:
        return None
    bounds = [0, *(at for span in kept for at in span), len(text)]
    return [(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if start < end]


def _widened(text: str, start: int, end: int) -> Span:
    start, end = max(0, start), min(len(text), end)
    before = [found.end() for found in SENTENCE_END.finditer(text, max(0, start - NEAR_END), start)]
    after = SENTENCE_END.search(text, end, end + NEAR_END)
    return before[-1] if before else _outward(text, start, -1), after.end() if after else _outward(text, end, 1)


def _outward(text: str, at: int, step: int) -> int:
    """Return the next place outside of a word, before or after a place in a text."""
    while 0 < at < len(text) and not text[at - (step < 0)].isspace():
        at += step
    return at


def _joined_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans in order of their starts. Spans that touch or overlap are joined."""
    held: Span | None = None
    for start, end in spans:
        if held is not None and start <= held[1]:
            held = held[0], max(held[1], end)
            continue
        if held is not None:
            yield held
        held = start, end
    if held is not None:
        yield held
