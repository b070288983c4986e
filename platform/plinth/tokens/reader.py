"""Read a stream of a shard set: spans of tokens from mapped files, documents by binary search in the index.

Opening reads the manifest only; a shard is mapped, and where that is asked verified, when a span first touches it.
Of the index only the rows near a span are read, so that a step can be listed in milliseconds at any size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth.tokens.index import DocumentSpan, IndexPart
from plinth.tokens.streams import Stream, stream_of, streams_of
from plinth.tokens.verified import verify_once

__all__ = ["DocumentSpan", "ShardReader", "open_streams"]

INDEX_PARTS_HELD = 64

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
        folder = self.stream.folder
        self.shards, self._index = shards.named(f"{folder}shard-"), shards.named(f"{folder}index-")
        self._starts = [int(part.stats["start"]) for part in self.shards]
        self._index_starts = [int(part.stats["start"]) for part in self._index]
        self._maps: dict[int, Tokens] = {}
        self._index_part = lru_cache(maxsize=INDEX_PARTS_HELD)(lambda number: IndexPart(store, self._index[number]))
        held = sum(int(part.stats["tokens"]) for part in self.shards)
        if held != self.tokens:
            raise IntegrityError(
                f"the shards of {self.stream.name} do not add up",
                found=f"{held} tokens",
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
            yield from self._index_part(part).documents(start, stop)

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
