"""Open the shards that a job reads: from the workspace's store, or from a remote through a cache or by spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from plinth.records import Manifest
from plinth.storage.blob_cache import CachedStore, RemoteBlobs, exported_names
from plinth.storage.store import Store
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
