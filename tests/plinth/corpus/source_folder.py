"""A folder of sources and a workspace next to it, read by the documents stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.compute.engine import Engine, InlineEngine
from plinth.corpus.sources.parameters import Bucket, Source, Terms
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace


class SourceFolder:
    """One folder for each kind of source, named after it."""

    def __init__(self, root: Path, engine: Engine | None = None) -> None:
        self.root = root
        self.ctx = Context(Workspace(root / "workspace").ensure(), engine=engine or InlineEngine())

    def write(self, name: str, data: bytes | str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def bucket(self, *kinds: str, **fields: Any) -> Bucket:
        facts = {"licence": "MIT", "domain": "example.org", "snapshot": "2026-46", **fields}
        terms = Terms(train=True, redistribute=True, commercial=True)
        sources = tuple(Source.model_validate({"kind": kind, "path": kind, "terms": terms, **facts}) for kind in kinds)
        return Bucket(description="", owner="o", sources=sources)

    def rows(self, made: Manifest, stem: str = "part-") -> list[dict[str, Any]]:
        return [row for part in made.named(stem) for row in read_table(self.ctx.store, part).to_pylist()]
