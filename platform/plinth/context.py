"""What a stage is given at run time; none of it enters an identity.

Static configuration (the recipe's frozen parameters) and the runtime context are separate types:
a stage function is `run(ctx, params, inputs…) -> Manifest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plinth import fingerprint
from plinth.compute.engine import Engine, Inline
from plinth.compute.progress import Progress, Silent
from plinth.records import Part
from plinth.storage.refs import Refs
from plinth.storage.steps import StepCache
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace


@dataclass
class Context:
    """The workspace and the machinery to work in it."""

    workspace: Workspace
    engine: Engine = field(default_factory=Inline)
    progress: Progress = field(default_factory=Silent)

    def __post_init__(self) -> None:
        self.store = Store(self.workspace.store)
        self.cache = StepCache(self.workspace.records, self.store)
        self.refs = Refs(self.workspace)

    def store_json(self, name: str, value: Any) -> Part:
        """Canonical JSON as a part; for what is small and not a table."""
        return Part(name=name, blob=self.store.put_bytes(fingerprint.canonical(value)))
