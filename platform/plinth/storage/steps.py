"""The step cache: what was done once for the same inputs is never done twice.

A record is written last, after every blob it names is in the store; a missing record means
unfinished work. A record that is damaged (it carries its own digest) or whose blobs have gone no
longer counts: the work is done again. Where two processes did the same work, the first record stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plinth import fingerprint
from plinth.records import Frozen, Part
from plinth.storage.objects import Objects, at_once, write_once
from plinth.storage.store import Store


class Record(Frozen):
    """What finished work left, and the digest of that list."""

    parts: tuple[Part, ...]
    sha256: str


@dataclass(frozen=True)
class StepCache:
    """Records by step key, of blobs in `store`."""

    records: Objects
    store: Store

    def get(self, key: str) -> tuple[Part, ...] | None:
        """The parts recorded under a key, or None when the work is unfinished or its blobs have gone."""
        found = self.records.get(_name(key))
        return self._sound(found.data) if found else None

    def get_many(self, keys: Sequence[str]) -> list[tuple[Part, ...] | None]:
        """As `get`, of each."""
        return list(at_once(self.records, self.get, keys))

    def put(self, key: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Record finished work; returns what is recorded, which is what another process recorded first if one did."""
        record = Record(parts=tuple(parts), sha256=fingerprint.digest(list(parts)))
        data = fingerprint.canonical(record)
        there = write_once(self.records, _name(key), data, lambda found: self._sound(found) is not None)
        return record.parts if there == data else Record.model_validate_json(there).parts

    def _sound(self, data: bytes) -> tuple[Part, ...] | None:
        try:
            record = Record.model_validate_json(data)
        except ValueError:
            return None
        if record.sha256 != fingerprint.digest(record.parts):
            return None
        return record.parts if self.store.has_all(part.blob for part in record.parts) else None


def _name(key: str) -> str:
    return f"{key[:2]}/{key}.json"
