"""Files for other programs, in a folder or below a URI: whole or not at all, with length and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from plinth.errors import StorageError
from plinth.records import Frozen
from plinth.storage.atomic import named_failures, replacing
from plinth.storage.uris import SCHEME, filesystem

CHUNK_BYTES = 1 << 20


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, data: bytes, /) -> object: ...


class WrittenFile(Frozen):
    """Length and digest of a file."""

    bytes: int
    sha256: str


class DigestWriter:
    """Counts and hashes the bytes that it passes on; a file to libraries that write to one."""

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
        """Bytes so far."""
        return self.bytes

    def flush(self) -> None:
        """The file is flushed when it is whole."""

    def close(self) -> None:
        """So is it closed."""

    def written(self) -> WrittenFile:
        """Length and digest so far."""
        return WrittenFile(bytes=self.bytes, sha256=self._digest.hexdigest())


def write_file(uri: str, write: Callable[[DigestWriter], object]) -> WrittenFile:
    """Write a file, which appears when it is whole.

    Raises:
        StorageError: the place cannot be written.
    """
    with _appearing(uri) as stream:
        counted = DigestWriter(stream)
        write(counted)
    return counted.written()


def read_file(uri: str) -> Iterator[bytes]:
    """The bytes of a file in pieces.

    Raises:
        StorageError: it cannot be read.
    """
    fs, path = filesystem(uri)
    try:
        with fs.open(path, "rb") as stream:
            while data := stream.read(CHUNK_BYTES):
                yield data
    except Exception as error:  # drivers raise any type
        raise StorageError(f"cannot read {uri}", found=f"{type(error).__name__}: {error}") from error


def sizes(uri: str) -> dict[str, int]:
    """Every file below a folder or prefix with its bytes, by name relative to it; empty where there is none.

    Raises:
        StorageError: the place cannot be listed.
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
    """Delete a file, where there is one.

    Raises:
        StorageError: it cannot be deleted.
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
        stream.closed = True  # otherwise its buffer is written when it is collected
        if isinstance(error, StorageError) or not isinstance(error, Exception):
            raise
        raise StorageError(f"cannot write {uri}", found=f"{type(error).__name__}: {error}") from error
