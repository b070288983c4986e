"""Arrow schemas of the tables that several stages read and write: documents, rejects, edits.

A module of their own, so that who handles records alone (`plinth.records`) does not load Arrow.
Does not belong here: columns of one stage, which stand beside its code.
"""

from __future__ import annotations

import pyarrow as pa

#: Columns of a document part, in order. `id` is 16 bytes of SHA-256 over bucket, uri and content.
DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("captured_at", pa.timestamp("us", tz="UTC")),
        pa.field("snapshot", pa.string(), nullable=False),
        pa.field("licence", pa.string(), nullable=False),  # SPDX expression, or "unknown"
        pa.field("mime", pa.string(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),  # bytes of the raw record
        pa.field("extra", pa.string(), nullable=False),  # JSON object
    ]
)

#: A document that could not become one: `detail` says what was found, `where` is record or offset.
REJECT_SCHEMA = pa.schema(
    [
        pa.field("uri", pa.string(), nullable=False),
        pa.field("where", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),
    ]
)

#: A change of a document's text. Offsets are Unicode code points in `text`, half open.
EDIT_TYPE = pa.list_(
    pa.struct(
        [
            pa.field("start_cp", pa.int32(), nullable=False),
            pa.field("end_cp", pa.int32(), nullable=False),
            pa.field("replacement", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
        ]
    )
)
