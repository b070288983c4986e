"""The first reader of a blob on a machine verifies it; the memory of verified blobs cannot be forged from a
workspace."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import plinth
from plinth import private
from plinth.errors import IntegrityError
from plinth.records import Blob
from plinth.storage import store as verified
from plinth.storage.store import Store
from plinth_text.errors import PrivateFolderError

TEXT, FORGED = b"curated " * 500, b"poisoned" * 500


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory of this test's own."""
    monkeypatch.setenv(private.VARIABLE, str(tmp_path / "private"))
    return tmp_path / "private" / verified.FOLDER


def reader(root: Path, blob: Blob) -> int:
    """A process of its own that opens a blob; how many it compared."""
    program = (
        "import sys; from plinth.records import Blob; from plinth.storage.store import Store\n"
        "store = Store(sys.argv[1]); store.open_path(Blob.model_validate_json(sys.argv[2])); print(store.checked)"
    )
    command = [sys.executable, "-c", program, str(root), blob.model_dump_json()]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def swap(path: Path, data: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(data)
    other.replace(path)


def rewrite_and_set_times_back(path: Path, data: bytes) -> None:
    before = path.stat()
    rewrite(path, data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("attack", [rewrite, swap, rewrite_and_set_times_back])
def test_a_rewrite_of_the_same_length_is_found(
    memory: Path, tmp_path: Path, attack: Callable[[Path, bytes], None]
) -> None:
    store = Store(tmp_path / "store")
    blob = store.put_bytes(TEXT)
    store.open_path(blob)
    attack(store.path(blob), FORGED)
    for _ in range(2):  # and is not remembered
        with pytest.raises(IntegrityError, match="has changed"):
            store.open_path(blob)
    assert store.put_bytes(TEXT) == blob  # making it again heals it
    assert store.open_path(blob).read_bytes() == TEXT


def test_a_blob_is_compared_once_on_a_machine(memory: Path, tmp_path: Path) -> None:
    made = Store(tmp_path / "made")
    blob = made.put_bytes(TEXT)
    assert (made.open_path(blob), made.checked) == (made.path(blob), 0)  # its writer has hashed it
    shutil.copytree(tmp_path / "made", tmp_path / "copy")  # as a workspace that comes from elsewhere
    assert [reader(tmp_path / "copy", blob) for _ in range(2)] == [1, 0]
    os.utime(Store(tmp_path / "copy").path(blob), ns=(1, 1))  # touched, and whole
    copy = Store(tmp_path / "copy")
    for _ in range(3):
        copy.open_path(blob)
    assert (copy.checked, copy.opened) == (1, 3)


def test_what_is_in_the_workspace_convinces_nobody(memory: Path, tmp_path: Path) -> None:
    """An attacker copies the memory of a whole blob, and the stamps of earlier versions, into the workspace."""
    store = Store(tmp_path / "store")
    blob = store.put_bytes(TEXT)
    rewrite(store.path(blob), FORGED)
    found = store.path(blob).stat()
    stamp = store.root / "verified" / blob.md5[:2] / blob.md5[2:]
    stamp.parent.mkdir(parents=True)
    stamp.write_text(f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}")
    shutil.copytree(memory, store.root / verified.FOLDER)
    with pytest.raises(IntegrityError, match="has changed"):
        store.open_path(blob)
    assert not memory.is_relative_to(store.root)


def test_threads_and_processes_compare_once(memory: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    blob = store.put_bytes(TEXT)
    os.utime(store.path(blob), ns=(1, 1))
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: verified.verify_once(store.path(blob), blob), range(32))) == 1


def test_the_memory_is_bounded_and_forgets_the_oldest(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "MOST_FILES", 3)
    store = Store(tmp_path / "store")
    blobs = [store.put_bytes(bytes([number]) * 10) for number in range(5)]
    verified._memory_of.cache_clear()  # another process
    assert [verified.known(store.path(blob), blob) for blob in blobs] == [False, False, True, True, True]
    (database,) = memory.glob("*.sqlite")
    assert sqlite3.connect(database).execute("select count(*) from reads").fetchone() == (3,)


def test_its_folder_is_looked_up_once(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, original = list[str](), private.folder
    monkeypatch.setattr(private, "folder", lambda name: asked.append(name) or original(name))
    store = Store(tmp_path / "store")
    for blob in [store.put_bytes(TEXT), store.put_bytes(FORGED)]:
        store.open_path(blob)
    assert asked == [verified.FOLDER]


def test_a_damaged_memory_costs_hashing_again(memory: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    blob = store.put_bytes(TEXT)
    (database,) = memory.glob("*.sqlite")
    database.write_bytes(b"no database" * 1000)
    verified._memory_of.cache_clear()
    store.open_path(blob)
    store.open_path(blob)
    assert store.checked == 1


@pytest.mark.parametrize("kind", ["mode", "link", "file"])
def test_a_folder_that_others_can_write_is_refused(memory: Path, tmp_path: Path, kind: str) -> None:
    store = Store(tmp_path / "store")
    memory.parent.mkdir(mode=0o700)
    if kind == "mode":
        memory.mkdir()
        memory.chmod(0o770)
    elif kind == "link":
        memory.symlink_to(tmp_path)
    else:
        memory.touch()
    with pytest.raises(PrivateFolderError, match="is not a private folder") as caught:
        store.put_bytes(TEXT)
    assert str(memory) in str(caught.value)


def test_no_private_folder_lies_among_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(private.VARIABLE, str(Path(plinth.__file__).parent / "cache"))
    with pytest.raises(PrivateFolderError, match="not a private folder"):
        private.folder("x")
    assert not (Path(plinth.__file__).parent / "cache").exists()


def test_without_a_home_a_new_folder_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(private.VARIABLE, "")
    (tmp_path / "home").touch()  # no folder
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = private.folder("x")
    assert made.parent.parent == tmp_path
    assert made.parent.stat().st_mode & 0o777 == 0o700
    assert private.folder("x") == made  # and for child processes, by the environment
