"""Read a stream of a shard set: spans of tokens from mapped files, documents by binary search in the index.

Opening reads the manifest only; a shard is mapped, and where that is asked verified, when a span first touches it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest, Part
from plinth.storage.store import Store
from plinth.tokens.reading.verified import verify_once
from plinth.tokens.shards.index import DocumentIndex, DocumentSpan
from plinth.tokens.shards.mapped import map_file
from plinth.tokens.shards.streams import Stream, stream_of, streams_of

__all__ = ["DocumentSpan", "ShardReader", "open_streams"]

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
        self.shards, self.index = shelf.shards, DocumentIndex(store, shelf.index)
        self._starts = shelf.shard_starts
        self._maps: dict[int, Tokens] = {}
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
        return self.index.documents(start, stop)

    def find(self, document: str, part: int | None = None) -> list[DocumentSpan]:
        """Where a document (hexadecimal id) lies; empty when the stream does not hold it.

        With `part`, its curated part, only what the index has of that part is searched.
        """
        return self.index.find(bytes.fromhex(document), part)

    def documents_of_part(self, part: int) -> Iterator[DocumentSpan]:
        """The stream's documents from one curated part, in order."""
        return self.index.of_part(part)

    def index_batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Starts and lengths of all documents, in stream order, some thousands at a time."""
        return ((own.starts, own.tokens) for own in self.index.batches())

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
            self._maps[shard] = map_file(self._store.open_path(part.blob)).view(self.dtype)
        return self._maps[shard]


@dataclass(frozen=True)
class _Shelf:
    """Parts of a stream with their places."""

    shards: tuple[Part, ...]
    index: tuple[Part, ...]
    shard_starts: list[int]
    tokens: int


_SHELVES: OrderedDict[tuple[int, str], tuple[Manifest, _Shelf]] = OrderedDict()


def _shelf(shards: Manifest, folder: str) -> _Shelf:
    """What a manifest says of a stream; kept, since a set of 10^12 tokens has tens of thousands of parts."""
    key = (id(shards), folder)
    if key not in _SHELVES:
        parts, index = shards.named(f"{folder}shard-"), shards.named(f"{folder}index-")
        starts = [int(part.stats["start"]) for part in parts]
        made = _Shelf(parts, index, starts, sum(int(part.stats["tokens"]) for part in parts))
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
