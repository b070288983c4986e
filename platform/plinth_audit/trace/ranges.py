"""Ranges: tokens of a stream that are indexed apart, whole documents of one curated part.

Shards of even size are cut anew when text is added, so a shard is no unit to keep work for. A range is identified by
what its tokens are made from (tokenizer, curated part, the documents' ids, rows and lengths), wherever its stream now
has it: growth indexes only new curated parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from plinth.records import Part
from plinth.storage.parts import write_table
from plinth.storage.store import Store
from plinth.tokens.shards.index import DocumentSpans, of_part, open_part

#: Tokens of a range at most: 32 MB of anchors, and of one curated part there are seldom more. A longer document is cut.
RANGE_TOKENS = 2**26

#: A range of a stream: its curated part, place and identity.
RANGE_SCHEMA = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)


def cut(store: Store, task: tuple[Part, int]) -> tuple[Part, ...]:
    """The ranges of a part of the document index, each of at most so many tokens (`RANGE_SCHEMA`)."""
    part, most = task
    documents = open_part(store, part)
    first, last = part.stats["parts"] if len(documents) else (0, -1)
    rows = [
        {"part": number, "start": start, "tokens": tokens, "digest": digest}
        for number in range(first, last + 1)
        for start, tokens, digest in _ranges(documents.take(of_part(documents, number)), most)
    ]
    return (write_table(store, "ranges.parquet", pa.Table.from_pylist(rows, schema=RANGE_SCHEMA)),)


def _ranges(documents: DocumentSpans, most: int) -> Iterator[tuple[int, int, str]]:
    """Start, tokens and digest of ranges: as many whole documents as fit; pieces of a document that does not fit."""
    ends = documents.starts + documents.tokens
    at = 0
    while at < len(documents):
        start = int(documents.starts[at])
        stop = max(at + 1, int(np.searchsorted(ends, start + most, side="right")))
        tokens = int(ends[stop - 1]) - start
        digest = _digest(documents.take(slice(at, stop)))
        for offset in range(0, tokens, most):
            piece = min(most, tokens - offset)
            yield start + offset, piece, digest if tokens <= most else f"{digest}:{offset}:{piece}"
        at = stop


def _digest(documents: DocumentSpans) -> str:
    digest = hashlib.sha256()
    for column in (documents.ids, documents.tokens, documents.rows):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
