"""Columns of the ledger: fixed columns, the columns of every sidecar, and a document's position in the shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.errors import IntegrityError
from plinth.records import Manifest, Part
from plinth.storage.parts import REJECT_SCHEMA
from plinth.storage.store import Store
from plinth.tokens.shards.index import BATCH_DOCUMENTS, DocumentSpans, of_part, open_part
from plinth.tokens.shards.parameters import streams_of

# Columns of the ledger: fixed columns, and one for each column of each sidecar.
#
# A sidecar's column is `sidecar__column`. Identifiers are hexadecimal text, as in commands. Lists and spans are counted
# in the ledger; `plinth explain` has their values for one document.

JOIN = "__"

BASE = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # 32 hexadecimal digits
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("source", pa.int32()),  # place among the bucket's sources; null if several match
        pa.field("domain", pa.string()),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("captured_at", pa.timestamp("us", tz="UTC")),
        pa.field("snapshot", pa.string(), nullable=False),
        pa.field("licence", pa.string(), nullable=False),
        pa.field("may_train", pa.bool_()),  # terms of the source
        pa.field("may_redistribute", pa.bool_()),
        pa.field("may_commercial", pa.bool_()),
        pa.field("mime", pa.string(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),
        pa.field("text_bytes", pa.int64()),
        pa.field("decision", pa.string(), nullable=False),  # train, heldout, drop; canary for planted text
        pa.field("reason", pa.string()),
        pa.field("stage", pa.string()),  # stage that excluded it from training
        pa.field("fired", pa.list_(pa.string()), nullable=False),  # every rule of the policy
        pa.field("cluster", pa.string()),
        pa.field("cluster_size", pa.int32()),
        pa.field("edits", pa.int32(), nullable=False),  # 0 unless kept
        pa.field("edited_characters", pa.int64(), nullable=False),  # removed characters minus replacements
        pa.field("mixture_weight", pa.float64()),  # share of the run's sequences from its bucket
        pa.field("mixture_epochs", pa.float64()),  # epochs of its bucket in the run
        pa.field("shard", pa.string()),
        pa.field("position", pa.int64()),  # position of its first token in the shard
        pa.field("tokens", pa.int64()),  # closing end-of-text included
    ]
)

#: Rejects never became documents: no scores, no verdict.
REJECTS = pa.schema([pa.field("bucket", pa.string(), nullable=False), *REJECT_SCHEMA])

#: Columns of deduplication that are already in `BASE`.
_KNOWN = frozenset({"text_bytes"})


def chosen(sidecar: str, schema: pa.Schema) -> dict[str, pa.Field]:
    """Return the ledger's fields for a sidecar, by sidecar column. Nested columns are omitted."""
    found = {}
    for field in schema:
        kind = _kind(field.type)
        if kind is not None and field.name not in _KNOWN:
            found[field.name] = pa.field(f"{sidecar}{JOIN}{field.name}", kind)
    return found


def _kind(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.int32()
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return pa.string()
    if pa.types.is_primitive(kind) or pa.types.is_string(kind):
        return kind
    return pa.string() if pa.types.is_large_string(kind) else None


def converted(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a sidecar column converted to the type of its ledger field."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return pc.cast(pc.list_value_length(column), pa.int32())
    if pa.types.is_fixed_size_binary(column.type):
        return hexadecimal(column)
    return column if column.type == field.type else pc.cast(column, field.type)


_DIGITS = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), dtype="<u2")


def hexadecimal(column: pa.Array) -> pa.Array:
    """Convert a column of fixed-size binary to hexadecimal text. Nulls stay null."""
    width, rows = column.type.byte_width, len(column)
    raw = np.frombuffer(column.buffers()[1], dtype=np.uint8)[column.offset * width : (column.offset + rows) * width]
    offsets = np.arange(rows + 1, dtype=np.int32) * (2 * width)
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(_DIGITS[raw])))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string())) if column.null_count else text


def schema_of(sidecars: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the whole schema of a ledger with these sidecars, sorted by sidecar name."""
    more = [field for name in sorted(sidecars) for field in chosen(name, sidecars[name]).values()]
    return pa.schema([*BASE, *more])


@dataclass(frozen=True)
class Lying:
    """A section of a stream's token index, with the names and start positions of the stream's shards."""

    index: Part
    names: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Tokens:
    """Token positions of the training documents in a part, in each stream that contains any of the documents."""

    part: int
    streams: tuple[Lying, ...]

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests, shard names and start positions that identify these token positions."""
        return tuple(
            fact for one in self.streams for fact in (one.index.blob.sha256, *one.names, *map(str, one.starts))
        )


def tokens_of(bucket: str, documents: Part, curated: Manifest, shards: Manifest) -> Tokens:
    """Return the section of the token index for the training documents of a part.

    Raises:
        IntegrityError: the shards are derived from other curated text.
    """
    if shards.inputs.get(f"{bucket}/curated") != curated.digest:
        raise IntegrityError(
            f"the shards of {bucket} were not built from the current curated text",
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
    """Sequential reader of the token index that returns the shard and the position of each training document."""

    def __init__(self, store: Store, bucket: str, name: str, tokens: Tokens | None) -> None:
        self.bucket, self.name, self.tokens = bucket, name, tokens
        self._batches = _placed(store, tokens) if tokens else iter(())
        self._waiting = _PLACED.empty_table()

    def of(self, ids: pa.Array, trained: pa.Array) -> dict[str, pa.Array]:
        """Return the columns shard, position and tokens for a batch. Documents that are not trained on, or that have no
        tokens, get null."""
        if self.tokens is None:
            empty = {"shard": pa.string(), "position": pa.int64(), "tokens": pa.int64()}
            return {name: pa.nulls(len(ids), kind) for name, kind in empty.items()}
        taken = self._take(ids.filter(trained)).combine_chunks()
        found = {name: _array(taken.column(name)) for name in ("shard", "position", "tokens")}
        at = pc.subtract(pc.cumulative_sum(pc.cast(trained, pa.int64())), 1)
        at = pc.if_else(trained, at, pa.scalar(None, pa.int64()))
        return {name: column.take(at) for name, column in found.items()}

    def _take(self, ids: pa.Array) -> pa.Table:
        """Return the next rows of the index, after checking that they belong to the documents `ids`."""
        while self._waiting.num_rows < len(ids):
            batch = next(self._batches, None)
            if batch is None:
                break
            more = pa.Table.from_batches([batch])
            self._waiting = pa.concat_tables([self._waiting, more]) if self._waiting.num_rows else more
        taken, self._waiting = self._waiting.slice(0, len(ids)), self._waiting.slice(len(ids))
        if taken.num_rows != len(ids) or (len(ids) and pa.chunked_array([ids]) != taken.column("id")):
            raise IntegrityError(
                f"the token index of {self.bucket} does not match its documents ({self.name})",
                expected="the training documents, in order",
                remedy=f"plinth run --select {self.bucket}/shards",
            )
        return taken


_PLACED = pa.schema([("id", pa.binary(16)), ("shard", pa.string()), ("position", pa.int64()), ("tokens", pa.int64())])


def _placed(store: Store, tokens: Tokens) -> Iterator[pa.RecordBatch]:
    """Yield a part's documents with their positions, in order. With several streams, the documents of all streams are
    sorted together."""
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
