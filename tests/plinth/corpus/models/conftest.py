"""Lists and buckets to train small classifiers on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.corpus.slices import generate
from plinth.records import Manifest
from plinth.storage.workspace import Workspace

TERMS = generate.invented(0)


@dataclass
class Room:
    """A workspace with lists in it."""

    ctx: Context

    def listed(self, name: str, content: str) -> Manifest:
        path = self.ctx.workspace.input / name
        path.write_text(content, encoding="utf-8")
        return lists.run(self.ctx, name.split(".")[0], name)

    def labelled(self, name: str, rows: Sequence[generate.Labelled]) -> Manifest:
        said = ({"text": row.text, "label": "bad" if row.bad else "good", "slice": row.slice} for row in rows)
        return self.listed(f"{name}.jsonl", "".join(json.dumps(one) + "\n" for one in said))

    def files(self, made: Manifest) -> Mapping[str, Path]:
        return {part.name: self.ctx.store.open_path(part.blob) for part in made.parts}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(Context(Workspace(tmp_path / "room").ensure()))


@pytest.fixture(scope="module")
def shared_room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(Context(Workspace(tmp_path_factory.mktemp("room")).ensure()))
