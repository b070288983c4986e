"""Read a stream of a shard set: spans of tokens from mapped files; its documents are in `index`.

Opening reads the manifest only; a shard is mapped when a span first touches it, and the first reader on a machine
compares its digest (`storage.verified`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.shards.index import DocumentIndex
from plinth.tokens.shards.mapped import map_file
from plinth.tokens.shards.streams import Stream, stream_of, streams_of

Tokens = NDArray[np.unsignedinteger]


class ShardReader:
    """One token stream of a bucket.

    Args:
        store: where the shards lie.
        shards: manifest of a `{bucket}/shards` asset.
        stream: name of the stream; may be left out where the bucket has only one.

    Raises:
        MissingError: no such stream, or several and none is named.
        MissingError, IntegrityError: on first touch: a shard is absent, torn or changed.
    """

    #: Whether shards are mapped files; otherwise spans are fetched, and `gather` fetches many at once.
    mapped = True

    def __init__(self, store: Store, shards: Manifest, stream: str | None = None) -> None:
        self.stream = _stream_named(shards, stream)
        self.bucket = self.stream.bucket
        self.tokens: int = self.stream.tokens
        self.documents_count: int = self.stream.documents
        self.end_of_text: int = shards.stats["end_of_text"]
        self.dtype = np.dtype(shards.stats["dtype"])
        self._store = store
        self.shards = shards.named(f"{self.stream.folder}shard-")
        self.index = DocumentIndex(store, shards.named(f"{self.stream.folder}index-"))
        self._starts = [int(part.stats["start"]) for part in self.shards]
        self._maps: dict[int, Tokens] = {}
        total = sum(int(part.stats["tokens"]) for part in self.shards)
        if total != self.tokens:
            raise IntegrityError(
                f"the shards of {self.stream.name} do not add up",
                found=f"{total} tokens",
                expected=f"{self.tokens} tokens",
            )

    @property
    def shard_starts(self) -> tuple[int, ...]:
        """Where in the stream each shard begins; `read` of exactly one shard is a view of it."""
        return tuple(self._starts)

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

    def shard(self, number: int) -> Tokens:
        """A shard, mapped; at its first touch its digest is compared."""
        tokens = self._maps.get(number)
        if tokens is None:
            path = self._store.open_path(self.shards[number].blob)
            tokens = self._maps.setdefault(number, map_file(path).view(self.dtype))  # threads keep one of them
        return tokens

    def index_batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Starts and lengths of all documents, in stream order, at most `BATCH_DOCUMENTS` at a time."""
        return ((own.starts, own.tokens) for own in self.index.batches())

    def _span(self, start: int, count: int) -> Tokens:
        shard = bisect_right(self._starts, start) - 1
        at = start - self._starts[shard]
        tokens = self.shard(shard)[at : at + count]
        if len(tokens) == count:
            return tokens
        return np.concatenate([tokens, self._span(start + len(tokens), count - len(tokens))])


def open_streams(store: Store, shards: Mapping[str, Manifest] | Iterable[Manifest]) -> dict[str, ShardReader]:
    """A reader for every stream of these shard sets, by the stream's name."""
    manifests = shards.values() if isinstance(shards, Mapping) else shards
    return {stream.name: ShardReader(store, made, stream.name) for made in manifests for stream in streams_of(made)}


def _stream_named(shards: Manifest, name: str | None) -> Stream:
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
