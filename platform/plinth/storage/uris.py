"""Locations of sources and destinations, through fsspec: callers use local and remote locations in the same way.

`https://` and `cc://` are served by `http`. The endpoint of `s3://` comes from boto3's environment: `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, `AWS_PROFILE` and the rest. `listing` lists a location, `files` reads its files.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from plinth.errors import IntegrityError, PlinthError, SourceError, StorageError
from plinth.records import Frozen
from plinth.storage import off_limits
from plinth.storage.atomic import named_failures, replacing

#: Bytes that remote drivers fetch at a time.
BLOCK_BYTES = 8 * 2**20
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: Schemes allowed for sources. Other fsspec schemes read this machine, archives or other schemes in ways that
#: bypass `off_limits`.
SOURCE_SCHEMES = (
    "file", "local", "memory", "http", "https", "cc", "hf", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl",
    "oci", "oss", "tos", "hdfs", "webhdfs",
)  # fmt: skip
#: Errors of s3fs for an object whose entity tag changed after opening, and our error.
EXPIRED = ("FileExpired", "ChangedError")
#: Schemes unknown to fsspec, or served worse: module and constructor of the file system, imported on use.
_OWN = {"http": "http:HttpFiles", "https": "http:HttpFiles", "cc": "http:CommonCrawl", "hf": "uris:open_hub"}


def absolute(location: str, base: Path | str) -> str:
    """Return a location as a URI: `s3://…` stays, a relative path is relative to `base`, a folder or a URI."""
    if SCHEME.match(location):
        return location
    path = Path(location).expanduser()
    return str(path) if path.is_absolute() else f"{base}/{location}" if isinstance(base, str) else str(base / path)


def filesystem(uri: str, **options: Any) -> tuple[Any, str]:
    """Return the fsspec file system of a URI and the path in it.

    Raises:
        SourceError: there is no driver for the scheme.
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
    """Return the fsspec file system of a location in a recipe, and the path in it.

    Raises:
        SourceError: the scheme is not allowed for sources, or there is no driver for it.
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
    """Open a file for reading from its beginning.

    Args:
        depth: number of folders above a local file that must not be links; the file itself must not be one either.
        wanted: number of bytes to read, if not the whole file.
    """
    if "file" in fs.protocol:
        return open_local(path, depth)
    return fs.open(path, "rb", block_size=min(wanted, BLOCK_BYTES) or BLOCK_BYTES)


def open_local(path: str, depth: int = 0) -> IO[bytes]:
    """Open a local file that a recipe names, without following a link in it or in the `depth` folders above it.

    Raises:
        OSError: the file is a link or not a regular file, or a folder is a link.
        SourceError: the file is off limits.
    """
    stream = open_unlinked(path, depth)
    try:
        off_limits.require(path, os.fstat(stream.fileno()))
    except BaseException:
        stream.close()
        raise
    return stream


def open_unlinked(path: str, depth: int) -> IO[bytes]:
    """Open a regular file without following a link in it or in the `depth` folders above it.

    Folders are opened one after another, so that a folder replaced by a link after a check is not followed either.

    Raises:
        OSError: the file is a link or not a regular file, or a folder is a link.
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
        raise OSError(f"{name} is not a regular file")
    return os.fdopen(file, "rb")


@contextmanager
def readable(uri: str, doing: str) -> Iterator[None]:
    """Turn the drivers' own exceptions into errors that name the file."""
    try:
        yield
    except PlinthError:
        raise
    except Exception as error:
        if type(error).__name__ in EXPIRED:
            raise IntegrityError(
                f"{uri} changed while it was being read",
                found=error,
                expected="the listed object",
                remedy="wait for its writer to finish, then run the same command again",
            ) from error
        raise SourceError(
            f"cannot {doing} {uri}",
            found=f"{type(error).__name__}: {error}",
            expected="a readable file or folder",
            remedy="check that it exists, its permissions, and for remote locations credentials and network",
        ) from error


