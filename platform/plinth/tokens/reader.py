"""Read a stream of a shard set: spans of tokens from mapped files, documents by binary search in the index.

Opening reads the manifest only; a shard is mapped, and where that is asked verified, when a span first touches it.
Of the index only the rows near a span are read, so that a step can be listed in milliseconds at any size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth.tokens.index import DocumentSpan, IndexPart
from plinth.tokens.streams import Stream, stream_of, streams_of
from plinth.tokens.verified import verify_once

__all__ = ["DocumentSpan", "ShardReader", "open_streams"]

INDEX_PARTS_HELD = 64
SHELVES_HELD = 256

Tokens = NDArray[np.unsignedinteger]


class ShardReader:
    """One token stream of a bucket.

    Args:
        store: where the shards lie.
        shards: manifest of a `{bucket}/shards` asset.
        stream: name of the stream; may be left out where the bucket has only one.
        verify: compare each shard's SHA-256 when it is first touched.

    Raises:
        MissingError: no such stream, or several and none is named.
        MissingError, IntegrityError: on first touch: a shard is absent, torn, or (with `verify`) changed.
    """

    #: Whether shards are files that are mapped; otherwise spans are fetched, and `gather` is the way to many.
    mapped = True

    def __init__(self, store: Store, shards: Manifest, stream: str | None = None, *, verify: bool = False) -> None:
        self.stream = _chosen(shards, stream)
        self.bucket = self.stream.bucket
        self.tokens: int = self.stream.tokens
        self.documents_count: int = self.stream.documents
        self.end_of_text: int = shards.stats["end_of_text"]
        self.dtype = np.dtype(shards.stats["dtype"])
        self._store, self._verify = store, verify
        shelf = _shelf(shards, self.stream.folder)
        self.shards, self._index = shelf.shards, shelf.index
        self._starts, self._index_starts = shelf.shard_starts, shelf.index_starts
        self._maps: dict[int, Tokens] = {}
        self._parts: OrderedDict[int, IndexPart] = OrderedDict()
        if shelf.tokens != self.tokens:
            raise IntegrityError(
                f"the shards of {self.stream.name} do not add up",
                found=f"{shelf.tokens} tokens",
                expected=f"{self.tokens} tokens",
            )

    @property
    def shard_starts(self) -> tuple[int, ...]:
        """Where in the stream each shard begins; `read` of exactly one shard is a view of it."""
        return tuple(self._starts)

    def verify(self) -> None:
        """Read every shard and compare its SHA-256.

        Raises:
            MissingError, IntegrityError: a shard is absent or has changed.
        """
        for part in self.shards:
            self._store.verify(part.blob)

    def read(self, start: int, count: int) -> Tokens:
        """Tokens `start` to `start + count` of the stream; a view where they lie in one shard.

        Raises:
            ValueError: the span is not inside the stream.
        """
        if start < 0 or count < 0 or start + count > self.tokens:
            raise ValueError(f"tokens {start} to {start + count} of {self.stream.name}, which has {self.tokens}")
        return self._span(start, count) if count else np.empty(0, self.dtype)

    def gather(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """Spans of the stream one after another in one array, and where each begins there."""
        spans = (self._span(start, count) for start, count in zip(starts.tolist(), counts.tolist(), strict=True))
        return np.concatenate([np.empty(0, self.dtype), *spans]), np.cumsum(counts) - counts

    def documents(self, start: int, stop: int) -> Iterator[DocumentSpan]:
        """The documents that have tokens in `start` to `stop`, in stream order."""
        number = max(0, bisect_right(self._index_starts, start) - 1)
        for part in range(number, len(self._index)):
            if max(start, self._index_starts[part]) >= stop:
                return
            yield from self._index_part(part, start).documents(start, stop)

    def find(self, document: str, part: int | None = None) -> list[DocumentSpan]:
        """Where a document (hexadecimal id) lies; empty when the stream does not hold it.

        With `part`, its curated part, only the index of that part is read.
        """
        wanted = bytes.fromhex(document)
        found: list[DocumentSpan] = []
        for number in self._covering(part):
            row = 0
            for batch in iter_batches(self._store, self._index[number], ["id"]):
                hits = np.flatnonzero(pc.equal(batch.column("id"), wanted).to_numpy(zero_copy_only=False))
                found += [self._index_part(number).span(row + int(hit)) for hit in hits]
                row += batch.num_rows
        return [span for span in found if part is None or span.part == part]

    def documents_of_part(self, part: int) -> Iterator[DocumentSpan]:
        """The stream's documents from one curated part, in order."""
        for number in self._covering(part):
            yield from self._index_part(number).of_part(part)

    def index_batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Starts and lengths of all documents, in stream order, a row group at a time."""
        for part in self._index:
            for batch in iter_batches(self._store, part, ["start", "tokens"]):
                yield batch.column("start").to_numpy(), batch.column("tokens").to_numpy()

    def _index_part(self, number: int, near: int | None = None) -> IndexPart:
        if number not in self._parts:
            self._parts[number] = IndexPart(self._store, self._index[number], near)
            while len(self._parts) > INDEX_PARTS_HELD:
                self._parts.popitem(last=False)
        return self._parts[number]

    def _covering(self, part: int | None) -> list[int]:
        """Index parts that have documents of a curated part."""
        if part is None:
            return list(range(len(self._index)))
        spans = [one.stats.get("parts", (number, number)) for number, one in enumerate(self._index)]
        return [number for number, (first, last) in enumerate(spans) if first <= part <= last]

    def _span(self, start: int, count: int) -> Tokens:
        shard = bisect_right(self._starts, start) - 1
        at = start - self._starts[shard]
        tokens = self._map(shard)[at : at + count]
        if len(tokens) == count:
            return tokens
        return np.concatenate([tokens, self._span(start + len(tokens), count - len(tokens))])

    def _map(self, shard: int) -> Tokens:
        if shard not in self._maps:
            part = self.shards[shard]
            if self._verify:
                verify_once(self._store, part.blob)
            mapped = np.memmap(self._store.open_path(part.blob), dtype=self.dtype, mode="r")
            self._maps[shard] = np.asarray(mapped).view(np.ndarray)  # plain arrays slice faster than memmap does
        return self._maps[shard]


@dataclass(frozen=True)
class _Shelf:
    """Parts of a stream with their places."""

    shards: tuple[Part, ...]
    index: tuple[Part, ...]
    shard_starts: list[int]
    index_starts: list[int]
    tokens: int


_SHELVES: OrderedDict[tuple[int, str], tuple[Manifest, _Shelf]] = OrderedDict()


def _shelf(shards: Manifest, folder: str) -> _Shelf:
    """What a manifest says of a stream; kept, since a set of 10^12 tokens has tens of thousands of parts."""
    key = (id(shards), folder)
    if key not in _SHELVES:
        parts, index = shards.named(f"{folder}shard-"), shards.named(f"{folder}index-")
        starts, index_starts = ([int(part.stats["start"]) for part in each] for each in (parts, index))
        tokens = sum(int(part.stats["tokens"]) for part in parts)
        made = _Shelf(parts, index, starts, index_starts, tokens)
        _SHELVES[key] = (shards, made)  # with the manifest, so that no other gets its id
        while len(_SHELVES) > SHELVES_HELD:
            _SHELVES.popitem(last=False)
        return made
    return _SHELVES[key][1]


def open_streams(
    store: Store, shards: Mapping[str, Manifest] | Iterable[Manifest], *, verify: bool = False
) -> dict[str, ShardReader]:
    """A reader for every stream of these shard sets, by the stream's name."""
    manifests = shards.values() if isinstance(shards, Mapping) else shards
    return {
        stream.name: ShardReader(store, made, stream.name, verify=verify)
        for made in manifests
        for stream in streams_of(made)
    }


def _chosen(shards: Manifest, name: str | None) -> Stream:
    if name is not None:
        return stream_of(shards, name)
    every = streams_of(shards)
    if len(every) != 1:
        raise MissingError(
            f"{shards.asset} is cut into {len(every)} streams, and none was named",
            expected=", ".join(one.name for one in every[:5]) + (", …" if len(every) > 5 else ""),
            remedy="name one of them, or open all with `open_streams`",
        )
    return every[0]
