"""All exclusions, ready for look-up: by columns of a document, and by its text.

A look is a table of (row, entry), by row. It reads columns, or texts; neither rewrites anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, TaskFn, run_items, sum_stats
from plinth.corpus.dedup.near import shingles
from plinth.corpus.documents.tables import drop_rows
from plinth.corpus.exclusions import addresses
from plinth.corpus.exclusions.exclusion_list import Alike, Exclusion, TextSignature, overlap
from plinth.corpus.sources.record import TAKEDOWN, Reject
from plinth.records import Part, Step
from plinth.storage.parts import iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth_text.unicode import digests

U64 = npt.NDArray[np.uint64]
#: Row of a batch, and number of the entry.
Hit = tuple[int, int]


@dataclass(frozen=True)
class ColumnRules:
    """Rules on `id`, `uri` and `licence`: the entry of each value; the first entry counts."""

    documents: dict[bytes, int]
    urls: dict[str, int]
    domains: dict[str, int]
    licences: dict[str, int]

    @classmethod
    def of(cls, entries: Sequence[Exclusion]) -> ColumnRules:
        """The rules of all entries."""
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
        """Identity of the rules."""
        named = {key.hex(): number for key, number in self.documents.items()}
        return fingerprint.digest([named, self.urls, self.domains, self.licences])

    def look(self, batch: pa.RecordBatch) -> Iterator[Hit]:
        """Rows that a rule takes; reads `id`, `uri` and `licence`."""
        found: dict[int, int] = {}
        for row, key in enumerate(batch.column("id").to_pylist() if self.documents else ()):
            if key in self.documents:
                found[row] = self.documents[key]
        for row, uri in enumerate(batch.column("uri").to_pylist() if self.urls or self.domains else ()):
            number = self.urls.get(addresses.address(uri)) if self.urls else None
            number = number or next((self.domains[n] for n in addresses.domains_of(uri) if n in self.domains), None)
            if number:
                found.setdefault(row, number)
        for row, terms in enumerate(batch.column("licence").to_pylist() if self.licences else ()):
            number = next((self.licences[n] for n in sorted(addresses.licences_of(terms)) if n in self.licences), None)
            if number:
                found.setdefault(row, number)
        yield from sorted(found.items())


@dataclass(frozen=True)
class TextRules:
    """Signatures of texts, by what makes texts alike, with the number of their entry."""

    groups: tuple[tuple[Alike, tuple[tuple[TextSignature, int], ...]], ...]

    @classmethod
    def of(cls, entries: Iterable[Exclusion]) -> TextRules:
        """The signatures of all entries."""
        listed = [(one.alike, text, one.number) for one in entries for text in one.texts]
        listed.sort(key=lambda each: (each[0].model_dump_json(), each[2]))
        grouped = groupby(listed, key=lambda each: each[0])
        return cls(tuple((alike, tuple((text, number) for _, text, number in own)) for alike, own in grouped))

    def __bool__(self) -> bool:
        return bool(self.groups)

    @property
    def digest(self) -> str:
        """Identity of the rules."""
        plain = [
            [alike.model_dump(), [[text.digest, text.shingles, number] for text, number in own]]
            for alike, own in self.groups
        ]
        return fingerprint.digest(plain)

    def look(self, texts: pa.Array) -> Iterator[Hit]:
        """Texts that are alike one of the signatures."""
        same = {text.digest: number for _, own in self.groups for text, number in reversed(own)}
        found = {row: same[key.hex()] for row, key in enumerate(digests(texts).to_pylist()) if key.hex() in same}
        for alike, own in self.groups:
            for row, number in _alike(alike, own, shingles.sets(texts, alike.minhash)):
                found.setdefault(row, number)
        yield from sorted(found.items())


def _alike(alike: Alike, own: Sequence[tuple[TextSignature, int]], sets: Sequence[U64]) -> Iterator[Hit]:
    """Rows whose set overlaps a signature; those that share too little with all of them together are passed over."""
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


# Documents of a bucket without those that an exclusion takes.
#
#     look      per part, by columns and by texts: (row, entry) of what is taken; kept by the step cache
#     rewrite   per part that has some: the part without them, and its rejects with them
#
# A part that no entry touches stays the same blob, so all that was made of it stays too.

VERSION = "2"
#: Rows that an exclusion takes, ascending, and the number of its entry.
TAKEN = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("entry", pa.int32(), nullable=False)])
Pair = tuple[Part, Part]


@dataclass(frozen=True)
class Dropped:
    """Parts with their rejects, without what was taken.

    Args:
        taken: documents by number of the entry.
        digest: identity of the entries that took something; empty where none did.
    """

    pairs: list[Pair]
    taken: dict[str, int] = field(default_factory=dict)
    digest: str = ""


def drop(ctx: Context, label: str, pairs: Sequence[Pair], entries: Sequence[Exclusion]) -> Dropped:
    """The parts and rejects of a bucket without documents that an exclusion takes."""
    found = look(ctx, label, [part for part, _ in pairs], entries)
    items, affected = [], [at for at, own in enumerate(found) if any(taken.rows for taken in own)]
    for at in affected:
        task = Rewrite(*pairs[at], found[at])
        items.append(Item(tuple(part.blob.sha256 for part in (*pairs[at], *found[at])), task, pairs[at][0].rows))
    step = Step(name="documents/takedown", version=VERSION)
    made = run_items(ctx, step, rewrite, items, label=f"{label} (takedown)") if items else []
    kept = list(pairs)
    for at, (part, rejects, *_) in zip(affected, made, strict=True):
        kept[at] = (part, rejects)
    taken = sum_stats(part.stats.get("taken", {}) for part, *_ in made)
    at_work = [entry.digest for entry in entries if str(entry.number) in taken]
    return Dropped(kept, dict(sorted(taken.items())), fingerprint.digest(at_work) if at_work else "")


def look(
    ctx: Context, label: str, parts: Sequence[Part], entries: Sequence[Exclusion]
) -> list[tuple[Part, ...]]:
    """Per part of documents, tables (`TAKEN`) of what is taken by columns and by text, where there are such rules."""
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
    """A part, its rejects, and what is taken of it."""

    part: Part
    rejects: Part
    taken: tuple[Part, ...]


def rewrite(store: Store, task: Rewrite) -> tuple[Part, Part]:
    """One part without what is taken, and its rejects with it; `taken` of its statistics counts by entry."""
    by_row = taken_rows(store, task.taken)

    def refuse(number: int, row: dict[str, Any]) -> Reject:
        detail = f"entry {by_row[number]} takes {row['id'].hex()}"
        return Reject(row["uri"], "part", TAKEDOWN, detail, row["source_bytes"])

    dropped: npt.NDArray[np.int64] = np.array(list(by_row), np.int64)
    part, rejects, _ = drop_rows(store, task.part, task.rejects, dropped, refuse)
    counts = sum_stats({str(entry): 1} for entry in by_row.values())
    return part.model_copy(update={"stats": {**part.stats, "taken": counts}}), rejects


def taken_rows(store: Store, taken: Sequence[Part]) -> dict[int, int]:
    """Entry by row, rows ascending; the first table that names a row counts."""
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
