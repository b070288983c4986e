"""A workspace with what is kept in it: the content store, the step cache, the published manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plinth import fingerprint
from plinth.records import Part
from plinth.storage.refs import Refs
from plinth.storage.seal import load
from plinth.storage.shared_store import open_store
from plinth.storage.steps import StepCache
from plinth.storage.workspace import Workspace


@dataclass
class State:
    """All state of one installation, opened."""

    workspace: Workspace

    def __post_init__(self) -> None:
        self.store = open_store(self.workspace)
        seal = load(self.workspace.trust_folder)
        self.cache = StepCache(self.workspace.objects("records"), self.store, seal)
        self.refs = Refs(self.workspace, seal)

    def store_json(self, name: str, value: Any) -> Part:
        """Canonical JSON as a part; for small values that are not tables."""
        return Part(name=name, blob=self.store.put_bytes(fingerprint.canonical(value)))
