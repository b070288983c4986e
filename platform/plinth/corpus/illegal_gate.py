"""Illegal-content gate of the documents stage. Records that match a list become reports before anything is written."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.corpus.illegal import ListHit, Matcher, read
from plinth.corpus.sources.parameters import Illegal
from plinth.corpus.sources.record import QUARANTINED, RawRecord, Reject
from plinth.errors import MissingError
from plinth.records import Blob, Frozen, Manifest, Part
from plinth.storage.parts import PartWriter, iter_batches
from plinth.storage.store import Store
from plinth.text import host

# The gate of the documents stage: records that hit a list become reports before anything of them is written.
#
# A record is matched against the lists twice: its bytes as they came, before they are parsed, and its normalized text,
# before it has an identity. A hit becomes a `Quarantined` reject: it names the list and the rule and carries no text,
# no title, and no address unless the recipe wants it.

VERSION = "2"
#: The reason of rejects.
REASON = QUARANTINED
#: Maximum records and characters per batch of texts.
BATCH_RECORDS, BATCH_CHARACTERS = 256, 2**20


class IllegalGate(Frozen):
    """Parameters and list files with which a worker matches records against the lists of illegal content."""

    params: Illegal
    files: tuple[tuple[str, Blob], ...]

    @property
    def identity(self) -> str:
        """Return the digest of everything that affects matches and reports: code version, parameters and lists."""
        files = [[name, blob.sha256] for name, blob in self.files]
        return fingerprint.digest({"version": VERSION, "params": self.params.model_dump(mode="json"), "files": files})


@dataclass(frozen=True, slots=True)
class Quarantined(Reject):
    """Reject of a record that matches a list. The reject names list and rule; its other fields are for the report.

    Args:
        hits: all matching entries.
        record_sha256: hexadecimal SHA-256 of the record's unchanged bytes.
        file: name of the source file.
        host: host of the record's address.
        uri_sha256: SHA-256 of the record's address.
    """

    hits: tuple[ListHit, ...] = ()
    record_sha256: str = ""
    file: str = ""
    host: str = ""
    uri_sha256: str = ""


def gate_of(params: Illegal, lists: Mapping[str, Manifest]) -> IllegalGate | None:
    """Return the illegal-content gate of a recipe, or None if the recipe has no gate.

    Args:
        lists: manifests of `lists/NAME`, by key.

    Raises:
        MissingError: the lists are missing. Without them, no record may pass.
    """
    if params.lists is None:
        return None
    key = f"lists/{params.lists}"
    if key not in lists:
        raise MissingError(
            f"the illegal-content gate needs {key}",
            found=", ".join(lists) or "no lists",
            remedy="add it to `corpus.lists` of the recipe, or set `corpus.illegal.lists: null`",
        )
    return IllegalGate(params=params, files=tuple((part.name, part.blob) for part in lists[key].parts))


def arriving(
    gate: IllegalGate | None, store: Store, file: str, items: Iterable[RawRecord | Reject]
) -> Iterator[RawRecord | Reject]:
    """Yield the records of one file, with the file's name and the SHA-256 of each record. Records with a listed digest
    become reports."""
    if gate is None:
        yield from items
        return
    matcher = _matcher(gate, store)
    for item in items:
        if isinstance(item, Reject):
            yield item
            continue
        content = item.content if isinstance(item.content, bytes) else item.content.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(content).digest()
        record = replace(item, file=file, sha256=digest.hex())
        (hit,) = matcher.records([digest])
        yield record if hit is None else quarantined(record, (hit,), gate.params)


def passing(
    gate: IllegalGate | None, store: Store, items: Iterable[RawRecord | Reject]
) -> Iterator[RawRecord | Reject]:
    """Yield records with normalized texts, in order. Records that match a list become reports."""
    if gate is None:
        yield from items
        return
    matcher, held, size = _matcher(gate, store), list[RawRecord | Reject](), 0
    for item in items:
        held.append(item)
        size += len(item.content) if isinstance(item, RawRecord) else 0
        if len(held) == BATCH_RECORDS or size >= BATCH_CHARACTERS:
            yield from _compared(matcher, held, gate.params)
            held, size = [], 0
    yield from _compared(matcher, held, gate.params)


def quarantined(record: RawRecord, hits: Sequence[ListHit], params: Illegal) -> Quarantined:
    """Return the report of a record that matches a list."""
    address = record.uri.encode("utf-8", "backslashreplace")
    digest, name = hashlib.sha256(address).hexdigest(), host(record.uri)
    lists = dict.fromkeys(f"{hit.entry.file}: {hit.rule}" for hit in hits)
    return Quarantined(
        uri=record.uri if params.keep_uri else f"sha256:{digest}" + (f"@{name}" if name else ""),
        where=record.where,
        reason=REASON,
        detail="; ".join(lists),
        source_bytes=record.source_bytes,
        hits=tuple(hits),
        record_sha256=record.sha256,
        file=record.file,
        host=name,
        uri_sha256=digest,
    )


def _compared(matcher: Matcher, held: Sequence[RawRecord | Reject], params: Illegal) -> Iterator[RawRecord | Reject]:
    records = [item for item in held if isinstance(item, RawRecord)]
    texts = pa.array([str(record.content) for record in records], pa.large_string())
    media: list[Any] = [record.extra.get("media") for record in records]
    found = iter(matcher.texts(texts, [record.uri for record in records], media) if records else ())
    for item in held:
        hits = next(found) if isinstance(item, RawRecord) else ()
        yield quarantined(item, hits, params) if hits and isinstance(item, RawRecord) else item


def _matcher(gate: IllegalGate, store: Store) -> Matcher:
    return _read(gate.model_dump_json(), store)


@lru_cache(maxsize=4)
def _read(gate: str, store: Store) -> Matcher:
    """Read the lists of illegal content, once per worker process."""
    chosen = IllegalGate.model_validate_json(gate)
    files = {name: store.open_path(blob) for name, blob in chosen.files}
    return Matcher(read(files, f"lists/{chosen.params.lists}", chosen.params), chosen.params)


# Reports of quarantined records: a table of hits for the people responsible, and counts by list.
#
# One row per record and entry that it hits, in the order of the sources. Nothing in it is text of the record.

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
    """Writer for the quarantine reports of one group of files."""

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
        """Add the report of one record to the part."""
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
        """Close the part of reports and return it. Its statistic `quarantine` contains `records`, `bytes`, and the
        number of records by `lists` and by `kinds`."""
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
    """Yield the rows of a bucket's quarantine reports."""
    for part in documents.named(f"{STEM}-"):
        for batch in iter_batches(store, part):
            yield from batch.to_pylist()
