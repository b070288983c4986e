"""Sources of the shards that a job reads: the workspace's store or a remote. Shards are fetched and verified before the
steps that read them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, PlinthError
from plinth.records import Blob, Manifest
from plinth.storage.blob_cache import CachedStore, RemoteBlobs, exported_names
from plinth.storage.store import Store
from plinth.tokens.reading.loader import Loader, RankBatch
from plinth.tokens.shards.parameters import Reading, streams_of
from plinth.tokens.shards.reader import BlockDigests, ShardReader, Tokens, open_streams, unproved


@dataclass(frozen=True)
class ShardSource:
    """Store from which shards and indexes are read, and a reader for every stream."""

    store: Store
    readers: Mapping[str, ShardReader]


def open_shards(
    local: Store, shards: Iterable[Manifest], reading: Reading, blocks: Manifest | None = None
) -> ShardSource:
    """Open all streams of the given shard sets.

    A shard's digest is compared once: when the shard is fetched or first read. The digests of a span are compared
    whenever the span is fetched.

    Args:
        local: the workspace's store; shards are read from it if `reading` names no remote.
        blocks: block digests of the shards (`tokens.shards.reader`), in the workspace's store; they are required for
            reading by spans.

    Raises:
        MissingError: shards are to be read by spans, but have no block digests.
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
        raise unproved("the run's training data")
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
# A span is fetched with the rest of its blocks, and every block is compared with its digest
# (`tokens.shards.reader`) before a token of it is returned.

REQUESTS_AT_ONCE = 16


class SpanReader(ShardReader):
    """Reader of a stream whose tokens are fetched when they are read, without mapping shards.

    Args:
        store: store from which the index is read.
        remote: remote that has the shards.
        blocks: digests of the shards' blocks.

    Raises:
        MissingError: a shard has no block digests, or is absent when it is read.
        StorageError: the remote does not answer; raised on reading.
        IntegrityError: a block differs from the block that was written; raised on reading.
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
        """Return the bytes `first` to `stop` of a shard, after comparing their blocks with the block digests."""
        begin, end = self._blocks.widened(blob, first, stop)
        data = self._remote.read(blob, begin, end)
        self._blocks.compare(blob, begin, data, self._remote.uri(blob))
        return memoryview(data)[first - begin : stop - begin]

    def gather(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """Return several spans of the stream, joined in one array, and the start of each span in it.

        Spans are fetched with many requests at once.
        """
        began = time.perf_counter()
        spans = self._pool.map(self._span, starts.tolist(), counts.tolist())
        tokens = np.concatenate([np.empty(0, self.dtype), *spans])
        self._remote.traffic.add(wait_s=time.perf_counter() - began)
        return tokens, np.cumsum(counts) - counts

    def _ranges(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the byte ranges of a span: number of the shard, first byte, and end (exclusive)."""
        width, stop = self.dtype.itemsize, start + count
        while start < stop:
            shard = bisect_right(self._starts, start) - 1
            first = self._starts[shard]
            end = min(stop, first + int(self.shards[shard].stats["tokens"]))
            yield shard, (start - first) * width, (end - first) * width
            start = end


# Fetch and prove shards before the steps that read them.
#
#     order ──► plan: the shards that a step is the first to touch ──► workers: fetch, compare the digest, map
#                  │ at most `LEAD_STEPS` before the step that is read         │
#     loader ◄─────┴──────── waits for the shards of its step, and only those ◄┘
#
# Which shards a step touches is arithmetic, so a thread knows it without reading a token; where packing has an index,
# that thread opens the index too. A shard is compared once, by a worker, never by the thread that makes batches. One
# that has changed stops the run at the step that would have read it, and no step before.
#
# Spans of a remote are not planned here: `span_reader` proves each block when it is fetched, in threads of its own.

#: Steps before its first use at which a shard is verified: a shard of 1 GB takes one CPU second.
LEAD_STEPS = 256

#: Name of the threads.
THREADS = "shards ahead"


class Touch(NamedTuple):
    """First use of a shard by a rank: reader of the stream, and number of the shard."""

    reader: ShardReader
    number: int


