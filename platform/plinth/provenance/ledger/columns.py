"""Columns of the ledger: the fixed ones, and one for every column of every sidecar.

A sidecar's column is `sidecar__column`. Identifiers are hexadecimal text, as commands take and print them. Of
lists and spans the ledger has the number; `plinth explain` has their values for one document.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.schemas import REJECT_SCHEMA

JOIN = "__"

BASE = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # 32 hexadecimal digits
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("source", pa.int32()),  # place among the bucket's sources; null where several fit
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
        pa.field("decision", pa.string(), nullable=False),  # train, heldout, drop; canary of what was planted
        pa.field("reason", pa.string()),
        pa.field("stage", pa.string()),  # the stage that took it out of training
        pa.field("fired", pa.list_(pa.string()), nullable=False),  # every rule of the policy
        pa.field("cluster", pa.string()),
        pa.field("cluster_size", pa.int32()),
        pa.field("edits", pa.int32(), nullable=False),  # 0 unless kept
        pa.field("edited_characters", pa.int64(), nullable=False),  # removed, less what was put in their place
        pa.field("mixture_weight", pa.float64()),  # share of the run's sequences that its bucket gives
        pa.field("mixture_epochs", pa.float64()),  # how often the run reads its bucket
        pa.field("shard", pa.string()),
        pa.field("position", pa.int64()),  # of its first token in the shard
        pa.field("tokens", pa.int64()),  # closing end-of-text included
    ]
)

#: Rejects never became documents: no scores, no verdict.
REJECTS = pa.schema([pa.field("bucket", pa.string(), nullable=False), *REJECT_SCHEMA])

#: Columns of deduplication that `BASE` has already.
_KNOWN = frozenset({"text_bytes"})


def chosen(sidecar: str, schema: pa.Schema) -> dict[str, pa.Field]:
    """The part of a sidecar that the ledger holds: its column -> the ledger's field. Structures are left out."""
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
    """A sidecar's column as the ledger has it."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return pc.cast(pc.list_value_length(column), pa.int32())
    if pa.types.is_fixed_size_binary(column.type):
        return hexadecimal(column)
    return column if column.type == field.type else pc.cast(column, field.type)


_DIGITS = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), dtype="<u2")


def hexadecimal(column: pa.Array) -> pa.Array:
    """Text of a column of fixed-size binary; nulls stay null."""
    width, rows = column.type.byte_width, len(column)
    raw = np.frombuffer(column.buffers()[1], dtype=np.uint8)[column.offset * width : (column.offset + rows) * width]
    offsets = np.arange(rows + 1, dtype=np.int32) * (2 * width)
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(_DIGITS[raw])))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string())) if column.null_count else text


def schema_of(sidecars: Mapping[str, pa.Schema]) -> pa.Schema:
    """The whole schema for these sidecars, in their order of name."""
    more = [field for name in sorted(sidecars) for field in chosen(name, sidecars[name]).values()]
    return pa.schema([*BASE, *more])
