"""Read a bucket's shards: spans of tokens from mapped files, documents by binary search in the index.

Opening reads the manifest only; a shard is mapped when a span first touches it, an index part is read when a
document in it is first asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_batches, read_table
from plinth.storage.store import Store

INDEX_PARTS_HELD = 16

Tokens = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class DocumentSpan:
    """Where a document lies in its bucket's stream, end-of-text included, and where its text lies."""

    id: str  # hexadecimal
    start: int
    tokens: int
    part: int  # curated part and row
    row: int


@dataclass(frozen=True)
class _IndexPart:
    ids: NDArray[np.void]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    parts: NDArray[np.int32]
    rows: NDArray[np.int32]

    def span(self, row: int) -> DocumentSpan:
        return DocumentSpan(
            self.ids[row].tobytes().hex(),
            int(self.starts[row]),
            int(self.tokens[row]),
            int(self.parts[row]),
            int(self.rows[row]),
        )


class ShardReader:
    """The token stream of one bucket.

    Args:
        store: where the shards lie.
        shards: manifest of a `{bucket}/shards` asset.
        verify: compare each shard's SHA-256 when it is first touched.

    Raises:
        MissingError, IntegrityError: on first touch: a shard is absent, torn, or (with `verify`) changed.
    """

    def __init__(self, store: Store, shards: Manifest, *, verify: bool = False) -> None:
        self.bucket = shards.asset.rsplit("/", 1)[0]
        self.tokens: int = shards.stats["tokens"]
        self.documents_count: int = shards.stats["documents"]
        self.end_of_text: int = shards.stats["end_of_text"]
        self.dtype = np.dtype(shards.stats["dtype"])
        self._store, self._verify = store, verify
        self._shards, self._index = shards.named("shard-"), shards.named("index-")
        self._starts = [int(part.stats["start"]) for part in self._shards]
        self._index_starts = [int(part.stats["start"]) for part in self._index]
        self._maps: dict[int, Tokens] = {}
        self._index_part = lru_cache(maxsize=INDEX_PARTS_HELD)(self._read_index_part)
        held = sum(int(part.stats["tokens"]) for part in self._shards)
        if held != self.tokens:
            raise IntegrityError(
                f"the shards of {self.bucket} do not add up", found=f"{held} tokens", expected=f"{self.tokens} tokens"
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
        for part in self._shards:
            self._store.verify(part.blob)

    def read(self, start: int, count: int) -> Tokens:
        """Tokens `start` to `start + count` of the stream; a view where they lie in one shard.

        Raises:
            ValueError: the span is not inside the stream.
        """
        if start < 0 or count < 0 or start + count > self.tokens:
            raise ValueError(f"tokens {start} to {start + count} of {self.bucket}, which has {self.tokens}")
        if count == 0:
            return np.empty(0, self.dtype)
        shard = bisect_right(self._starts, start) - 1
        at = start - self._starts[shard]
        tokens = self._map(shard)[at : at + count]
        if len(tokens) == count:
            return tokens
        return np.concatenate([tokens, self.read(start + len(tokens), count - len(tokens))])

    def documents(self, start: int, stop: int) -> Iterator[DocumentSpan]:
        """The documents that have tokens in `start` to `stop`, in stream order."""
        number = max(0, bisect_right(self._index_starts, start) - 1)
        for part in range(number, len(self._index)):
            if max(start, self._index_starts[part]) >= stop:
                return
            index = self._index_part(part)
            first = max(0, int(np.searchsorted(index.starts, start, side="right")) - 1)
            last = int(np.searchsorted(index.starts, stop, side="left"))
            for row in range(first, last):
                if index.starts[row] + index.tokens[row] > start:
                    yield index.span(row)

    def find(self, document: str, part: int | None = None) -> list[DocumentSpan]:
        """Where a document (hexadecimal id) lies; empty when the bucket's shards do not hold it.

        With `part`, its curated part, only that part of the index is read.
        """
        wanted = bytes.fromhex(document)
        found: list[DocumentSpan] = []
        for number in range(len(self._index)) if part is None else [part]:
            row = 0
            for batch in iter_batches(self._store, self._index[number], ["id"]):
                hits = np.flatnonzero(pc.equal(batch.column("id"), wanted).to_numpy(zero_copy_only=False))
                found += [self._index_part(number).span(row + int(hit)) for hit in hits]
                row += batch.num_rows
        return found

    def index_batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Starts and lengths of all documents, in stream order, a row group at a time."""
        for part in self._index:
            for batch in iter_batches(self._store, part, ["start", "tokens"]):
                yield batch.column("start").to_numpy(), batch.column("tokens").to_numpy()

    def _map(self, shard: int) -> Tokens:
        if shard not in self._maps:
            part = self._shards[shard]
            if self._verify:
                self._store.verify(part.blob)
            mapped = np.memmap(self._store.open_path(part.blob), dtype=self.dtype, mode="r")
            self._maps[shard] = np.asarray(mapped).view(np.ndarray)  # plain arrays slice faster than memmap does
        return self._maps[shard]

    def _read_index_part(self, number: int) -> _IndexPart:
        part: Part = self._index[number]
        table = read_table(self._store, part).combine_chunks()
        ids = table["id"].chunk(0) if table.num_rows else None
        data = np.frombuffer(ids.buffers()[1], dtype="V16") if ids is not None else np.empty(0, "V16")
        return _IndexPart(
            data[ids.offset : ids.offset + len(ids)] if ids is not None else data,
            table["start"].to_numpy(),
            table["tokens"].to_numpy(),
            table["part"].to_numpy(),
            table["row"].to_numpy(),
        )
