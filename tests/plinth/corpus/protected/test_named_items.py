"""Protected sets out of files that hold more, gzipped or not."""

import gzip
import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus.protected import sets
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.errors import SourceError
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

LINES = "".join(json.dumps({"id": name, "text": f"the text of {name}"}) + "\n" for name in "abc").encode()


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    (ctx.workspace.root / "input" / "items.jsonl.gz").write_bytes(gzip.compress(LINES[:60]) + gzip.compress(LINES[60:]))
    return ctx


def items(ctx: Context, *only: str) -> list[str]:
    made = sets.read_set(ctx, "own", ProtectedSet(path="items.jsonl.gz", only=only))
    names: list[str] = read_table(ctx.store, made.parts[0]).column("item").to_pylist()
    return names


def test_named_items_are_taken_out_of_a_gzipped_file_of_several_members(ctx: Context) -> None:
    assert items(ctx) == ["a", "b", "c"]
    assert items(ctx, "c", "a") == ["a", "c"]


def test_an_item_that_is_not_there_is_no_silence(ctx: Context) -> None:
    with pytest.raises(SourceError, match="no text of z"):
        items(ctx, "a", "z")


def test_a_file_cut_short_is_damage(ctx: Context) -> None:
    path = ctx.workspace.root / "input" / "items.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(SourceError, match="does not decompress"):
        items(ctx)


def test_names_are_in_the_identity_only_where_there_are_some() -> None:
    assert "only" not in ProtectedSet(path="x").model_dump(mode="json")
    assert ProtectedSet(path="x", only=("a",)).model_dump(mode="json")["only"] == ["a"]
