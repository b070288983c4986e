"""Files of a source, as the inventory lists them, read once and proved to be those.

Names bear identity, URIs never do: a file moved to another machine or bucket keeps its name and digest.
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

# SHA-256 of source files and of their pieces, and a memory of them, so that a listing tells what is new.
#
#     Hashing       reads a stream once; a *cutter* tells it where pieces end
#     DigestMemory  digests by (uri, size, change mark), in a file of the workspace
#
# The memory is never proof: a file that is read is hashed again while it is read (`uris.CheckedFile`).

MEMORY_FILE = "source-digests.sqlite"


class ByteRange(Frozen):
    """A byte range of a file that can be read by itself.

    `sha256` covers the range and then the file's last `tail` bytes; `before` counts what lies before it
    (lines), so that records keep the names they have in the whole file.
    """

    start: int
    bytes: int
    sha256: str
    before: int = 0
    tail: int = 0


class FileDigests(Frozen):
    """What hashing a file gives: its size and SHA-256, and the same of its pieces (none: it is not cut)."""

    bytes: int
    sha256: str
    pieces: tuple[ByteRange, ...] = ()


class Hashing:
    """Hashes what is read from a stream, as a whole and by pieces.

    Args:
        stream: at its beginning.
        size: of the whole file, as listed.
        tail: last bytes of the file that belong to every piece.
    """

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.size, self.tail = size, b""
        self._stream, self._whole, self._piece = stream, hashlib.sha256(), hashlib.sha256()
        self._held, self._position = b"", 0  # the last chunk read, not yet in a piece's digest
        self._start, self._before = 0, 0
        self._pieces: list[ByteRange] = []

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; a short answer is allowed, an empty one is the end."""
        data = self._stream.read(size if size > 0 else CHUNK_BYTES)
        self._whole.update(data)
        self._piece.update(self._held)
        self._held = data
        self._position += len(data)
        return data

    def tell(self) -> int:
        """How many bytes have been read."""
        return self._position

    def at(self, start: int, size: int) -> bytes:
        """Bytes of the file read out of order, before anything else is read; they are hashed when their turn comes."""
        self._stream.seek(start)
        data = self._stream.read(size)
        self._stream.seek(0)
        return data

    def cut(self, at: int, before: int = 0) -> None:
        """End a piece at byte `at`, which lies in the chunk read last (elsewhere it is too late: no cut is made)."""
        held_from = self._position - len(self._held)
        if not max(held_from, self._start + 1) <= at <= self._position:
            return
        self._piece.update(self._held[: at - held_from])
        self._end(at)
        self._held, self._before = self._held[at - held_from :], before

    def finish(self) -> FileDigests:
        """Read what is left; the digests."""
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
    """How files of a kind are cut: `find` reads a stream and calls its `cut`; `name` tells two cutters apart."""

    name: str
    find: Callable[[Hashing], None]


def digests(stream: IO[bytes], size: int, cutter: Cutter | None) -> FileDigests:
    """Hash a stream from its beginning, cut by `cutter` if there is one."""
    hashing = Hashing(stream, size)
    if cutter is not None:
        cutter.find(hashing)
    return hashing.finish()


def range_digest(stream: IO[bytes], start: int, size: int) -> FileDigests:
    """Hash a range of a stream.

    Raises:
        EOFError: the stream ends inside it.
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
    """Digests by address, cutter, size and change mark. Losing it costs hashing again, nothing else.

    Args:
        path: of the database, made when first needed; where it cannot be made nothing is remembered.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def session(self) -> Iterator[DigestSession]:
        """One listing's worth of questions and answers, written together at the end."""
        connection = self._connect()
        if connection is None:
            yield DigestSession(None)
            return
        with closing(connection):
            yield DigestSession(connection)
            with suppress(sqlite3.Error):  # another process may hold it: then these are hashed again
                connection.commit()

    def forget(self) -> None:
        """Trust none of it any more: something that was remembered has turned out to be otherwise."""
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
                return None
            except sqlite3.DatabaseError:  # damaged: a memory is not worth repairing
                self.forget()
        return None


