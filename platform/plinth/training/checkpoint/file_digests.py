"""The files of a directory by path, size and digest.

    engine/, rng/    BLAKE3: seven of eight bytes, which only ranks read
    all others       SHA-256: what leaves a run by this digest: the content store, model signing, a consumer's check

Does not belong here: which files a checkpoint has (digest_tree).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3
from pydantic import Field, model_validator

from plinth.errors import CheckpointError
from plinth.records import Frozen
from plinth.storage.safe_path import join, relative

#: The file that lists the others.
MANIFEST = "manifest.json"

#: Bytes read and hashed at a time: few enough to stay in the cache, and after each a long phase shows that it works.
CHUNK_BYTES = 1 << 19

#: Folders that nobody but ranks reads.
_OF_RANKS = ("engine/", "rng/")

#: Shows that a long phase works: called after each piece of it.
Beat = Callable[[], object]


def silent() -> None:
    """The beat of a phase that nobody watches."""


class File(Frozen):
    """One file of a checkpoint, by its path inside the directory; one of the two digests."""

    path: str
    bytes: int = Field(ge=0)
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    blake3: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _has_one(self) -> File:
        if (self.sha256 is None) == (self.blake3 is None):
            raise ValueError(f"{self.path} has {'no digest' if self.sha256 is None else 'two digests'}, expected one")
        return self

    @property
    def digest(self) -> str:
        """The digest that it has, in hexadecimal."""
        return self.sha256 or self.blake3 or ""

    def hasher(self) -> Any:
        """An empty hash of its kind."""
        return hashlib.sha256() if self.sha256 is not None else blake3()

    def entry(self) -> dict[str, Any]:
        """Its entry in a list of files."""
        return self.model_dump(mode="json", exclude_none=True)


def hasher_of(path: str) -> Any:
    """An empty hash of the kind that a file of a checkpoint gets when it is written."""
    return blake3() if path.startswith(_OF_RANKS) else hashlib.sha256()


def made(path: str, size: int, digest: str) -> File:
    """The record of a file that was written with the hash of `hasher_of`."""
    return File(path=path, bytes=size, **{"blake3" if path.startswith(_OF_RANKS) else "sha256": digest})


def files_of(entries: Sequence[Any], where: str, reserved: Iterable[str] = (MANIFEST,)) -> list[File]:
    """The files that a list names, by names that stay below its directory.

    Raises:
        CheckpointError: an entry is no file, or a name is unsafe or stands there twice.
    """
    try:
        files = [File.model_validate(entry) for entry in entries]
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{where} is no list of files", found=error) from error
    for file in files:
        relative(file.path, where, reserved=set(reserved), error=CheckpointError)
    if len({file.path for file in files}) < len(files):
        raise CheckpointError(f"{where} names a file twice")
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


def hash_files(folder: Path, names: Sequence[str], *, flush: bool) -> list[File]:
    """The named files, hashed side by side by the kind of `hasher_of`; `flush` waits until their bytes are on disk."""

    def one(item: str) -> File:
        size, digest = _hash(path_in(folder, item), hasher_of(item), flush, silent)
        return made(item, size, digest)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, names))


def differing(folder: Path, files: Sequence[File], beat: Beat = silent, threads: int = 1) -> tuple[File, str] | None:
    """The first of the files whose bytes are not as listed, and what they are; None when all are.

    Raises:
        CheckpointError: a name leaves the folder by a link.
        FileNotFoundError: one is missing.
    """

    def found(file: File) -> str:
        path = path_in(folder, file.path)
        size, digest = _hash(path, file.hasher(), False, beat)
        return "" if (size, digest) == (file.bytes, file.digest) else f"{size} bytes, {digest}"

    if threads == 1:
        return next(((file, what) for file in files if (what := found(file))), None)
    with ThreadPoolExecutor(threads) as pool:
        return next(((file, what) for file, what in zip(files, pool.map(found, files), strict=True) if what), None)


def require_total(folder: Path, files: Mapping[str, int], count: int, size: int) -> None:
    """Check that a folder holds as many files and bytes as the writers reported, and those of `files` by name.

    Raises:
        CheckpointError: they differ.
    """
    found = {item: (folder / item).stat().st_size for item in listed(folder)}
    wrong = sorted(item for item, expected in files.items() if found.get(item) != expected)
    if wrong or (len(found), sum(found.values())) != (count, size):
        raise CheckpointError(
            f"{folder} does not hold the files that the writers wrote",
            found={"files": len(found), "bytes": sum(found.values()), **{item: found.get(item) for item in wrong}},
            expected={"files": count, "bytes": size, **{item: files[item] for item in wrong}},
        )


def _hash(path: Path, digest: Any, flush: bool, beat: Beat) -> tuple[int, str]:
    size, buffer = 0, bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as stream:
        while read := stream.readinto(view):
            digest.update(view[:read])
            size += read
            beat()
        if flush:
            os.fsync(stream.fileno())
    return size, digest.hexdigest()
