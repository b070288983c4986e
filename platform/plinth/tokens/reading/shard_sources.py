"""Open the shards that a job reads: from the workspace's store, or from a remote through a cache or by spans."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plinth.errors import PlinthError
from plinth.records import Blob, Manifest
from plinth.storage.blob_cache import CachedStore
from plinth.storage.remote_blobs import RemoteBlobs, exported_names
from plinth.storage.store import Store
from plinth.tokens.reading.loader import Loader
from plinth.tokens.reading.parameters import Reading
from plinth.tokens.reading.span_reader import SpanReader
from plinth.tokens.shards.blocks import BlockDigests, unproved
from plinth.tokens.shards.reader import ShardReader, open_streams
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


def needed_shards(loader: Loader, first_step: int) -> Iterator[Blob]:
    """Shards in the order in which this rank's steps need them, from a step on; each once."""
    seen: set[str] = set()
    total = len({part.blob.md5 for reader in loader.readers for part in reader.shards})
    for step in range(first_step, loader.steps):
        if len(seen) == total:
            return
        for reader, _, pieces in loader.pieces(step):
            bounds = np.array(reader.shard_starts)
            first = np.searchsorted(bounds, pieces.starts, side="right") - 1
            last = np.searchsorted(bounds, pieces.starts + pieces.tokens - 1, side="right") - 1
            for number in dict.fromkeys(np.concatenate([first, last]).tolist()):
                blob = reader.shards[number].blob
                if blob.md5 not in seen:
                    seen.add(blob.md5)
                    yield blob


@contextmanager
def prefetching_shards(source: ShardSource, loader: Loader, first_step: int, threads: int) -> Iterator[None]:
    """Fetch shards in background threads, in the order in which the steps need them.

    An error ends the thread; it is raised when the shard itself is read.
    """
    store = source.store
    whole = isinstance(store, CachedStore) and all(reader.mapped for reader in source.readers.values())
    if not whole or not threads:
        yield
        return
    assert isinstance(store, CachedStore)
    blobs, lock, stopped = needed_shards(loader, first_step), threading.Lock(), threading.Event()

    def work(store: CachedStore) -> None:
        with suppress(PlinthError):
            while not stopped.is_set():
                with lock:
                    blob = next(blobs, None)
                if blob is None:
                    return
                store.fill(blob)

    for _ in range(threads):
        threading.Thread(target=work, args=(store,), name="prefetch shards", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()
