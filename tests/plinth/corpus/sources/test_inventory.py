"""Inventories and groups: identity is names and contents, and one more file costs little."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.sources.inventory import Inventory, Licences, groups, inventory, not_read
from plinth.corpus.sources.parameters import Bucket, Source, Terms
from plinth.errors import SourceError
from plinth.storage.files import SourceFile


def bucket(**fields: Any) -> Bucket:
    terms = Terms(train=fields.pop("train", True), redistribute=True, commercial=True)
    facts = {"kind": "tree", "path": "in", "licence": "MIT", "domain": "d", "snapshot": "s", **fields}
    return Bucket(description="", owner="o", sources=(Source(terms=terms, **facts),))


def write(folder: Path, *names: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for name in names:
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_text(name)


def listed(sizes: dict[str, int]) -> Inventory:
    files = (SourceFile(uri=f"/{name}", name=name, bytes=size, sha256=name) for name, size in sorted(sizes.items()))
    return Inventory(files=tuple((0, file) for file in files))


def cut(sizes: dict[str, int], target: int) -> list[tuple[str, ...]]:
    return [tuple(file.name for file, _ in group.files) for group in groups(bucket(), listed(sizes), target)]


def test_identity_is_names_and_contents_not_places(tmp_path: Path) -> None:
    (tmp_path / "one/in").mkdir(parents=True)
    (tmp_path / "one/in/a.py").write_text("x")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first, second = (inventory(bucket(), tmp_path / name) for name in ("one", "two"))
    assert first.files != second.files
    assert first.digest == second.digest
    (tmp_path / "two/in/a.py").write_text("y")
    assert inventory(bucket(), tmp_path / "two").digest != first.digest


def test_groups_hold_every_file_once_in_order_and_about_the_target() -> None:
    sizes = {f"f{i:04d}": 100 + i % 50 for i in range(2000)}
    found = cut(sizes, 10_000)
    assert [name for group in found for name in group] == sorted(sizes)
    assert all(sum(sizes[name] for name in group) < 2 * 10_000 + 150 for group in found)
    assert all(sum(sizes[name] for name in group) >= 2500 for group in found[:-1])
    assert 15 < len(found) < 50


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="abcf0123456789", min_size=1, max_size=6))
def test_one_more_file_touches_few_groups(name: str) -> None:
    sizes = {f"f{i:04d}": 100 for i in range(2000)}
    before = set(cut(sizes, 10_000))
    after = set(cut({**sizes, name: 100}, 10_000))
    assert len(after - before) <= 3


def test_licences_come_from_the_longest_path() -> None:
    licences = Licences({"a": "MIT", "a/b": "ISC", "a/b/c.py": "0BSD"})
    found = [licences.of(name) for name in ("a/x.py", "a/b/x.py", "a/b/c.py", "ab/x.py", "x.py")]
    assert found == ["MIT", "ISC", "0BSD", "unknown", "unknown"]
    assert Licences({"": "MIT"}).of("anything") == "MIT"


def test_a_tree_declares_its_licences(tmp_path: Path) -> None:
    for name in ("p/a.py", "q/b.py"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_text("x")
    (tmp_path / "in/LICENCES.json").write_text(json.dumps({"p": "MIT"}))
    tree = bucket(licence="per-document", suffixes=(".py",))
    found = inventory(tree, tmp_path)
    assert [file.name for _, file in found.files] == ["LICENCES.json", "p/a.py", "q/b.py"]
    (group,) = groups(tree, found, 1000)
    assert [(file.name, licence) for file, licence in group.files] == [("p/a.py", "MIT"), ("q/b.py", "unknown")]
    (tmp_path / "in/LICENCES.json").write_text("[]")
    with pytest.raises(SourceError, match="does not list the licenses"):
        list(groups(tree, inventory(tree, tmp_path), 1000))


@pytest.mark.parametrize("path", ["in", "in/*", "in/x*"])
def test_files_of_common_crawl_are_found_by_folder_and_by_glob(tmp_path: Path, path: str) -> None:
    (tmp_path / "in").mkdir()
    names = [f"x.{kind}{end}" for kind in ("warc", "warc.wet", "warc.wat", "wet", "wat") for end in ("", ".gz", ".zst")]
    for name in (*names, "x.cdx.gz", "x.arc.gz", "x.md5"):
        (tmp_path / "in" / name).write_bytes(b"x")
    found = inventory(bucket(kind="warc", path=path), tmp_path)
    assert [file.name for _, file in found.files] == sorted(names)
    assert found.unread == {".arc.gz": 1, ".cdx.gz": 1, ".md5": 1}


HIDDEN = (".git/b.jsonl", "sub/.x/c.jsonl", "__MACOSX/._a.jsonl", "a.jsonl~")


def test_what_is_not_read_is_counted_and_bears_no_identity(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "D.JSONL", "e.jsonl.GZ", "f.jsonl.bz2", "g.jsonl.xz", "h.json.zstd")
    lines = bucket(kind="jsonl")
    first = inventory(lines, tmp_path)
    assert (first.found, first.unread) == (6, {})
    write(tmp_path, "notes.md", "i.jsonl.lz4", "README", *HIDDEN)
    found = inventory(lines, tmp_path)
    assert found.unread == {".jsonl.lz4": 1, ".md": 1, "hidden": 4, "no ending": 1}
    assert (found.found, found.digest) == (13, first.digest)
    both = inventory(bucket(kind="jsonl", hidden=True), tmp_path)
    assert len(both.files) == 9
    assert both.unread == {".jsonl.lz4": 1, ".md": 1, "no ending": 2}


def test_links_and_lists_of_licences_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "LICENCES.json", "sub/LICENCES.json")
    (tmp_path / "in/b.py").symlink_to("/etc/hostname")
    tree = bucket(licence="per-document")
    found = inventory(tree, tmp_path)
    assert (found.found, not_read(tree, found)) == (4, {"LICENCES.json": 1, "symlink": 1})


@pytest.mark.parametrize(
    ("names", "found", "remedy"),
    [
        (["a.csv", "b.CSV"], "2 .csv", "fix the source's `path`"),
        (["a.parquet"], "1 .parquet", "`kind: parquet` reads .parquet"),
        (["a.jsonl.lz4"], "1 .jsonl.lz4", "decompress files that end in .jsonl.lz4"),
        (["b.html.xz", "c.md"], "1 .html.xz, 1 .md", "`kind: html` reads .html.xz; fix"),
        ([".a.jsonl"], "1 hidden", "`hidden: true` in the source reads hidden files"),
        ([], "nothing", "fix the source's `path`"),
    ],
)
def test_a_folder_of_nothing_but_unread_files_is_an_error_that_names_them(
    tmp_path: Path, names: list[str], found: str, remedy: str
) -> None:
    write(tmp_path, *names)
    with pytest.raises(SourceError) as failure:
        inventory(bucket(kind="jsonl"), tmp_path)
    assert f"found:    {found}\n" in str(failure.value)
    assert "ending in .jsonl, .ndjson, .json (or compressed: .gz, .zst, .zstd, .bz2, .xz)" in str(failure.value)
    assert remedy in str(failure.value)


def test_a_location_that_spells_out_a_hidden_name_means_it(tmp_path: Path) -> None:
    write(tmp_path, ".a/b.txt", ".a/.c.txt", "d.txt")
    named = {"in/.a": "b.txt", "in/.a/.c.txt": ".c.txt", "in/.a/*": "b.txt", "in/*/.c*": ".a/.c.txt", "in": "d.txt"}
    for path, name in named.items():
        assert [file.name for _, file in inventory(bucket(kind="text", path=path), tmp_path).files] == [name], path


def test_a_link_bears_identity_and_where_it_leads_does_not(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.py").write_text("x")
    found = [inventory(bucket(), tmp_path).digest]
    for target in ("/etc/hostname", "a.py"):
        (tmp_path / "in/b.py").unlink(missing_ok=True)
        (tmp_path / "in/b.py").symlink_to(target)
        found.append(inventory(bucket(), tmp_path).digest)
    assert found[0] != found[1] == found[2]
