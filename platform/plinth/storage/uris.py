"""Open and list source files through fsspec: callers cannot tell local from remote.

Names bear identity, URIs never do: a file moved to another machine or bucket keeps its name and digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import fsspec

from plinth.errors import IntegrityError, SourceError
from plinth.records import Frozen

CHUNK_BYTES = 1 << 20


class SourceFile(Frozen):
    """One file of a source. `uri` opens it; `name` is relative to the source's root and bears identity."""

    uri: str
    name: str
    bytes: int
    sha256: str


def absolute(location: str, base: Path) -> str:
    """A location as a URI: `s3://…` stays, a relative path is taken from `base`."""
    if "://" in location:
        return location
    path = Path(location).expanduser()
    return str(path if path.is_absolute() else base / path)


def filesystem(uri: str, **options: Any) -> tuple[Any, str]:
    """The fsspec file system of a URI and the path in it.

    Raises:
        SourceError: for a scheme without an installed driver.
    """
    # Not `url_to_fs`: it would take a name with `::` in it for a chain of addresses.
    scheme, _, _ = uri.rpartition("://")
    try:
        fs = fsspec.filesystem(scheme or "file", **options)
        return fs, fs._strip_protocol(uri)
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"cannot open {uri}", found=error, remedy="install the extra that serves it, such as `plinth[s3]`"
        ) from error


def inventory(location: str, base: Path, suffixes: tuple[str, ...] = ()) -> list[SourceFile]:
    """Every file that a location (path, folder or glob) names, sorted by name, with its digest.

    Args:
        location: relative to `base`, absolute, or a URI.
        base: what relative locations are relative to.
        suffixes: endings of the names wanted; empty means all.

    Raises:
        SourceError: when nothing is there or a file cannot be read.
    """
    fs, root, names = _find(location, base, suffixes)
    if not names:
        raise SourceError(
            f"no file matches {absolute(location, base)}",
            found="nothing",
            expected=f"at least one file ending in {', '.join(suffixes)}" if suffixes else "at least one file",
            remedy="correct the source's `path` in the recipe",
        )
    return [_entry(fs, name, root) for name in names]


def listing(location: str, base: Path) -> list[list[Any]]:
    """Name, size and change mark of every file at a location: cheap to ask often, and no proof of content.

    Raises:
        SourceError: the location cannot be listed.
    """
    fs, root, names = _find(location, base, ())
    with _readable(absolute(location, base), "list"):
        infos = [fs.info(name) for name in names]
    marks = (str(info.get("ETag") or info.get("mtime") or "") for info in infos)
    return [[name[len(root) :], info["size"], mark] for name, info, mark in zip(names, infos, marks, strict=True)]


def _find(location: str, base: Path, suffixes: tuple[str, ...]) -> tuple[Any, str, list[str]]:
    """File system, root that names are relative to, and the sorted names wanted."""
    uri = absolute(location, base)
    fs, path = filesystem(uri)
    root = path.split("*", 1)[0].rsplit("/", 1)[0] if "*" in path else path
    with _readable(uri, "list"):
        if "*" in path:
            names = sorted(found for match in fs.glob(path) for found in fs.find(match))
        else:
            names = sorted(fs.find(path))
    return fs, root, [name for name in dict.fromkeys(names) if not suffixes or name.endswith(suffixes)]


class CheckedFile:
    """A source file read once from its beginning, and proved to be the file of the inventory."""

    def __init__(self, file: SourceFile, stream: IO[bytes]) -> None:
        self._file, self._stream = file, stream
        self._digest, self._position = hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or all that are left.

        Raises:
            SourceError: when the file system fails.
        """
        with _readable(self._file.uri, "read"):
            data = self._stream.read(size)
        self._digest.update(data)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """How many bytes have been read."""
        return self._position

    def finish(self) -> None:
        """Read what is left and compare length and SHA-256 with the inventory.

        Raises:
            IntegrityError: when the file is no longer what was listed.
        """
        while self.read(CHUNK_BYTES):
            pass
        if self._digest.hexdigest() != self._file.sha256:
            raise IntegrityError(
                f"{self._file.uri} changed while it was being read",
                found=f"{self._position} bytes with SHA-256 {self._digest.hexdigest()}",
                expected=f"{self._file.bytes} bytes with SHA-256 {self._file.sha256}",
                remedy="let whatever writes it finish, then run the same command again",
            )


@contextmanager
def opened(file: SourceFile) -> Iterator[CheckedFile]:
    """A source file for reading; what the block leaves unread is read and checked when it ends well.

    Raises:
        SourceError: when it cannot be opened or read.
        IntegrityError: when it is no longer what the inventory lists.
    """
    fs, path = filesystem(file.uri)
    with _readable(file.uri, "open"):
        stream = fs.open(path, "rb")
    with stream:
        checked = CheckedFile(file, stream)
        yield checked
        checked.finish()


@contextmanager
def _readable(uri: str, doing: str) -> Iterator[None]:
    """Drivers raise exceptions of their own libraries; a reader is told the file in every case."""
    try:
        yield
    except Exception as error:
        raise SourceError(
            f"cannot {doing} {uri}",
            found=f"{type(error).__name__}: {error}",
            expected="a readable file or folder",
            remedy="check that it exists, its permissions, and for remote locations credentials and network",
        ) from error


def _entry(fs: Any, name: str, root: str) -> SourceFile:
    digest, size = hashlib.sha256(), 0
    with _readable(name, "read"), fs.open(name, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    relative = name[len(root) :].lstrip("/") or name.rsplit("/", 1)[-1]
    return SourceFile(uri=fs.unstrip_protocol(name), name=_printable(relative), bytes=size, sha256=digest.hexdigest())


def _printable(name: str) -> str:
    """A name that UTF-8 can carry: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
