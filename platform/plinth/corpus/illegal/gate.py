"""The gate of the documents stage: records that hit a list become reports before anything of them is written.

A record is matched against the lists twice: its bytes as they came, before they are parsed, and its normalised text,
before it has an identity. A hit becomes a `Quarantined` reject: it names the list and the rule and carries no text,
no title, and no address unless the recipe wants it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.corpus.illegal.lists import read
from plinth.corpus.illegal.match import ListHit, Matcher
from plinth.corpus.illegal.parameters import Illegal
from plinth.corpus.sources.record import QUARANTINED, RawRecord, Reject
from plinth.errors import MissingError
from plinth.records import Blob, Frozen, Manifest
from plinth.storage.store import Store
from plinth.text import host

VERSION = "2"
#: The reason of rejects.
REASON = QUARANTINED
#: Texts are compared in batches of so many records or characters.
BATCH_RECORDS, BATCH_CHARACTERS = 256, 2**20


class IllegalGate(Frozen):
    """Parameters and files with which a worker matches records against the lists."""

    params: Illegal
    files: tuple[tuple[str, Blob], ...]

    @property
    def identity(self) -> str:
        """Digest of all that decides what is a hit and how it is reported; a list that grew is another gate."""
        files = [[name, blob.sha256] for name, blob in self.files]
        return fingerprint.digest({"version": VERSION, "params": self.params.model_dump(mode="json"), "files": files})


@dataclass(frozen=True, slots=True)
class Quarantined(Reject):
    """A record that hits: as a reject it names list and rule; the rest is for the report.

    Args:
        hits: every entry hit.
        record_sha256: of the record's bytes as they came, in hexadecimal digits.
        file: name of the source file.
        host: of its address.
        uri_sha256: of its address.
    """

    hits: tuple[ListHit, ...] = ()
    record_sha256: str = ""
    file: str = ""
    host: str = ""
    uri_sha256: str = ""


def gate_of(params: Illegal, lists: Mapping[str, Manifest]) -> IllegalGate | None:
    """The gate of a recipe, or None where it has none.

    Args:
        lists: manifests of `lists/NAME`, by key.

    Raises:
        MissingError: the lists are not there: without them nothing may pass.
    """
    if params.lists is None:
        return None
    key = f"lists/{params.lists}"
    if key not in lists:
        raise MissingError(
            f"the illegal-content gate needs {key}",
            found=", ".join(lists) or "no lists",
            remedy="name it in `corpus.lists` of the recipe, or set `corpus.illegal.lists: null`",
        )
    return IllegalGate(params=params, files=tuple((part.name, part.blob) for part in lists[key].parts))


def arriving(
    gate: IllegalGate | None, store: Store, file: str, items: Iterable[RawRecord | Reject]
) -> Iterator[RawRecord | Reject]:
    """Records of one file with its name and the digest of their bytes; those listed by it are hits already."""
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
    """Records with normalised texts, in order; those that hit as reports."""
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
    """The report of a record that hits."""
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
    """Lists are read once per worker process."""
    chosen = IllegalGate.model_validate_json(gate)
    files = {name: store.open_path(blob) for name, blob in chosen.files}
    return Matcher(read(files, f"lists/{chosen.params.lists}", chosen.params), chosen.params)
