"""The step cache: what was done once for the same inputs is never done twice.

A record is written last, after every blob it names is in the store; a missing record means
unfinished work. A record that is damaged (it carries its own digest) or whose blobs have gone no
longer counts: the work is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plinth import fingerprint
from plinth.records import Frozen, Part
from plinth.storage.atomic import write_bytes
from plinth.storage.store import Store


class Record(Frozen):
    """What finished work left, and the digest of that list."""

    parts: tuple[Part, ...]
    sha256: str


class StepCache:
    """Records under `root`, by step key."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store = root, store

    def get(self, key: str) -> tuple[Part, ...] | None:
        """The parts recorded under a key, or None when the work is unfinished or its blobs have gone."""
        try:
            record = Record.model_validate_json(self._path(key).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        if record.sha256 != fingerprint.digest(record.parts):
            return None
        parts = record.parts
        return parts if all(self.store.has(part.blob) for part in parts) else None

    def put(self, key: str, parts: Sequence[Part]) -> None:
        """Record finished work."""
        record = Record(parts=tuple(parts), sha256=fingerprint.digest(list(parts)))
        write_bytes(self._path(key), fingerprint.canonical(record))

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / f"{key}.json"
