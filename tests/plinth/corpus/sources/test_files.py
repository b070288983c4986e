"""One record per file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.sources.record import Reject
from plinth.errors import IntegrityError, SourceError
from plinth.storage import listing
from plinth.storage.files import opened


def only(items: list[Any]) -> Any:
    (item,) = items
    return item


def test_kinds(read_file: Any) -> None:
    assert only(read_file("text", "a.txt", "grün".encode())).content == "grün"
    assert only(read_file("text", "a.txt", "grün".encode("utf-16"))).content == "grün"
    assert only(read_file("text", "a.txt", b"\xef\xbb\xbfx")).content == "x"
    assert only(read_file("html", "a.html", b"\xff<p>")).content == b"\xff<p>"
    assert only(read_file("tree", "a.py", b"x = 1\n")).mime == "text/x-python"
    assert only(read_file("tree", "Makefile", b"all:\n")).mime == "text/plain"
    assert only(read_file("text", "a.txt.gz", gzip.compress(b"one ") + gzip.compress(b"two"))).content == "one two"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.txt", b"", "empty"),
        ("a.txt", b"\xc3\x28", "invalid_utf8"),
        ("a.txt", b"x" * 2_000_000, "too_large"),
        ("a.txt.gz", gzip.compress(b"\0" * 2_000_000, mtime=0), "too_large"),
        ("a.txt.gz", gzip.compress(b"words", mtime=0)[:-4], "truncated_gzip"),
        ("a.txt.gz", b"no gzip", "broken_gzip"),
        ("a.txt", b"\x89PNG\r\n\x1a\n", "binary"),
        ("a.txt", b"%PDF-" + b"x" * 2_000_000, "binary"),  # and not too large
        ("a.txt.gz", gzip.compress(b"\0" * 257 + b"ustar", mtime=0), "binary"),
    ],
)
def test_rejects(read_file: Any, name: str, data: bytes, reason: str) -> None:
    item = only(read_file("text", name, data))
    assert isinstance(item, Reject)
    assert (item.reason, item.source_bytes) == (reason, len(data))


def test_binary_files_of_a_tree_by_gits_rule(read_file: Any) -> None:
    assert only(read_file("tree", "a", b"x" * 7999 + b"\0")).reason == "binary"
    assert only(read_file("tree", "a", b"x" * 8000 + b"\0")).content.endswith("\0")
    assert only(read_file("text", "a", b"\0" * 9)).content == "\0" * 9  # a text full of NUL is damage, found later
    assert only(read_file("tree", "a", "grün".encode("utf-16"))).content == "grün"


def test_a_file_that_changed_since_the_inventory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    (file,) = listing.inventory("a.txt", tmp_path)
    (tmp_path / "a.txt").write_bytes(b"two")
    with pytest.raises(IntegrityError, match="changed while it was being read"), opened(file) as stream:
        stream.read(1)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(SourceError, match="cannot open"), opened(file):
        pass


def test_names_that_look_like_something_else(tmp_path: Path) -> None:
    for name in ("A::B.3pm.txt", "a b#c?.txt", "sub/ü.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    files = listing.inventory("in", tmp_path)
    assert [file.name for file in files] == ["A::B.3pm.txt", "a b#c?.txt", "sub/ü.txt"]
    for file in files:
        with opened(file) as stream:
            assert stream.read().decode() == file.name
    assert [file.name for file in listing.inventory("in/*.txt", tmp_path)] == ["A::B.3pm.txt", "a b#c?.txt"]
    with pytest.raises(SourceError, match="no file matches"):
        listing.inventory("in", tmp_path, (".warc",))
