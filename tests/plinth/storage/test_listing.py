"""Source files on disk: hashed once, remembered while they do not change, checked whenever they are read."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import IntegrityError, SourceError
from plinth.storage import listing
from plinth.storage.files import DigestMemory, opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that were written an hour ago."""
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.txt"):
        settled(tmp_path / "in" / name, name.encode())
    return tmp_path


def settled(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.utime(path, (time.time() - 3600,) * 2)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DigestMemory:
    monkeypatch.setattr(listing, "SETTLED_S", -1.0)  # a change of time itself cannot be dated back
    return DigestMemory(tmp_path / "memory.sqlite")


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed from here on."""
    seen: list[str] = []
    real = listing._file_digests

    def spy(entry: listing._Entry) -> object:
        seen.append(entry.name)
        return real(entry)

    monkeypatch.setattr(listing, "_file_digests", spy)
    return seen


def test_the_newest_file_is_known_by_its_content_or_its_arrival(tmp_path):
    before = time.time() - 5
    for name, at in (("old.txt", 1000), ("new.txt", 2000), ("other.bin", 3000)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (at, at))
    found = listing.newest(str(tmp_path), tmp_path, (".txt",))
    assert found is not None
    assert before < found < time.time() + 5  # a copy that keeps an old time has come now all the same
    os.utime(tmp_path / "new.txt", (9e9, 9e9))
    assert listing.newest(str(tmp_path), tmp_path, (".txt",)) == 9e9
    assert listing.newest(str(tmp_path), tmp_path, (".none",)) is None


def test_what_has_not_changed_is_not_read_again(
    folder: Path, memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = reads(monkeypatch)
    first = listing.inventory("in", folder, memory=memory)
    assert sorted(seen) == ["a.txt", "b.txt"]
    assert listing.inventory("in", folder, memory=memory) == first == listing.inventory("in", folder)
    assert sorted(seen) == ["a.txt", "a.txt", "b.txt", "b.txt"]  # the second two: without a memory
    seen.clear()
    settled(folder / "in/b.txt", b"B.TXT")  # the same size
    (folder / "in/c.txt").write_bytes(b"new")
    found = listing.inventory("in", folder, memory=memory)
    assert sorted(seen) == ["b.txt", "c.txt"]
    assert found == listing.inventory("in", folder)


def test_a_file_of_this_very_moment_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DigestMemory(folder / "memory.sqlite")
    listing.inventory("in", folder, memory=memory)
    seen = reads(monkeypatch)
    listing.inventory("in", folder, memory=memory)
    assert sorted(seen) == ["a.txt", "b.txt"]


def test_a_wrong_memory_is_found_out_when_the_file_is_read(folder: Path, memory: DigestMemory) -> None:
    listing.inventory("in", folder, memory=memory)
    with sqlite3.connect(memory.path) as connection:
        connection.execute('update digests set found = replace(found, \'"sha256":"\', \'"sha256":"0\')')
    file = listing.inventory("in", folder, memory=memory)[0]
    with pytest.raises(IntegrityError, match="changed while it was being read"), opened(file) as stream:
        stream.read()
    memory.forget()
    assert listing.inventory("in", folder, memory=memory) == listing.inventory("in", folder)


def test_a_damaged_memory_and_none_cost_only_time(folder: Path, memory: DigestMemory) -> None:
    expected = listing.inventory("in", folder)
    memory.path.write_bytes(b"this is no database" * 100)
    assert listing.inventory("in", folder, memory=memory) == expected
    assert listing.inventory("in", folder, memory=DigestMemory(folder / "no/such/folder.sqlite")) == expected


def test_a_memory_that_cannot_be_written_is_read(
    folder: Path, memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing.inventory("in", folder, memory=memory)
    before, connect, seen = memory.path.read_bytes(), sqlite3.connect, reads(monkeypatch)

    def without_rights(path: object, **options: Any) -> sqlite3.Connection:  # root, as whom tests may run, has them
        if "mode=ro" not in str(path):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path, **options)

    monkeypatch.setattr(sqlite3, "connect", without_rights)
    settled(folder / "in/b.txt", b"changed")
    for _ in range(2):
        assert listing.inventory("in", folder, memory=memory) == listing.inventory("in", folder)
    assert sorted(seen) == ["a.txt", "a.txt", "b.txt", "b.txt", "b.txt", "b.txt"]  # with the memory, only b.txt
    assert memory.path.read_bytes() == before


def test_a_listing_tells_of_every_change(folder: Path) -> None:
    first = listing.listing("in", folder)
    assert [row[:2] for row in first] == [["a.txt", 5], ["b.txt", 5]]
    assert listing.listing("in", folder) == first
    settled(folder / "in/a.txt", b"A.TXT")
    assert listing.listing("in", folder) != first
    assert listing.listing("in", folder, (".warc",)) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere"):
        listing.inventory("nowhere", tmp_path)
    with pytest.raises(SourceError, match="the scheme nothing-serves-this://"):
        listing.inventory("nothing-serves-this://x", tmp_path)
    with pytest.raises(SourceError, match="plinth\\[s3\\]"):
        listing.inventory("oss://bucket/x", tmp_path)


def seen(folder: Path, location: str = "in", suffixes: tuple[str, ...] = ()) -> dict[str, str]:
    return {file.name: file.refused for file in listing.inventory(location, folder, suffixes)}


def test_a_link_to_a_file_below_the_source_is_read_once(folder: Path) -> None:
    """As a cache of downloads holds them: names in one folder, contents in another."""
    blob = folder / "cache/blobs/0123"
    blob.parent.mkdir(parents=True)
    blob.write_text("text")
    for snapshot in ("a", "b"):
        (folder / "cache/snapshots" / snapshot / "data").mkdir(parents=True)
        (folder / "cache/snapshots" / snapshot / "data/x.jsonl").symlink_to("../../../blobs/0123")
    assert seen(folder, "cache", (".jsonl",)) == {
        "snapshots/a/data/x.jsonl": "",
        "snapshots/b/data/x.jsonl": "symlink",  # the same file once more
    }
    assert seen(folder, "cache/snapshots/a") == {"data/x.jsonl": "symlink"}  # it leads out of what is named
    assert list(seen(folder, "cache").values()) == ["", "symlink", "symlink"]  # the file is read under its own name
    assert [row[:2] for row in listing.listing("cache", folder, (".jsonl",))] == [["snapshots/a/data/x.jsonl", 4]]
    file, _ = listing.inventory("cache", folder, (".jsonl",))
    with opened(file) as stream:
        assert stream.read() == b"text"
    blob.rename(folder / "moved")
    blob.symlink_to(folder / "moved")
    with pytest.raises(SourceError, match="cannot open"), opened(file):
        pass


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.md", ".md"), ("a/b.c/d", "no ending"), ("a.JSONL.Gz", ".jsonl.gz"), ("a.tar.v2.gz", ".v2.gz"),
        ("x.gz", ".gz"), ("a.", "no ending"), (".profile", "no ending"), ("a.c++", ".c++"), ("a.b c", "no ending"),
        ("a.html.z", ".html.z"), ("a." + "x" * 30, "no ending"), ("a.md~", "no ending"),
    ],
)  # fmt: skip
def test_the_ending_of_a_name(name: str, ending: str) -> None:
    assert listing.ending(name) == ending


def test_endings_are_counted_in_bounded_number(folder: Path) -> None:
    for number in range(60):
        (folder / "in" / f"x.e{number:02d}").write_text("x")
    found = listing.survey("in", folder, (".txt",))
    assert len(found.files) == 2
    assert len(found.unread) == listing.MAX_ENDINGS + 1
    assert sum(found.unread.values()) == 60
    assert found.unread["other endings"] == 60 - listing.MAX_ENDINGS


def test_a_file_that_is_read_through_a_link_is_not_counted_again(folder: Path) -> None:
    (folder / "cache/blobs").mkdir(parents=True)
    (folder / "cache/blobs/0123").write_text("text")
    (folder / "cache/blobs/4567").write_text("other")
    (folder / "cache/x.jsonl").symlink_to("blobs/0123")
    found = listing.survey("cache", folder, (".jsonl",))
    assert ([file.name for file in found.files], found.unread) == (["x.jsonl"], {"no ending": 1})


def test_links_out_of_a_source_are_listed_and_not_followed(folder: Path) -> None:
    """Out of the tree, within it, to folders, dangling, in a circle; whatever they lead to, they have no content."""
    (folder / "secret").mkdir()
    (folder / "secret/s.txt").write_text("secret")
    links = {"out.txt": folder / "secret/s.txt", "near.txt": "a.txt", "there.txt": "nowhere", "round.txt": "round.txt"}
    links |= {"tree": folder / "secret", "up": "..", "self": "."}
    for name, target in links.items():
        (folder / "in" / name).symlink_to(target)
    expected = {"a.txt": "", "b.txt": "", **dict.fromkeys(links, "symlink")}
    for location in ("in", "in/*", "in/**"):
        assert seen(folder, location) == expected
    assert seen(folder, "in", (".txt",)) == expected  # files of any ending may lie behind a link to a folder
    assert set(expected) - set(seen(folder, "in", (".md",))) == {name for name in expected if name.endswith(".txt")}
    assert [row[0] for row in listing.listing("in", folder)] == ["a.txt", "b.txt"]
    files = [file for file in listing.inventory("in", folder) if file.refused]
    assert {file.bytes for file in files} == {0}
    assert not any(str(folder) in file.sha256 for file in files)
    with pytest.raises(SourceError, match="is not read"), opened(files[0]):
        pass


def test_the_location_itself_may_be_a_link(folder: Path) -> None:
    (folder / "link").symlink_to("in")
    (folder / "one.txt").symlink_to("in/a.txt")
    assert seen(folder, "link") == seen(folder, "link/*.txt") == {"a.txt": "", "b.txt": ""}
    (file,) = listing.inventory("one.txt", folder)
    assert (file.name, file.refused) == ("one.txt", "")
    with opened(file) as stream:
        assert stream.read() == b"a.txt"


@pytest.mark.parametrize("place", ["in/sub", "in/sub/c.txt"])
def test_a_link_that_takes_a_place_after_the_inventory_is_not_followed(folder: Path, place: str) -> None:
    (folder / "in/sub").mkdir()
    (folder / "in/sub/c.txt").write_text("the same")
    file = next(file for file in listing.inventory("in", folder) if file.name == "sub/c.txt")
    (folder / place).rename(folder / "moved")
    (folder / place).symlink_to(folder / "moved")  # the same bytes: only the link is new
    with pytest.raises(SourceError, match="cannot open"), opened(file):
        pass


def test_pipes_and_sockets_are_no_files(folder: Path) -> None:
    os.mkfifo(folder / "in/pipe.txt")
    assert seen(folder) == {"a.txt": "", "b.txt": "", "pipe.txt": "special_file"}
    file = next(file for file in listing.inventory("in", folder) if file.name == "a.txt")
    (folder / "in/a.txt").unlink()
    os.mkfifo(folder / "in/a.txt")
    with pytest.raises(SourceError, match="not a regular file"), opened(file):
        pass
