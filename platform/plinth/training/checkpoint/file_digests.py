"""The files of a directory by path, size and digest."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plinth.errors import CheckpointError
from plinth.records import Frozen


class File(Frozen):
    """One file of a checkpoint, by its path inside the directory."""

    path: str
    bytes: int
    sha256: str


def listed(folder: Path) -> list[str]:
    """Paths of all files below a directory, sorted."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def hash_files(folder: Path, names: list[str], *, flush: bool) -> list[File]:
    """The named files, hashed side by side; `flush` waits until their bytes are on disk."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda item: _hash(folder, item, flush), names))


def require_sizes(folder: Path, files: list[File]) -> None:
    """Check that a folder holds the files that the writers reported, and no other.

    Raises:
        CheckpointError: they differ; lists the differences.
    """
    found = {item: (folder / item).stat().st_size for item in listed(folder)}
    expected = {file.path: file.bytes for file in files}
    if found != expected:
        differing = sorted(item for item in found.keys() | expected.keys() if found.get(item) != expected.get(item))
        raise CheckpointError(
            f"{folder} does not hold the files that the writers wrote",
            found={item: found.get(item) for item in differing},
            expected={item: expected.get(item) for item in differing},
        )


def _hash(folder: Path, item: str, flush: bool) -> File:
    with (folder / item).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
        if flush:
            os.fsync(stream.fileno())
    return File(path=item, bytes=size, sha256=digest)
