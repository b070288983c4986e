"""Protected sets out of files that hold more, gzipped or not."""

import gzip
import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus.documents import documents
from plinth.corpus.protected import protected
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Source, Terms
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
    made = protected.read_set(ctx, "own", ProtectedSet(path="items.jsonl.gz", only=only))
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


def page(title: str) -> bytes:
    """A page with navigation around a text, in the character set that older manuals are in."""
    prose = f"The {title} is a caf\xe9 by the river, and whoever reads this page knows it well. " * 8
    whole = f"<html><nav><a href=/>Home</a></nav><article><h1>{title}</h1><p>{prose}</p></article></html>"
    return whole.encode("latin-1")


@pytest.fixture
def pages(ctx: Context) -> Path:
    folder = ctx.workspace.root / "input" / "pages"
    (folder / "doc").mkdir(parents=True)
    (folder / "doc" / "one.html").write_bytes(page("garden"))
    (folder / "two.htm.gz").write_bytes(gzip.compress(page("museum")))
    (folder / "three.html").symlink_to("doc/one.html")
    return folder


def test_a_page_is_an_item_with_the_text_that_it_has_as_a_document(ctx: Context, pages: Path) -> None:
    made = protected.read_set(ctx, "own", ProtectedSet(path="pages"))
    found = read_table(ctx.store, made.parts[0])
    assert found.column("item").to_pylist() == ["doc/one.html", "two.htm.gz"]
    terms = Terms(train=True, redistribute=True, commercial=True)
    source = Source(kind="html", path="pages", licence="MIT", terms=terms, domain="d", snapshot="s")
    bucket = Bucket(description="Pages.", owner="o@example.org", sources=(source,))
    read = documents.run(ctx, "web", bucket, Documents(), inventory(bucket, pages.parent))
    rows = [row for part in read.named("part-") for row in read_table(ctx.store, part).to_pylist()]
    assert dict(zip(*(found.column(name).to_pylist() for name in ("item", "text")), strict=True)) == {
        row["uri"]: row["text"] for row in rows
    }
    assert "caf\xe9" in rows[0]["text"]
    assert "Home" not in rows[0]["text"]


def test_pages_by_name_among_others(ctx: Context, pages: Path) -> None:
    made = protected.read_set(ctx, "own", ProtectedSet(path="pages", only=("two.htm.gz",)))
    assert read_table(ctx.store, made.parts[0]).column("item").to_pylist() == ["two.htm.gz"]
    # Other pages of the folder are not in the set.
    assert list(made.inputs) == ["file:two.htm.gz"]
    one = protected.identity(ctx, ProtectedSet(path="pages", only=("two.htm.gz",)))
    (pages / "doc" / "one.html").unlink()
    assert protected.identity(ctx, ProtectedSet(path="pages", only=("two.htm.gz",))) == one
    (pages / "two.htm.gz").write_bytes(page("market"))
    assert protected.identity(ctx, ProtectedSet(path="pages", only=("two.htm.gz",))) != one
    with pytest.raises(SourceError, match=r"no text of doc/on\.html"):
        protected.read_set(ctx, "own", ProtectedSet(path="pages", only=("doc/on.html", "two.htm.gz")))


def test_a_page_that_cannot_be_read_is_no_silence(ctx: Context, pages: Path) -> None:
    (pages / "two.htm.gz").write_bytes(gzip.compress(page("museum"))[:-6])
    with pytest.raises(SourceError, match="does not decompress"):
        protected.read_set(ctx, "own", ProtectedSet(path="pages"))
    (pages / "two.htm.gz").write_bytes(gzip.compress(b"<p>a\0b</p>" * 50))
    with pytest.raises(SourceError, match=r"two\.htm\.gz is not a readable page"):
        protected.read_set(ctx, "own", ProtectedSet(path="pages"))