def first_touches(loader: Loader, first_step: int, stop_step: int) -> Iterator[list[Touch]]:
    """Yield for each step, starting at `first_step`, the shards that this rank reads for the first time.

    The iterator ends when all shards have been read. If the layout has a packed index, the index is mapped into memory.
    """
    left = {reader.stream.name: len(reader.shards) for reader in loader.readers}
    seen: dict[str, set[int]] = {name: set() for name in left}
    for step in range(first_step, stop_step):
        if not any(left.values()):
            return
        loader.open_index(step)
        found: list[Touch] = []
        for reader, _, pieces in loader.pieces(step):
            bounds, name = np.array(reader.shard_starts), reader.stream.name
            first = np.searchsorted(bounds, pieces.starts, side="right") - 1
            last = np.searchsorted(bounds, pieces.starts + pieces.tokens - 1, side="right") - 1
            spans = dict.fromkeys(zip(first.tolist(), last.tolist(), strict=True))
            for shard in dict.fromkeys(each for low, high in spans for each in range(low, high + 1)):
                if shard not in seen[name]:
                    seen[name].add(shard)
                    left[name] -= 1
                    found.append(Touch(reader, shard))
        yield found


class ShardsAhead:
    """Background verification of the shards of a rank's next steps, up to `lead` steps ahead of the current step.

    Args:
        touches: shards that each step reads for the first time, starting at `first_step`.
        first_step: first step that is read.
        threads: number of shards that are fetched and verified at once.
    """

    def __init__(self, touches: Iterator[list[Touch]], first_step: int, threads: int, lead: int = LEAD_STEPS) -> None:
        self._touches, self._lead, self._threads = touches, lead, threads
        self._reading = self._planned = first_step  # the step that is read; those before `_planned` are planned
        self._proofs: dict[int, list[Future[Tokens]]] = {}
        self._ended = self._closed = False
        self._changed = threading.Condition()
        self._wanted: SimpleQueue[tuple[Touch, Future[Tokens]] | None] = SimpleQueue()
        for work in (self._plan, *[self._prove] * threads):
            threading.Thread(target=work, name=THREADS, daemon=True).start()

    def require(self, step: int) -> None:
        """Wait until the shards of a step are verified. Call this for one step after another, in order.

        If a shard could not be fetched ahead of time, no error is raised here: the reader tries again.

        Raises:
            IntegrityError: a shard has changed.
        """
        with self._changed:
            self._reading = step
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._planned > step or self._ended)
            proofs = self._proofs.pop(step, [])
        for proof in proofs:
            error = proof.exception()
            if isinstance(error, IntegrityError):
                raise error

    def close(self) -> None:
        """Stop the threads without waiting for their current work."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _plan(self) -> None:
        """Pass the shards of each step to the workers, at most `lead` steps ahead of the current step."""
        with suppress(PlinthError):  # of a packed index: the reader meets it at the step itself
            while (touched := next(self._touches, None)) is not None:
                proofs = [Future[Tokens]() for _ in touched]
                for wanted in zip(touched, proofs, strict=True):
                    self._wanted.put(wanted)
                with self._changed:
                    self._proofs[self._planned] = proofs
                    self._planned += 1
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed or self._planned < self._reading + self._lead)
                    if self._closed:
                        break
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for _ in range(self._threads):
            self._wanted.put(None)

    def _prove(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            touch, proof = wanted
            if self._closed:
                proof.cancel()
                continue
            try:
                proof.set_result(touch.reader.shard(touch.number))
            except BaseException as error:  # it must reach the step that reads the shard
                proof.set_exception(error)


@contextmanager
def shards_ahead(loader: Loader, first_step: int, stop_step: int, threads: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that waits until the shards of a step are verified (`ShardsAhead.require`).

    The function does nothing if `threads` is 0, or if tokens are fetched by spans.
    """
    if not threads or not all(reader.mapped for reader in loader.readers):
        yield lambda step: None
        return
    ahead = ShardsAhead(first_touches(loader, first_step, stop_step), first_step, threads)
    try:
        yield ahead.require
    finally:
        ahead.close()


def proved_batches(loader: Loader, first_step: int, stop_step: int, threads: int) -> Iterator[RankBatch]:
    """Yield the batches of the steps from `first_step` to `stop_step` (exclusive), each after its shards are verified.

    Raises:
        MissingError, IntegrityError, StorageError: a shard is absent, has changed, or cannot be fetched.
    """
    with shards_ahead(loader, first_step, stop_step, threads) as required:
        for step in range(first_step, stop_step):
            required(step)
            yield loader.batch(step)
