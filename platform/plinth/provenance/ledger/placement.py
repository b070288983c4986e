"""Places of documents in the shards, from the index of tokens read beside the documents: both are in one order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.errors import IntegrityError
from plinth.records import Manifest, Part
from plinth.storage.store import Store
from plinth.tokens.shards.index import BATCH_DOCUMENTS, DocumentSpans, of_part, open_part
from plinth.tokens.shards.streams import streams_of


@dataclass(frozen=True)
class Lying:
    """A part of the index of one stream, and the stream's shards."""

    index: Part
    names: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Tokens:
    """Places of the training documents of a part, in each stream that has some of them."""

    part: int
    streams: tuple[Lying, ...]

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests that identify the places."""
        return tuple(
            fact for one in self.streams for fact in (one.index.blob.sha256, *one.names, *map(str, one.starts))
        )


def tokens_of(bucket: str, documents: Part, curated: Manifest, shards: Manifest) -> Tokens:
    """The part of the index that counts the training documents of a part.

    Raises:
        IntegrityError: the shards were made of other curated text.
    """
    if shards.inputs.get(f"{bucket}/curated") != curated.digest:
        raise IntegrityError(
            f"the shards of {bucket} were made of other text",
            found=f"curated {str(shards.inputs.get(f'{bucket}/curated'))[:16]}",
            expected=f"curated {curated.digest[:16]}",
            remedy=f"plinth run --select {bucket}/shards",
        )
    number = [part.name for part in curated.named("part-")].index(documents.name)
    streams = []
    for stream in streams_of(shards):
        cut = shards.named(f"{stream.folder}shard-")
        names, starts = tuple(part.name for part in cut), tuple(int(part.stats["start"]) for part in cut)
        for index in shards.named(f"{stream.folder}index-"):
            first, last = index.stats["parts"]
            if first <= number <= last:
                streams.append(Lying(index, names, starts))
    return Tokens(number, tuple(streams))


class TokenPlaces:
    """Shards and positions of the training documents, taken from the index as they come."""

    def __init__(self, store: Store, bucket: str, name: str, tokens: Tokens | None) -> None:
        self.bucket, self.name, self.tokens = bucket, name, tokens
        self._batches = _placed(store, tokens) if tokens else iter(())
        self._waiting = _PLACED.empty_table()

    def of(self, ids: pa.Array, trained: pa.Array) -> dict[str, pa.Array]:
        """Shard, position and tokens of a batch; null where a document is not trained on, and before there are any."""
        if self.tokens is None:
            empty = {"shard": pa.string(), "position": pa.int64(), "tokens": pa.int64()}
            return {name: pa.nulls(len(ids), kind) for name, kind in empty.items()}
        taken = self._take(ids.filter(trained)).combine_chunks()
        found = {name: _array(taken.column(name)) for name in ("shard", "position", "tokens")}
        at = pc.subtract(pc.cumulative_sum(pc.cast(trained, pa.int64())), 1)
        at = pc.if_else(trained, at, pa.scalar(None, pa.int64()))
        return {name: column.take(at) for name, column in found.items()}

    def _take(self, ids: pa.Array) -> pa.Table:
        """The next rows of the index, which must be those of these documents."""
        while self._waiting.num_rows < len(ids):
            batch = next(self._batches, None)
            if batch is None:
                break
            more = pa.Table.from_batches([batch])
            self._waiting = pa.concat_tables([self._waiting, more]) if self._waiting.num_rows else more
        taken, self._waiting = self._waiting.slice(0, len(ids)), self._waiting.slice(len(ids))
        if taken.num_rows != len(ids) or (len(ids) and pa.chunked_array([ids]) != taken.column("id")):
            raise IntegrityError(
                f"the index of tokens of {self.bucket} does not follow its documents ({self.name})",
                expected="the documents that are trained on, in order",
                remedy=f"plinth run --select {self.bucket}/shards",
            )
        return taken


_PLACED = pa.schema([("id", pa.binary(16)), ("shard", pa.string()), ("position", pa.int64()), ("tokens", pa.int64())])


def _placed(store: Store, tokens: Tokens) -> Iterator[pa.RecordBatch]:
    """The documents of a part with their places, in order; of several streams all at once, brought into order."""
    taken = [(_of_part(store, one.index, tokens.part), one) for one in tokens.streams]
    if len(taken) == 1:
        ((own, only),) = taken
        for at in range(0, len(own), BATCH_DOCUMENTS):
            yield _named(own.take(slice(at, at + BATCH_DOCUMENTS)), only)
    elif taken:
        order = np.argsort(np.concatenate([own.rows for own, _ in taken]), kind="stable")
        found = pa.Table.from_batches([_named(own, one) for own, one in taken])
        yield from found.take(pa.array(order)).combine_chunks().to_batches()


def _of_part(store: Store, index: Part, part: int) -> DocumentSpans:
    documents = open_part(store, index)
    return documents.take(of_part(documents, part))


def _named(own: DocumentSpans, one: Lying) -> pa.RecordBatch:
    starts = np.array(one.starts, dtype=np.int64)
    shard = np.searchsorted(starts, own.starts, side="right") - 1
    names = pa.array(one.names, pa.string()).take(pa.array(shard))
    position = own.starts - starts[shard] if len(shard) else own.starts
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(own), [None, pa.py_buffer(own.ids.tobytes())])
    return pa.RecordBatch.from_arrays([ids, names, pa.array(position), pa.array(own.tokens)], schema=_PLACED)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
