"""Files of a source, read once and compared with the inventory.

Names are part of identity, URIs are not: a file moved to another machine or bucket keeps its name and digest.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from plinth.errors import IntegrityError, SourceError
from plinth.records import Frozen
from plinth.storage.uris import filesystem, open_stream, readable

# SHA-256 of source files and of their pieces, cached so that a listing rehashes only changed files.
#
#     Hashing       reads a stream once; a *cutter* marks the ends of pieces
#     DigestMemory  digests by (uri, size, change mark), in a file of the workspace
#
# The cache is never trusted as proof, so a file is hashed again when it is read (`uris.CheckedFile`).

MEMORY_FILE = "source-digests.sqlite"


class ByteRange(Frozen):
    """Byte range of a file that can be read independently.

    `sha256` covers the range and then the file's last `tail` bytes; `before` counts the lines before the range, so that
    records keep the names they have in the whole file.
    """

    start: int
    bytes: int
    sha256: str
    before: int = 0
    tail: int = 0


class FileDigests(Frozen):
    """Size and SHA-256 of a file and of its pieces. There are no pieces if the file is not cut."""

    bytes: int
    sha256: str
    pieces: tuple[ByteRange, ...] = ()


class Hashing:
    """Hash of a stream and of its pieces, computed while reading.

    Args:
        stream: stream at its beginning.
        size: size of the whole file, as listed.
        tail: last bytes of the file that belong to every piece.
    """

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.size, self.tail = size, b""
        self._stream, self._whole, self._piece = stream, hashlib.sha256(), hashlib.sha256()
        self._held, self._position = b"", 0  # last chunk read, not yet in a piece's digest
        self._start, self._before = 0, 0
        self._pieces: list[ByteRange] = []

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes. The result may be shorter than `size`, and is empty at the end."""
        data = self._stream.read(size if size > 0 else CHUNK_BYTES)
        self._whole.update(data)
        self._piece.update(self._held)
        self._held = data
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._position

    def at(self, start: int, size: int) -> bytes:
        """Read bytes ahead, before any other bytes are read. They are hashed later, at their position in the stream."""
        self._stream.seek(start)
        data = self._stream.read(size)
        self._stream.seek(0)
        return data

    def cut(self, at: int, before: int = 0) -> None:
        """End a piece at byte `at`, which must be in the chunk read last; otherwise no cut is made."""
        held_from = self._position - len(self._held)
        if not max(held_from, self._start + 1) <= at <= self._position:
            return
        self._piece.update(self._held[: at - held_from])
        self._end(at)
        self._held, self._before = self._held[at - held_from :], before

    def finish(self) -> FileDigests:
        """Read the rest; return the digests."""
        while self.read(CHUNK_BYTES):
            pass
        if self._position > self._start:
            self._end(self._position)
        pieces = tuple(self._pieces) if len(self._pieces) > 1 else ()
        return FileDigests(bytes=self._position, sha256=self._whole.hexdigest(), pieces=pieces)

    def _end(self, at: int) -> None:
        self._piece.update(self.tail)
        found = ByteRange(
            start=self._start,
            bytes=at - self._start,
            sha256=self._piece.hexdigest(),
            before=self._before,
            tail=len(self.tail),
        )
        self._pieces.append(found)
        self._start, self._piece = at, hashlib.sha256()


@dataclass(frozen=True)
class Cutter:
    """Rule that cuts files of a kind: `find` reads a stream and calls its method `cut`; `name` identifies the rule."""

    name: str
    find: Callable[[Hashing], None]


def digests(stream: IO[bytes], size: int, cutter: Cutter | None) -> FileDigests:
    """Hash a stream from its beginning, cut by `cutter` if given."""
    hashing = Hashing(stream, size)
    if cutter is not None:
        cutter.find(hashing)
    return hashing.finish()


def range_digest(stream: IO[bytes], start: int, size: int) -> FileDigests:
    """Hash a range of a stream.

    Raises:
        EOFError: the stream ends inside the range.
    """
    stream.seek(start)
    found, left = hashlib.sha256(), size
    while left:
        data = stream.read(min(left, CHUNK_BYTES))
        if not data:
            raise EOFError(f"the file ends {left} bytes before the end of the range {start}+{size}")
        found.update(data)
        left -= len(data)
    return FileDigests(bytes=size, sha256=found.hexdigest())


class DigestMemory:
    """Cache of digests, keyed by address, cutter, size and change mark. If the cache is lost, files are hashed again.

    Args:
        path: database file, created on first use; if it cannot be written, it is only read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def session(self) -> Iterator[DigestSession]:
        """Open the cache for one listing; new digests are written together at the end."""
        connection = self._connect()
        if connection is None:
            yield DigestSession(None)
            return
        with closing(connection):
            yield DigestSession(connection)
            with suppress(sqlite3.Error):  # if another process holds the database, these are hashed again
                connection.commit()

    def forget(self) -> None:
        """Delete all cached digests, because one of them turned out to be wrong."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection | None:
        for _ in range(2):
            try:
                connection = sqlite3.connect(self.path, timeout=30)
                connection.execute(
                    "create table if not exists digests"
                    " (uri text, cutter text, size integer, mark text, found text, primary key (uri, cutter))"
                )
                return connection
            except sqlite3.OperationalError:
                return self._connect_to_read()
            except sqlite3.DatabaseError:  # a damaged cache is recreated
                self.forget()
        return None

    def _connect_to_read(self) -> sqlite3.Connection | None:
        """Open the cache where it cannot be written, so that unchanged files are not hashed again."""
        with suppress(sqlite3.Error):
            return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        return None