def printable(name: str) -> str:
    """Return a name that UTF-8 can encode: other bytes are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# `hf://datasets/ORG/NAME@REVISION/PATH`: files of the Hugging Face Hub, or of the server in `HF_ENDPOINT`. A branch or
# tag is resolved to its commit once, when it is listed: later reads use that commit, even after a push. Credentials are
# those of the Hub's own client (`HF_TOKEN`, `hf auth login`).

HUB_SCHEME = "hf"
_COMMIT = re.compile(r"hf://[^@]*@([0-9a-f]{40})(?:/|$)")


def open_hub() -> Any:
    """Return the Hugging Face Hub as a file system.

    Raises:
        ImportError: its client is not installed.
    """
    from huggingface_hub import HfFileSystem

    return HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT") or None)


def pinned(hub: Any, uri: str) -> str:
    """Return a location on the Hub with its branch or tag replaced by the current commit.

    Raises:
        OSError: there is no such repository or revision.
    """
    if revision_of(uri):
        return uri
    place = hub.resolve_path(uri)
    commit = hub._api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha
    return f"hf://{place.repo_type}s/{place.repo_id}@{commit}/{place.path_in_repo}".rstrip("/")


def revision_of(uri: str) -> str:
    """Return the commit that an address is pinned to, or an empty string if it is not pinned."""
    found = _COMMIT.match(uri)
    return found[1] if found else ""


# Files for other programs, in a folder or below a URI: atomic, with length and digest.

CHUNK_BYTES = 1 << 20


class Sink(Protocol):
    """Destination of bytes."""

    def write(self, data: bytes, /) -> object: ...


class WrittenFile(Frozen):
    """Length and digest of a file."""

    bytes: int
    sha256: str


class DigestWriter:
    """Writer that counts and hashes the bytes it passes on; libraries can use it as a file."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._digest, self.bytes = stream, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Pass on any buffer of bytes."""
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self.bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is complete."""

    def close(self) -> None:
        """Do nothing: the file is closed when it is complete."""

    def written(self) -> WrittenFile:
        """Return length and digest of the bytes written."""
        return WrittenFile(bytes=self.bytes, sha256=self._digest.hexdigest())


def write_file(uri: str, write: Callable[[DigestWriter], object]) -> WrittenFile:
    """Write a file that appears when it is complete.

    Raises:
        StorageError: the location cannot be written.
    """
    with _appearing(uri) as stream:
        counted = DigestWriter(stream)
        write(counted)
    return counted.written()


def read_file(uri: str) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces.

    Raises:
        StorageError: the file cannot be read.
    """
    fs, path = filesystem(uri)
    try:
        with fs.open(path, "rb") as stream:
            while data := stream.read(CHUNK_BYTES):
                yield data
    except Exception as error:  # drivers raise any type
        raise StorageError(f"cannot read {uri}", found=f"{type(error).__name__}: {error}") from error


def sizes(uri: str) -> dict[str, int]:
    """Return the bytes of every file below a folder or prefix, by relative name; empty if there is none.

    Raises:
        StorageError: the location cannot be listed.
    """
    fs, root = filesystem(uri)
    try:
        fs.invalidate_cache()
        if not fs.exists(root):
            return {}
        found = fs.find(root, detail=True)
    except Exception as error:
        raise StorageError(f"cannot list {uri}", found=f"{type(error).__name__}: {error}") from error
    top = root.rstrip("/")
    return {path[len(top) + 1 :]: int(info["size"] or 0) for path, info in sorted(found.items()) if path[-1:] != "/"}


def remove_file(uri: str) -> None:
    """Delete a file if it exists.

    Raises:
        StorageError: the file cannot be deleted.
    """
    if not SCHEME.match(uri):
        with named_failures(Path(uri)):
            Path(uri).unlink(missing_ok=True)
        return
    fs, path = filesystem(uri)
    try:
        if fs.exists(path):
            fs.rm_file(path)
    except Exception as error:
        raise StorageError(f"cannot delete {uri}", found=f"{type(error).__name__}: {error}") from error


@contextmanager
def _appearing(uri: str) -> Iterator[IO[bytes]]:
    if not SCHEME.match(uri):
        with replacing(Path(uri), mode=0o644) as local:  # for other programs, maybe of other users
            yield local
        return
    fs, path = filesystem(uri)
    try:
        if not uri.startswith("s3://"):  # on S3 this would create the bucket
            fs.makedirs(fs._parent(path), exist_ok=True)
        stream = fs.open(path, "wb", autocommit=False)
    except Exception as error:  # drivers raise any type
        raise StorageError(f"cannot write {uri}", found=f"{type(error).__name__}: {error}") from error
    try:
        yield stream
        stream.close()
        stream.commit()
    except BaseException as error:
        stream.discard()
        stream.closed = True  # otherwise its buffer is flushed on garbage collection
        if isinstance(error, StorageError) or not isinstance(error, Exception):
            raise
        raise StorageError(f"cannot write {uri}", found=f"{type(error).__name__}: {error}") from error
