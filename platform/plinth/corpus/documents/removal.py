"""Removal of documents that an exclusion matches, or that an earlier part of the bucket already contains.

Removed documents become rejects. A part from which no document is removed stays the same blob, and everything derived
from the part stays valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, TaskFn, run_items, sum_stats
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.clusters import gather
from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.documents.normalize import reject_batch
from plinth.corpus.exclusions import Alike, Exclusion, TextSignature, address, domains_of, licences_of, overlap
from plinth.corpus.sidecars import SlotNumbers
from plinth.corpus.sources.record import SEEN_BEFORE, TAKEDOWN, Reject
from plinth.records import Frozen, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA, iter_batches, read_table, write_batches, write_table
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64
from plinth_text.unicode import digests

# All exclusions, ready for look-up: by columns of a document, and by its text.
#
# A look-up gives a table of (row, entry), by row. It reads columns, or texts; neither rewrites anything.
# It is apart from the list, which readers of signed logs import without Arrow.

#: Row of a batch, and number of the entry.
Hit = tuple[int, int]


@dataclass(frozen=True)
class ColumnRules:
    """Exclusion rules for the columns `id`, `uri` and `licence`. Each excluded value maps to the number of the first
    entry that excludes it."""

    documents: dict[bytes, int]
    urls: dict[str, int]
    domains: dict[str, int]
    licences: dict[str, int]

    @classmethod
    def of(cls, entries: Sequence[Exclusion]) -> ColumnRules:
        """Compile the column rules of all entries of the exclusion list."""
        ids = {value: one.number for one in reversed(entries) for value in one.documents}
        values = {
            kind: {one.value: one.number for one in reversed(entries) if one.kind == kind}
            for kind in ("document", "url", "domain", "licence")
        }
        named = {bytes.fromhex(value): number for value, number in (ids | values["document"]).items()}
        return cls(named, values["url"], values["domain"], values["licence"])

    def __bool__(self) -> bool:
        return bool(self.documents or self.urls or self.domains or self.licences)

    @property
    def digest(self) -> str:
        """Digest of the column rules."""
        named = {key.hex(): number for key, number in self.documents.items()}
        return fingerprint.digest([named, self.urls, self.domains, self.licences])

    def look(self, batch: pa.RecordBatch) -> Iterator[Hit]:
        """Yield each row that a column rule matches, with the number of the entry. The batch needs `id`, `uri` and
        `licence`."""
        found: dict[int, int] = {}
        for row, key in enumerate(batch.column("id").to_pylist() if self.documents else ()):
            if key in self.documents:
                found[row] = self.documents[key]
        for row, uri in enumerate(batch.column("uri").to_pylist() if self.urls or self.domains else ()):
            number = self.urls.get(address(uri)) if self.urls else None
            number = number or next((self.domains[n] for n in domains_of(uri) if n in self.domains), None)
            if number:
                found.setdefault(row, number)
        for row, terms in enumerate(batch.column("licence").to_pylist() if self.licences else ()):
            number = next((self.licences[n] for n in sorted(licences_of(terms)) if n in self.licences), None)
            if number:
                found.setdefault(row, number)
        yield from sorted(found.items())


@dataclass(frozen=True)
class TextRules:
    """Exclusion rules for text: signatures with the number of their entry, grouped by the criterion for similarity."""

    groups: tuple[tuple[Alike, tuple[tuple[TextSignature, int], ...]], ...]

    @classmethod
    def of(cls, entries: Iterable[Exclusion]) -> TextRules:
        """Compile the text signatures of all entries of the exclusion list."""
        listed = [(one.alike, text, one.number) for one in entries for text in one.texts]
        listed.sort(key=lambda each: (each[0].model_dump_json(), each[2]))
        grouped = groupby(listed, key=lambda each: each[0])
        return cls(tuple((alike, tuple((text, number) for _, text, number in own)) for alike, own in grouped))

    def __bool__(self) -> bool:
        return bool(self.groups)

    @property
    def digest(self) -> str:
        """Digest of the text rules."""
        plain = [
            [alike.model_dump(), [[text.digest, text.shingles, number] for text, number in own]]
            for alike, own in self.groups
        ]
        return fingerprint.digest(plain)

    def look(self, texts: pa.Array) -> Iterator[Hit]:
        """Yield each row whose text is similar to one of the signatures, with the number of the entry."""
        same = {text.digest: number for _, own in self.groups for text, number in reversed(own)}
        found = {row: same[key.hex()] for row, key in enumerate(digests(texts).to_pylist()) if key.hex() in same}
        for alike, own in self.groups:
            for row, number in _alike(alike, own, linking.sets(texts, alike.minhash)):
                found.setdefault(row, number)
        yield from sorted(found.items())


def _alike(alike: Alike, own: Sequence[tuple[TextSignature, int]], sets: Sequence[U64]) -> Iterator[Hit]:
    """Yield each row whose set of shingles overlaps a signature beyond the threshold. Rows that share too few shingles
    with all signatures together are skipped early."""
    wanted = [(text.set, number) for text, number in own if text.shingles]
    if not wanted:
        return
    every = np.unique(np.concatenate([hashes for hashes, _ in wanted]))
    least = min(hashes.size for hashes, _ in wanted)
    for row, theirs in enumerate(sets):
        at = np.minimum(np.searchsorted(every, theirs), every.size - 1)
        if int((every[at] == theirs).sum()) < alike.threshold * min(least, theirs.size):
            continue
        hit = next((number for hashes, number in wanted if overlap(hashes, theirs) >= alike.threshold), None)
        if hit is not None:
            yield row, hit

def drop_rows(
    store: Store,
    part: Part,
    rejects: Part,
    dropped: I64,
    refuse: Callable[[int, dict[str, Any]], Reject],
) -> tuple[Part, Part, int]:
    """Write a part without the rows in `dropped`, and add their rejects to the rejects of the part.

    Args:
        dropped: rows to drop, ascending.
        refuse: function that returns the reject of a row, given its number in the part and its id, uri, source_bytes
            and text.

    Returns:
        The part, its rejects, and the number of text bytes removed.
    """
    counts, refused = Counter[str](), list[Reject]()

    def kept() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in iter_batches(store, part):
            begin, end = np.searchsorted(dropped, [first, first + batch.num_rows])
            gone = np.zeros(batch.num_rows, dtype=np.bool_)
            gone[dropped[begin:end] - first] = True
            rows = batch.filter(pa.array(gone)).select(["id", "uri", "source_bytes", "text"]).to_pylist()
            for number, row in zip(dropped[begin:end].tolist(), rows, strict=True):
                counts.update(source_bytes=row["source_bytes"], text_bytes=len(row["text"].encode()))
                refused.append(refuse(number, row))
            yield batch.filter(pa.array(~gone))
            first += batch.num_rows

    made = write_batches(store, "part.parquet", DOCUMENT_SCHEMA, kept())
    stats = {key: part.stats[key] - counts[key] for key in ("text_bytes", "source_bytes")}
    reasons = Counter(rejects.stats["rejects"]) + Counter(reject.reason for reject in refused)
    with_them = write_batches(
        store,
        "rejects.parquet",
        REJECT_SCHEMA,
        [*iter_batches(store, rejects), reject_batch(refused)],
        stats={
            "rejects": dict(sorted(reasons.items())),
            "rejected_bytes": rejects.stats["rejected_bytes"] + counts["source_bytes"],
        },
    )
    made = made.model_copy(update={"stats": {**part.stats, "documents": made.rows, **stats}})
    return made, with_them, counts["text_bytes"]


# Documents of a bucket without those that an exclusion takes.
#
#     look           per part, by columns and by texts: (row, entry) of what is taken; kept by the step cache
#     without_taken  per part that has some: the part without them, and its rejects with them

VERSION = "2"
#: Rows that an exclusion takes, ascending, and the number of its entry.
TAKEN = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("entry", pa.int32(), nullable=False)])
Pair = tuple[Part, Part]


@dataclass(frozen=True)
class Dropped:
    """Parts and their rejects after excluded documents were removed.

    Args:
        taken: number of removed documents by entry number.
        digest: digest of the entries that removed documents; empty if no document was removed.
    """

    pairs: list[Pair]
    taken: dict[str, int] = field(default_factory=dict)
    digest: str = ""


def drop(ctx: Context, label: str, pairs: Sequence[Pair], entries: Sequence[Exclusion]) -> Dropped:
    """Remove the documents that an exclusion matches from the parts of a bucket, and return the parts with their
    rejects."""
    found = look(ctx, label, [part for part, _ in pairs], entries)
    items, affected = [], [at for at, own in enumerate(found) if any(taken.rows for taken in own)]
    for at in affected:
        task = Rewrite(*pairs[at], found[at])
        items.append(Item(tuple(part.blob.sha256 for part in (*pairs[at], *found[at])), task, pairs[at][0].rows))
    step = Step(name="documents/takedown", version=VERSION)
    made = run_items(ctx, step, without_taken, items, label=f"{label} (takedown)") if items else []
    kept = list(pairs)
    for at, (part, rejects, *_) in zip(affected, made, strict=True):
        kept[at] = (part, rejects)
    taken = sum_stats(part.stats.get("taken", {}) for part, *_ in made)
    at_work = [entry.digest for entry in entries if str(entry.number) in taken]
    return Dropped(kept, dict(sorted(taken.items())), fingerprint.digest(at_work) if at_work else "")


def look(
    ctx: Context, label: str, parts: Sequence[Part], entries: Sequence[Exclusion]
) -> list[tuple[Part, ...]]:
    """Return for each part the tables (`TAKEN`) of excluded rows. One table is from column rules, the other from text
    rules."""
    columns, texts = ColumnRules.of(entries), TextRules.of(entries)
    looks: list[tuple[Step, TaskFn, str]] = []
    if columns:
        step = Step(name="documents/takedown/columns", version=VERSION, libraries=fingerprint.UNICODE)
        looks.append((step, partial(_by_columns, columns), columns.digest))
    if texts:
        step = Step(name="documents/takedown/texts", version=VERSION, libraries=fingerprint.UNICODE)
        looks.append((step, partial(_by_texts, texts), texts.digest))
    made = [
        run_items(ctx, step, fn, [Item((part.blob.sha256, digest), part, part.rows) for part in parts], label=label)
        for step, fn, digest in looks
    ]
    return [tuple(one for (one,) in own) for own in zip(*made, strict=True)] or [()] * len(parts)


@dataclass(frozen=True)
class Rewrite:
    """Task that removes rows from a part and adds them to its rejects."""

    part: Part
    rejects: Part
    taken: tuple[Part, ...]


def without_taken(store: Store, task: Rewrite) -> tuple[Part, Part]:
    """Return one part without the excluded documents, and its rejects. In the part's statistics, `taken` is the number
    of removed documents by entry."""
    by_row = taken_rows(store, task.taken)

    def refuse(number: int, row: dict[str, Any]) -> Reject:
        detail = f"entry {by_row[number]} takes {row['id'].hex()}"
        return Reject(row["uri"], "part", TAKEDOWN, detail, row["source_bytes"])

    dropped: I64 = np.array(list(by_row), np.int64)
    part, rejects, _ = drop_rows(store, task.part, task.rejects, dropped, refuse)
    counts = sum_stats({str(entry): 1} for entry in by_row.values())
    return part.model_copy(update={"stats": {**part.stats, "taken": counts}}), rejects


def taken_rows(store: Store, taken: Sequence[Part]) -> dict[int, int]:
    """Return the entry that excludes each row, with rows ascending. If several tables contain a row, the entry in the
    first table is used."""
    rows: dict[int, int] = {}
    for table in taken:
        for row in read_table(store, table).to_pylist():
            rows.setdefault(row["row"], row["entry"])
    return dict(sorted(rows.items()))


def _by_columns(rules: ColumnRules, store: Store, part: Part) -> tuple[Part, ...]:
    batches = iter_batches(store, part, ["id", "uri", "licence"])
    return (_write(store, part, ((batch.num_rows, rules.look(batch)) for batch in batches)),)


def _by_texts(rules: TextRules, store: Store, part: Part) -> tuple[Part, ...]:
    batches = iter_batches(store, part, ["text"])
    return (_write(store, part, ((batch.num_rows, rules.look(batch.column("text"))) for batch in batches)),)


def _write(store: Store, part: Part, looks: Iterator[tuple[int, Iterator[Hit]]]) -> Part:
    rows, first = list[dict[str, int]](), 0
    for count, hits in looks:
        rows += ({"row": first + row, "entry": entry} for row, entry in hits)
        first += count
    return write_table(store, part.name, pa.Table.from_pylist(rows, schema=TAKEN))


# The same document in two parts of a bucket: the first stays, the others become rejects.
#
# A page that the next snapshot captures unchanged is such a document: no failure, but text that the bucket has already,
# which the funnel counts as duplicated. This is about identity (same address, same text); duplicates by content are
# found by `dedup`.
#
#     ids              per part, once and for all: its ids, sorted
#     repeated         per range of ids: the rows whose id an earlier row has
#     without_repeats  per part that has some: the part without them, and its rejects with them

#: Runs of (upper half of the id, row, lower half), and of rows.
IDS, REPEATED = "ids", "repeated"


class Repeats(Frozen):
    """Rows to drop from one part, with its rejects."""

    part: Part
    rejects: Part
    rows: Part


def drop_repeats(
    ctx: Context, bucket: str, pairs: Sequence[tuple[Part, ...]], *, range_rows: int = sorted_runs.RANGE_ROWS
) -> list[tuple[Part, Part]]:
    """Return the parts and rejects of a bucket without documents that an earlier part already contains.

    Args:
        range_rows: ids per reduce task; affects memory use only.
    """
    found = [(part, rejects) for part, rejects in pairs]
    if len(found) < 2:
        return found  # a part holds no document twice
    repeated = _repeated(ctx, f"{bucket}/documents", [part for part, _ in found], range_rows)
    affected = [index for index, rows in enumerate(repeated) if rows.rows]
    items = []
    for index in affected:
        task = Repeats(part=found[index][0], rejects=found[index][1], rows=repeated[index])
        inputs = tuple(part.blob.sha256 for part in (task.part, task.rejects, task.rows))
        items.append(Item(inputs=inputs, task=task, rows=task.rows.rows))
    step = Step(name="documents/repeats", version="4")
    results = run_items(ctx, step, without_repeats, items, label=f"{bucket}/documents (repeats)") if items else []
    for index, (part, rejects) in zip(affected, results, strict=True):
        found[index] = (part, rejects)
    return found


def without_repeats(store: Store, task: Repeats) -> tuple[Part, Part]:
    """Return one part without repeated documents, and its rejects."""
    with sorted_runs.SortedRun(store, task.rows, REPEATED) as opened:
        (dropped,) = opened.all()

    def refuse(_: int, row: dict[str, Any]) -> Reject:
        detail = f"an earlier part of the bucket holds {row['id'].hex()}"
        return Reject(row["uri"], "part", SEEN_BEFORE, detail, row["source_bytes"])

    part, rejects, text_bytes = drop_rows(store, task.part, task.rejects, dropped.astype(np.int64), refuse)
    seen = task.part.stats.get("seen_before_bytes", 0) + text_bytes
    return part.model_copy(update={"stats": {**part.stats, "seen_before_bytes": seen}}), rejects


def _repeated(ctx: Context, label: str, parts: Sequence[Part], range_rows: int) -> list[Part]:
    """Return, for each part, a sorted run of the rows whose id occurs in an earlier row of the bucket."""
    items = [Item((part.blob.sha256,), part, part.rows) for part in parts]
    made = run_items(ctx, Step(name="documents/ids", version="1"), _ids, items, label=f"{label} (ids)")
    numbers = SlotNumbers((0, *accumulate(part.rows for part in parts)))
    reader = RangeReader.over(ctx.store, IDS, tree(ctx, IDS, 3, [one[0] for one in made]), numbers)
    step = Step(name="documents/repeated", version="1")
    found = reduce(ctx, step, _later, reader, range_rows, f"{label} (repeated)")
    return gather(ctx, label, found, numbers, REPEATED, 1)


def _ids(store: Store, part: Part) -> tuple[Part, ...]:
    found = [pa.array([], pa.binary(16)), *(batch.column("id") for batch in iter_batches(store, part, ["id"]))]
    return (sorted_runs.write_halves(store, "ids.run", IDS, pa.chunked_array(found)),)


def _later(store: Store, task: Range) -> tuple[Part, ...]:
    first, (_, at, _) = task.read(store)
    return (sorted_runs.write(store, "repeated.run", REPEATED, [(np.sort(at[~first]),)], 1),)