class DigestSession:
    """Open digest cache, or a session without a cache."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection

    def get(self, uri: str, cutter: str, size: int, mark: str) -> FileDigests | None:
        """Return the cached digests for this size and mark, or None."""
        if self._connection is None:
            return None
        with suppress(sqlite3.Error, ValueError):
            query = "select found from digests where uri = ? and cutter = ? and size = ? and mark = ?"
            row = self._connection.execute(query, (uri, cutter, size, mark)).fetchone()
            return FileDigests.model_validate(json.loads(row[0])) if row else None
        return None

    def put(self, uri: str, cutter: str, mark: str, found: FileDigests) -> None:
        """Cache the digests of a file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                row = (uri, cutter, found.bytes, mark, found.model_dump_json())
                self._connection.execute("insert or replace into digests values (?, ?, ?, ?, ?)", row)


CHUNK_BYTES = 1 << 20
#: Reasons why a name in a source is not a readable file.
SYMLINK, SPECIAL_FILE, PRIVATE_FILE = "symlink", "special_file", "private_file"


class SourceFile(Frozen):
    """One file of a source, or a piece of a file. `uri` opens it; `name` is relative to the source's root and part of
    identities.

    `bytes` and `sha256` belong to the file or to the piece. A piece begins at byte `start` of the file's `whole` bytes,
    and `before` lines precede it. The last `tail` bytes of the file belong to each of its pieces. `depth` is the number
    of folders between the source's root and the file. A `refused` file (`SYMLINK`, `SPECIAL_FILE`, `PRIVATE_FILE`) has
    no content.
    """

    uri: str
    name: str
    bytes: int
    sha256: str
    pieces: tuple[ByteRange, ...] = ()
    start: int = 0
    before: int = 0
    tail: int = 0
    whole: int = 0
    depth: int = 0
    refused: str = ""

    @property
    def key(self) -> str:
        """Key of the file: its name and, for a piece, its start."""
        return f"{self.name}@{self.start}" if self.start else self.name

    def split(self) -> list[SourceFile]:
        """Return the pieces as files, or the file itself if it is not cut."""
        return [
            SourceFile(uri=self.uri, name=self.name, whole=self.bytes, depth=self.depth, **piece.model_dump())
            for piece in self.pieces
        ] or [self]


class CheckedFile:
    """Source file, or a piece of a file, read once from its beginning and compared with the inventory."""

    def __init__(self, file: SourceFile, stream: IO[bytes]) -> None:
        self._file, self._stream = file, stream
        self._digest, self._position = hashlib.sha256(), 0
        if file.start:
            stream.seek(file.start)

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, or all remaining bytes. For a piece, its range and then the file's tail are
        read.

        Raises:
            SourceError: the file system fails.
        """
        with readable(self._file.uri, "read"):
            data = self._stream.read(size) if not self._file.whole else self._within(size)
        self._digest.update(data)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._position

    def finish(self) -> None:
        """Read the rest, and compare length and SHA-256 with the inventory.

        Raises:
            IntegrityError: the file differs from the inventory.
        """
        while self.read(CHUNK_BYTES):
            pass
        if self._digest.hexdigest() != self._file.sha256:
            raise IntegrityError(
                f"{self._file.uri} changed while it was being read",
                found=f"{self._position} bytes with SHA-256 {self._digest.hexdigest()}",
                expected=f"{self._file.bytes + self._file.tail} bytes with SHA-256 {self._file.sha256}",
                remedy="wait for its writer to finish, then run the same command again",
            )

    def _within(self, size: int) -> bytes:
        file, position = self._file, self._position
        if position == file.bytes and file.tail:
            self._stream.seek(file.whole - file.tail)
        end = file.bytes if position < file.bytes else file.bytes + file.tail
        return self._stream.read(min(size, end - position) if size >= 0 else end - position)


@contextmanager
def opened(file: SourceFile) -> Iterator[CheckedFile]:
    """Open a source file for reading; the unread rest is read and checked at the end of a successful block.

    Raises:
        SourceError: the file cannot be opened or read, is a link, or has become a link since the inventory.
        IntegrityError: the file differs from the inventory.
    """
    if file.refused:
        raise SourceError(
            f"{file.uri} is not read",
            found=f"{file.refused.replace('_', ' ')}",
            expected="a regular file",
            remedy="replace the link with the file itself, or set the target as the `path`",
        )
    fs, path = filesystem(file.uri)
    with readable(file.uri, "open"):
        stream = open_stream(fs, path, file.depth, file.bytes if file.whole else 0)
    with stream:
        checked = CheckedFile(file, stream)
        yield checked
        checked.finish()
