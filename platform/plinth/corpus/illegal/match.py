"""Records against the lists: hits, with list, rule and distance. Texts go in, no text comes out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.corpus.illegal.lists import Hashes, ListEntry, Lists
from plinth.corpus.sources.parameters import Matching
from plinth.text import domains, host
from plinth_text.similarity import simhashes
from plinth_text.unicode import utf8

#: Kinds of hits, in the order in which a record's hits are reported.
KINDS = ("sha256_record", "sha256_text", "sha256_media", "simhash", "phash", "keyword", "domain")


@dataclass(frozen=True, slots=True)
class ListHit:
    """One entry that a record hits; `distance` in bits, for hashes that may differ."""

    kind: str
    entry: ListEntry
    distance: int | None = None

    @property
    def rule(self) -> str:
        """The rule in words that reveal nothing of the record."""
        near = f" at distance {self.distance}" if self.distance is not None else ""
        return f"{self.kind}{near}" + (f" of category {self.entry.category}" if self.entry.category else "")


class Matcher:
    """Lists with the recipe's bounds."""

    def __init__(self, lists: Lists, params: Matching) -> None:
        self.lists, self.params = lists, params

    def records(self, digests: Sequence[bytes], kind: str = "sha256_record") -> list[ListHit | None]:
        """Of SHA-256 digests, those that are listed."""
        if self.lists.sha256 is None or not digests:
            return [None] * len(digests)
        return [
            ListHit(kind, self.lists.digest_entry(at)) if at >= 0 else None for at in self.lists.sha256.find(digests)
        ]

    def texts(self, texts: pa.Array, uris: Sequence[str], media: Sequence[Any]) -> list[tuple[ListHit, ...]]:
        """Hits of normalised texts with their addresses and the media they declare, in the order of `KINDS`.

        Args:
            media: of every record, what stands under `media` in its `extra`.
        """
        found: list[list[ListHit]] = [[] for _ in range(len(texts))]
        if self.lists.sha256 is not None:
            for row, hit in enumerate(self.records(_digests(texts), "sha256_text")):
                found[row] += [hit] if hit is not None else []
        for row, declared in enumerate(media):
            if declared:
                found[row].extend(self._media(declared, "sha256", self._media_digest))
        self._simhashes(texts, found)
        for row, declared in enumerate(media):
            if declared:
                found[row].extend(self._media(declared, "phash", self._media_hash))
        self._keywords(texts, found)
        if self.lists.domains:
            for row, uri in enumerate(uris):
                name = next((one for one in domains(host(uri, bare=True)) if one in self.lists.domains), None)
                if name is not None:
                    found[row].append(ListHit("domain", self.lists.domains[name]))
        return [tuple(dict.fromkeys(hits)) for hits in found]

    def _simhashes(self, texts: pa.Array, found: list[list[ListHit]]) -> None:
        if self.lists.simhash is None:
            return
        hashes, filled = simhashes(texts, self.params.shingle_words)
        places, bits = self.lists.simhash.near.nearest(hashes)
        for row in np.flatnonzero((places >= 0) & filled).tolist():
            entry = self.lists.hash_entry(self.lists.simhash, int(places[row]))
            found[row].append(ListHit("simhash", entry, int(bits[row])))

    def _keywords(self, texts: pa.Array, found: list[list[ListHit]]) -> None:
        if self.lists.terms is None:
            return
        hits = self.lists.terms.find(texts, self.params.disguised)
        for row in np.flatnonzero(np.diff(hits.starts)).tolist():
            different = np.unique(hits.terms[hits.starts[row] : hits.starts[row + 1]])
            if different.size >= self.params.min_keywords:
                found[row].extend(ListHit("keyword", self.lists.keywords[int(term)]) for term in different)

    def _media(self, declared: Any, name: str, find: Any) -> Iterator[ListHit]:
        for item in declared if isinstance(declared, list) else ():
            value = item.get(name) if isinstance(item, Mapping) else None
            hit = find(value) if isinstance(value, str) else None
            if hit is not None:
                yield hit

    def _media_digest(self, value: str) -> ListHit | None:
        return self.records([bytes.fromhex(value)], "sha256_media")[0]

    def _media_hash(self, value: str) -> ListHit | None:
        hashes: Hashes | None = self.lists.phash
        if hashes is None:
            return None
        places, bits = hashes.near.nearest(np.array([int(value, 16)], dtype=np.uint64))
        if places[0] < 0:
            return None
        return ListHit("phash", self.lists.hash_entry(hashes, int(places[0])), int(bits[0]))


def media_of(extras: Sequence[str]) -> list[Any]:
    """The media that stored documents declare under `media` of their `extra`."""
    return [json.loads(extra).get("media") if '"media"' in extra else None for extra in extras]


def _digests(texts: pa.Array) -> list[bytes]:
    """SHA-256 of every text in UTF-8, without decoding it."""
    data, offsets = utf8(texts)
    view, ends = data.data, offsets.tolist()
    return [hashlib.sha256(view[start:end]).digest() for start, end in pairwise(ends)]
