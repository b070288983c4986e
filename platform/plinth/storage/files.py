"""Files of a source, as the inventory lists them, read once and proved to be those.

Names bear identity, URIs never do: a file moved to another machine or bucket keeps its name and digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from plinth.errors import IntegrityError, SourceError
from plinth.records import Frozen
from plinth.storage.digests import ByteRange
from plinth.storage.uris import filesystem, open_stream, readable

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
