"""The files of a directory by path, size and digest."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plinth.errors import CheckpointError
from plinth.records import Frozen
from plinth.storage.safe_path import join, relative

#: The file that lists the others.
MANIFEST = "manifest.json"


class File(Frozen):
    """One file of a checkpoint, by its path inside the directory."""

    path: str
    bytes: int
    sha256: str


def files_of(manifest: bytes, checkpoint: str) -> list[File]:
    """The files that a checkpoint's manifest lists, by names that stay below its directory.

    Raises:
        CheckpointError: it is no manifest, or a name is unsafe or stands there twice.
    """
    try:
        files = [File.model_validate(entry) for entry in json.loads(manifest)["files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{checkpoint}: {MANIFEST} is no list of files", found=error) from error
    for file in files:
        relative(file.path, f"{checkpoint}/{MANIFEST}", reserved={MANIFEST}, error=CheckpointError)
    if len({file.path for file in files}) < len(files):
        raise CheckpointError(f"{checkpoint}: {MANIFEST} names a file twice")
    return files


def path_in(folder: Path, item: str) -> Path:
    """The path of a listed file.

    Raises:
        CheckpointError: it leaves the folder, by its name or by a link.
    """
    return join(folder, item, f"{folder.name}/{MANIFEST}", error=CheckpointError)


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
    with path_in(folder, item).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
        if flush:
            os.fsync(stream.fileno())
    return File(path=item, bytes=size, sha256=digest)