class DigestSession:
    """An open memory, or one that remembers nothing."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection

    def get(self, uri: str, cutter: str, size: int, mark: str) -> FileDigests | None:
        """What was found when the file had this size and mark."""
        if self._connection is None:
            return None
        with suppress(sqlite3.Error, ValueError):
            query = "select found from digests where uri = ? and cutter = ? and size = ? and mark = ?"
            row = self._connection.execute(query, (uri, cutter, size, mark)).fetchone()
            return FileDigests.model_validate(json.loads(row[0])) if row else None
        return None

    def put(self, uri: str, cutter: str, mark: str, found: FileDigests) -> None:
        """Remember what was found."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                row = (uri, cutter, found.bytes, mark, found.model_dump_json())
                self._connection.execute("insert or replace into digests values (?, ?, ?, ?, ?)", row)


CHUNK_BYTES = 1 << 20
#: Why a name in a source is no file to read.
SYMLINK, SPECIAL_FILE, PRIVATE_FILE = "symlink", "special_file", "private_file"


class SourceFile(Frozen):
    """One file of a source, or a piece of one. `uri` opens it; `name` is relative to the source's root and bears
    identity.

    `bytes` and `sha256` are the file's; of a piece, the piece's, which begins at byte `start` of the `whole`
    bytes and has `before` lines before it. The last `tail` bytes of the file belong to each of its pieces. `depth`
    folders lie between the source's root and it. What is `refused` (`SYMLINK`, `SPECIAL_FILE`,
    `PRIVATE_FILE`) has no content.
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
        """The name, with the place where the piece begins."""
        return f"{self.name}@{self.start}" if self.start else self.name

    def split(self) -> list[SourceFile]:
        """The pieces as files of their own; the file itself where it is not cut."""
        return [
            SourceFile(uri=self.uri, name=self.name, whole=self.bytes, depth=self.depth, **piece.model_dump())
            for piece in self.pieces
        ] or [self]


class CheckedFile:
    """A source file or a piece of one, read once from its beginning, and proved to be that of the inventory."""

    def __init__(self, file: SourceFile, stream: IO[bytes]) -> None:
        self._file, self._stream = file, stream
        self._digest, self._position = hashlib.sha256(), 0
        if file.start:
            stream.seek(file.start)

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or all that are left; of a piece, its range and then the file's tail.

        Raises:
            SourceError: when the file system fails.
        """
        with readable(self._file.uri, "read"):
            data = self._stream.read(size) if not self._file.whole else self._within(size)
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
                expected=f"{self._file.bytes + self._file.tail} bytes with SHA-256 {self._file.sha256}",
                remedy="let whatever writes it finish, then run the same command again",
            )

    def _within(self, size: int) -> bytes:
        file, position = self._file, self._position
        if position == file.bytes and file.tail:
            self._stream.seek(file.whole - file.tail)
        end = file.bytes if position < file.bytes else file.bytes + file.tail
        return self._stream.read(min(size, end - position) if size >= 0 else end - position)


@contextmanager
def opened(file: SourceFile) -> Iterator[CheckedFile]:
    """A source file for reading; what the block leaves unread is read and checked when it ends well.

    Raises:
        SourceError: when it cannot be opened or read, is a link, or became one since the inventory.
        IntegrityError: when it is no longer what the inventory lists.
    """
    if file.refused:
        raise SourceError(
            f"{file.uri} is not read",
            found=f"{file.refused.replace('_', ' ')}",
            expected="a file of its own",
            remedy="put the file itself in its place, or name it as the `path`",
        )
    fs, path = filesystem(file.uri)
    with readable(file.uri, "open"):
        stream = open_stream(fs, path, file.depth, file.bytes if file.whole else 0)
    with stream:
        checked = CheckedFile(file, stream)
        yield checked
        checked.finish()
