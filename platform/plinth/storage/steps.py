"""The step cache: what was done once for the same inputs is never done twice.

A record is written last, after every blob it names is in the store; a missing record means
unfinished work, and a record whose blobs have gone no longer counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from plinth import fingerprint
from plinth.records import Part
from plinth.storage.atomic import write_bytes
from plinth.storage.store import Store


class StepCache:
    """Records under `root`, by step key."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store = root, store

    def get(self, key: str) -> tuple[Part, ...] | None:
        """The parts recorded under a key, or None when the work is unfinished or its blobs have gone."""
        try:
            record = json.loads(self._path(key).read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        parts = tuple(Part.model_validate(part) for part in record["parts"])
        return parts if all(self.store.has(part.blob) for part in parts) else None

    def put(self, key: str, parts: Sequence[Part]) -> None:
        """Record finished work."""
        write_bytes(self._path(key), fingerprint.canonical({"parts": list(parts)}))

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / f"{key}.json"
