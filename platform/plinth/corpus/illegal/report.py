"""Reports of quarantined records: a table of hits for those who must answer for it, and counts by list.

One row per record and entry that it hits, in the order of the sources. Nothing in it is text of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from plinth.corpus.illegal.gate import Quarantined
from plinth.records import Manifest, Part
from plinth.storage.parts import PartWriter, iter_batches
from plinth.storage.store import Store

BATCH_ROWS = 1024
#: The parts of a documents manifest that hold reports.
STEM = "quarantine"

SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),  # of the source, as its inventory names it
        pa.field("where", pa.string(), nullable=False),  # record, line or row in it
        pa.field("kind", pa.string(), nullable=False),  # match.KINDS
        pa.field("list", pa.string(), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        pa.field("entry_sha256", pa.string(), nullable=False),
        pa.field("category", pa.string()),  # of keywords
        pa.field("distance", pa.int16()),  # in bits, of hashes that may differ
        pa.field("record_sha256", pa.string(), nullable=False),  # of the record's bytes as they came
        pa.field("uri_sha256", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("uri", pa.string()),  # where the recipe keeps it
    ]
)


class Reports:
    """Reports of one group of files on their way to a part."""

    def __init__(self, store: Store, bucket: str, keep_uri: bool) -> None:
        self._bucket, self._keep_uri = bucket, keep_uri
        self._writer = PartWriter(store, f"{STEM}.parquet", SCHEMA)
        self._held: list[dict[str, Any]] = []
        self._records, self._bytes = 0, 0
        self._by_list: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()

    def __enter__(self) -> Reports:
        self._writer.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._writer.__exit__(*failure)

    def add(self, item: Quarantined) -> None:
        """Report one record."""
        self._records, self._bytes = self._records + 1, self._bytes + item.source_bytes
        self._by_list.update({hit.entry.file for hit in item.hits})
        self._by_kind.update({hit.kind for hit in item.hits})
        for hit in item.hits:
            self._held.append(
                {
                    "bucket": self._bucket,
                    "file": item.file,
                    "where": item.where,
                    "kind": hit.kind,
                    "list": hit.entry.file,
                    "line": hit.entry.line,
                    "entry_sha256": hit.entry.sha256,
                    "category": hit.entry.category,
                    "distance": hit.distance,
                    "record_sha256": item.record_sha256,
                    "uri_sha256": item.uri_sha256,
                    "host": item.host,
                    "uri": item.uri if self._keep_uri else None,
                }
            )
        if len(self._held) >= BATCH_ROWS:
            self._flush()

    def finish(self) -> Part:
        """The part; its statistics: `quarantine` with `records`, `bytes`, and records by `lists` and `kinds`."""
        self._flush()
        counts = {
            "records": self._records,
            "bytes": self._bytes,
            "lists": dict(sorted(self._by_list.items())),
            "kinds": dict(sorted(self._by_kind.items())),
        }
        return self._writer.finish({"quarantine": counts})

    def _flush(self) -> None:
        if self._held:
            self._writer.write(pa.RecordBatch.from_pylist(self._held, schema=SCHEMA))
            self._held = []


def hits(store: Store, documents: Manifest) -> Iterator[Mapping[str, Any]]:
    """The rows of a bucket's reports."""
    for part in documents.named(f"{STEM}-"):
        for batch in iter_batches(store, part):
            yield from batch.to_pylist()
