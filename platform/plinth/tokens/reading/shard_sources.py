"""Open the shards that a job reads: from the workspace's store, or from a remote through a cache or by spans."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plinth.records import Blob, Manifest
from plinth.storage.blob_cache import CachedStore, RemoteBlobs, exported_names
from plinth.storage.store import Store
from plinth.tokens.reading.parameters import Reading
from plinth.tokens.shards.blocks import BlockDigests, unproved
from plinth.tokens.shards.reader import ShardReader, Tokens, open_streams
from plinth.tokens.shards.streams import streams_of


@dataclass(frozen=True)
class ShardSource:
    """The store that shards and indexes are read from, and a reader for every stream."""

    store: Store
    readers: Mapping[str, ShardReader]


def open_shards(
    local: Store, shards: Iterable[Manifest], reading: Reading, blocks: Manifest | None = None
) -> ShardSource:
    """The streams of these shard sets. Digests are compared once: when a shard is fetched, or first read; those of
    spans whenever a span is fetched.

    Args:
        local: the workspace's store; shards are read from it where `reading` names no remote.
        blocks: the block digests of the shards (`tokens.shards.blocks`), in the workspace's store; without them
            nothing is read by spans.

    Raises:
        MissingError: shards are to be read by spans, and have no block digests.
    """
    made = {one.asset: one for one in shards}
    if reading.remote is None:
        return ShardSource(local, open_streams(local, made))
    remote = RemoteBlobs(reading.remote, exported_names(made) if reading.layout == "names" else None)
    root = Path(reading.cache) if reading.cache else local.root.parent / "cache"
    store = CachedStore(root, remote, reading.cache_bytes)
    if not reading.by_spans(sum(one.bytes for one in made.values())):
        return ShardSource(store, open_streams(store, made))
    if blocks is None:
        raise unproved("what the run trains on")
    digests = BlockDigests(local, blocks)
    return ShardSource(
        store,
        {
            stream.name: SpanReader(store, one, stream.name, remote, digests)
            for one in made.values()
            for stream in streams_of(one)
        },
    )


# Read shards by spans, for shard sets larger than a machine's cache: each rank fetches the tokens of its own rows.
#
# A span is fetched with the rest of the blocks that it lies in, and every block is compared with its digest
# (`tokens.shards.blocks`) before a token of it is returned.

REQUESTS_AT_ONCE = 16


class SpanReader(ShardReader):
    """A stream whose tokens are fetched when they are read; nothing is mapped.

    Args:
        store: where the index is read from.
        remote: where the shards are.
        blocks: digests of their blocks.

    Raises:
        MissingError: a shard has no block digests.
        MissingError, StorageError: on reading: a shard is absent or does not answer.
        IntegrityError: on reading: a block has other bytes than were written.
    """

    mapped = False

    def __init__(
        self, store: Store, shards: Manifest, stream: str | None, remote: RemoteBlobs, blocks: BlockDigests
    ) -> None:
        super().__init__(store, shards, stream)
        self._remote, self._blocks = remote, blocks
        blocks.require(part.blob for part in self.shards)
        self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="spans")

    def _span(self, start: int, count: int) -> Tokens:
        pieces = [
            np.frombuffer(self._proved(self.shards[shard].blob, first, stop), self.dtype)
            for shard, first, stop in self._ranges(start, count)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def _proved(self, blob: Blob, first: int, stop: int) -> memoryview:
        """Bytes `first` to `stop` of a shard, out of blocks that were compared."""
        begin, end = self._blocks.widened(blob, first, stop)
        data = self._remote.read(blob, begin, end)
        self._blocks.compare(blob, begin, data, self._remote.uri(blob))
        return memoryview(data)[first - begin : stop - begin]

    def gather(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """Spans of the stream one after another in one array, many requests at once, and where each begins there."""
        began = time.perf_counter()
        spans = self._pool.map(self._span, starts.tolist(), counts.tolist())
        tokens = np.concatenate([np.empty(0, self.dtype), *spans])
        self._remote.traffic.add(wait_s=time.perf_counter() - began)
        return tokens, np.cumsum(counts) - counts

    def _ranges(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """The byte ranges of a span: shard, first byte and end."""
        width, stop = self.dtype.itemsize, start + count
        while start < stop:
            shard = bisect_right(self._starts, start) - 1
            first = self._starts[shard]
            end = min(stop, first + int(self.shards[shard].stats["tokens"]))
            yield shard, (start - first) * width, (end - first) * width
            start = end
