"""Where sources lie, through fsspec: callers cannot tell local from remote.

`https://`, `cc://` and `hf://` are served by `http`, `common_crawl` and `hub`. Where `s3://` leads is said by the
environment, as boto3 reads it: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE` and the rest. What is at a place
is the business of `listing`, what is in a file of `files`.
"""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from plinth.errors import IntegrityError, PlinthError, SourceError
from plinth.storage import off_limits

#: What remote drivers fetch at a time.
BLOCK_BYTES = 8 * 2**20
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: Schemes that sources may have. Others of fsspec read this machine, archives or other schemes in ways of their own,
#: where nothing would be off limits (`off_limits`).
SOURCE_SCHEMES = (
    "file", "local", "memory", "http", "https", "cc", "hf", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl",
    "oci", "oss", "tos", "hdfs", "webhdfs",
)  # fmt: skip
#: What s3fs raises when an object no longer has the entity tag that it was opened with, and what we do.
EXPIRED = ("FileExpired", "ChangedError")
#: Schemes that fsspec does not know, or serves worse: module and maker of the file system, imported when it is needed.
_OWN = {"http": "http:HttpFiles", "https": "http:HttpFiles", "cc": "common_crawl:CommonCrawl", "hf": "hub:open_hub"}


def absolute(location: str, base: Path | str) -> str:
    """A location as a URI: `s3://…` stays, a relative path is taken from `base`, a folder or a URI."""
    if SCHEME.match(location):
        return location
    path = Path(location).expanduser()
    return str(path) if path.is_absolute() else f"{base}/{location}" if isinstance(base, str) else str(base / path)


def filesystem(uri: str, **options: Any) -> tuple[Any, str]:
    """The fsspec file system of a URI and the path in it.

    Raises:
        SourceError: for a scheme without an installed driver.
    """
    # Not `url_to_fs`: it would take a name with `::` in it for a chain of addresses.
    scheme = SCHEME.match(uri)
    own = _OWN.get(scheme.group(1).lower()) if scheme else None
    try:
        if own is not None:
            module, maker = own.split(":")
            fs = getattr(importlib.import_module(f"plinth.storage.{module}"), maker)()
            return fs, fs._strip_protocol(uri)
        import fsspec

        fs = fsspec.filesystem(scheme.group(1) if scheme else "file", **options)
        return fs, fs._strip_protocol(uri)
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"cannot open {uri}", found=error, remedy="install the extra that serves it, such as `plinth[s3]`"
        ) from error


def source_filesystem(uri: str) -> tuple[Any, str]:
    """As `filesystem`, for what a recipe names.

    Raises:
        SourceError: for a scheme that sources may not have, or one without an installed driver.
    """
    scheme = SCHEME.match(uri)
    if scheme and scheme.group(1).lower() not in SOURCE_SCHEMES:
        raise SourceError(
            f"cannot open {uri}",
            found=f"the scheme {scheme.group(1)}://",
            expected=f"a path, or one of {', '.join(f'{one}://' for one in SOURCE_SCHEMES[3:])}",
        )
    return filesystem(uri)


def open_stream(fs: Any, path: str, depth: int = 0, wanted: int = 0) -> Any:
    """A file for reading, from its beginning.

    Args:
        depth: how many folders above a local file must be no links; the file itself must be none, either.
        wanted: where only so many bytes of it are read.
    """
    if "file" in fs.protocol:
        return open_local(path, depth)
    return fs.open(path, "rb", block_size=min(wanted, BLOCK_BYTES) or BLOCK_BYTES)


def open_local(path: str, depth: int = 0) -> IO[bytes]:
    """As `open_unlinked`, for what a recipe names.

    Raises:
        OSError: as `open_unlinked`.
        SourceError: it is off limits.
    """
    stream = open_unlinked(path, depth)
    try:
        off_limits.require(path, os.fstat(stream.fileno()))
    except BaseException:
        stream.close()
        raise
    return stream


def open_unlinked(path: str, depth: int) -> IO[bytes]:
    """A regular file, opened without following a link in it or in the `depth` folders above it.

    Step by step from folder to folder: a link that takes a folder's place after a check is not followed either.

    Raises:
        OSError: it is a link or no regular file, or a folder is a link.
    """
    root, *folders, name = path.rsplit("/", depth + 1)
    at = os.open(root or "/", os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY))
    try:
        for folder in folders:
            above, at = at, os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(above)
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)  # a pipe would wait for a writer
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{name} is no regular file")
    return os.fdopen(file, "rb")


@contextmanager
def readable(uri: str, doing: str) -> Iterator[None]:
    """Drivers raise exceptions of their own libraries; a reader is told the file in every case."""
    try:
        yield
    except PlinthError:
        raise
    except Exception as error:
        if type(error).__name__ in EXPIRED:
            raise IntegrityError(
                f"{uri} changed while it was being read",
                found=error,
                expected="the object that was listed",
                remedy="let whatever writes it finish, then run the same command again",
            ) from error
        raise SourceError(
            f"cannot {doing} {uri}",
            found=f"{type(error).__name__}: {error}",
            expected="a readable file or folder",
            remedy="check that it exists, its permissions, and for remote locations credentials and network",
        ) from error


def printable(name: str) -> str:
    """A name that UTF-8 can carry: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
