"""Open and list source files through fsspec: callers cannot tell local from remote."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO, Any

import fsspec

from plinth.errors import SourceError
from plinth.records import Frozen


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
    try:
        fs, path = fsspec.core.url_to_fs(uri, **options)
        return fs, path
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"cannot open {uri}", found=error, remedy="install the extra that serves it, such as `plinth[s3]`"
        ) from error


def inventory(location: str, base: Path) -> list[SourceFile]:
    """Every file that a location (path, folder or glob) names, sorted by name, with its digest.

    Raises:
        SourceError: when nothing is there or a file cannot be read.
    """
    uri = absolute(location, base)
    fs, path = filesystem(uri)
    root = path.split("*", 1)[0].rsplit("/", 1)[0] if "*" in path else path
    try:
        names = fs.glob(path) if "*" in path else fs.find(path)
        files = sorted(name for name in names if fs.isfile(name))
    except OSError as error:
        raise SourceError(f"cannot list {uri}", found=error) from error
    if not files:
        raise SourceError(
            f"no file matches {uri}",
            found="nothing",
            expected="at least one file",
            remedy="correct the source's `path` in the recipe",
        )
    return [_entry(fs, name, root) for name in files]


def open_binary(file: SourceFile) -> IO[bytes]:
    """The raw bytes of a source file."""
    fs, path = filesystem(file.uri)
    stream: IO[bytes] = fs.open(path, "rb")
    return stream


def _entry(fs: Any, name: str, root: str) -> SourceFile:
    digest, size = hashlib.sha256(), 0
    try:
        with fs.open(name, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise SourceError(f"cannot read {name}", found=error, expected="a readable file") from error
    relative = name[len(root) :].lstrip("/") or name.rsplit("/", 1)[-1]
    return SourceFile(uri=fs.unstrip_protocol(name), name=relative, bytes=size, sha256=digest.hexdigest())
