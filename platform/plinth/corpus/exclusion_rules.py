"""All exclusions, ready for look-up: by columns of a document, and by its text.

A look-up gives a table of (row, entry), by row. It reads columns, or texts; neither rewrites anything.
It is apart from the list, which readers of signed logs import without Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.corpus.dedup.near import shingles
from plinth.corpus.exclusions import Alike, Exclusion, TextSignature, address, domains_of, licences_of, overlap
from plinth_text.arrays import U64
from plinth_text.unicode import digests

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
