"""The step cache: what was done once for the same inputs is never done twice.

A record is written last, after every blob it names is in the store; a missing record means
unfinished work. A record that is damaged (it carries its own digest) or whose blobs have gone no
longer counts, and one that no worker of this workspace sealed does not either: the work is done again. Where two
processes did the same work, the first record stays. A record that is used is young again: the last use is its age.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from plinth import fingerprint
from plinth.errors import StorageError
from plinth.records import Frozen, Part
from plinth.storage.objects import Objects, at_once, is_old, write_once
from plinth.storage.seal import Seal
from plinth.storage.store import Store

#: Kind of fact that a record's seal is over.
STEP = "step"


class Record(Frozen):
    """What finished work left, the digest of that list, and the seal of the worker that did it."""

    parts: tuple[Part, ...]
    sha256: str
    seal: str | None = None


@dataclass(frozen=True)
class StepCache:
    """Records by step key, of blobs in `store`."""

    records: Objects
    store: Store
    seal: Seal = field(default=Seal(None), repr=False)

    def get(self, key: str) -> tuple[Part, ...] | None:
        """The parts recorded under a key, or None when the work is unfinished or its blobs have gone."""
        found = self.records.get(_name(key))
        parts = self._sound(key, found.data) if found else None
        if found is None or parts is None or not is_old(found.modified):
            return parts
        with suppress(StorageError):  # whoever may only read makes nothing of it
            return parts if self.records.put(_name(key), found.data, found.tag) else None
        return parts

    def get_many(self, keys: Sequence[str]) -> list[tuple[Part, ...] | None]:
        """As `get`, of each."""
        return list(at_once(self.records, self.get, keys))

    def put(self, key: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Record finished work; returns what is recorded, which is what another process recorded first if one did."""
        digest = fingerprint.digest(list(parts))
        record = Record(parts=tuple(parts), sha256=digest, seal=self.seal.of(STEP, key, digest))
        data = fingerprint.canonical(record)
        there = write_once(self.records, _name(key), data, lambda found: self._sound(key, found) is not None)
        return record.parts if there == data else Record.model_validate_json(there).parts

    def adopt(self) -> int:
        """Seal every record that has no seal, on the word of whoever calls this. Returns how many."""
        count = 0
        for name in list(self.records.names()):
            found = self.records.get(name)
            try:
                record = Record.model_validate_json(found.data) if found else None
            except ValueError:
                continue
            if found and record and record.seal is None:
                key = name.rpartition("/")[2].removesuffix(".json")
                sealed = record.model_copy(update={"seal": self.seal.of(STEP, key, record.sha256)})
                count += self.records.put(name, fingerprint.canonical(sealed), found.tag)
        return count

    def _sound(self, key: str, data: bytes) -> tuple[Part, ...] | None:
        try:
            record = Record.model_validate_json(data)
        except ValueError:
            return None
        if record.sha256 != fingerprint.digest(record.parts):
            return None
        if not self.seal.holds(record.seal, STEP, key, record.sha256):
            return None
        return record.parts if self.store.has_all(part.blob for part in record.parts) else None


def _name(key: str) -> str:
    return f"{key[:2]}/{key}.json"
