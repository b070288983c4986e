"""Plain bytes and lines from compressed files, in bounded memory; damage is reported with a reason.

A *stretch* is a readable run of plain bytes: one gzip member, or a whole file. If a stretch ends too early, it has a
`Fault`, and the data after the damage is the next stretch. Declared lengths are never trusted, and no read decompresses
more than was requested.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

READ_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b\x08"
#: Endings of compressed files that are read; upper case counts as lower.
COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz")
#: A file of xz that asks for a larger dictionary is refused; `xz -9` takes 65 MiB.
XZ_BYTES = 256 * 2**20


class Readable(Protocol):
    """Object with `read(size)` and `tell()`. `read` may return fewer bytes than requested, and returns no bytes at the
    end of the file."""

    def read(self, size: int = -1, /) -> bytes: ...

    def tell(self) -> int: ...


@dataclass(frozen=True)
class Fault:
    """Damage that ended a stream early, with the reason and detail for a reject."""

    reason: str
    detail: str


class PlainStream:
    """Stream of the bytes of an uncompressed file."""

    def __init__(self, raw: Readable) -> None:
        self._raw, self._position = raw, 0
        self.fault: Fault | None = None

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes. At the end and after a fault, return no bytes."""
        data = self._fill(size if size > 0 else READ_BYTES)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._position

    def _fill(self, size: int) -> bytes:
        return self._raw.read(size)


class GzipMember(PlainStream):
    """Stream over the gzip member that starts at byte `start` of the file. After the member is read, `rest` has the
    compressed bytes that follow it."""

    def __init__(self, raw: Readable, first: bytes) -> None:
        super().__init__(raw)
        self.start = raw.tell() - len(first)
        self._inflate = zlib.decompressobj(wbits=31)
        self._pending = first
        self.rest = b""

    def _fill(self, size: int) -> bytes:
        while not self._inflate.eof and self.fault is None:
            pending = self._pending or self._raw.read(READ_BYTES)
            if not pending:
                self.fault = Fault("truncated_gzip", f"the file ends inside a gzip member, after {self.tell()} bytes")
                break
            try:
                data = self._inflate.decompress(pending, size)
            except zlib.error as error:
                self.fault = Fault("broken_gzip", str(error))
                self.rest = pending
                break
            self._pending = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self.rest = self._inflate.unused_data
            if data:
                return data
        return b""


class _Zstandard(PlainStream):
    """Stream over all Zstandard frames of a file. The stream ends at the first damaged frame."""

    def __init__(self, raw: Readable) -> None:
        from fastwarc.stream_io import ZstdReader

        super().__init__(raw)
        self._inflate = ZstdReader(cast(BinaryIO, raw))

    def _fill(self, size: int) -> bytes:
        if self.fault:
            return b""
        try:
            return bytes(self._inflate.read(size))
        except OSError as error:
            self.fault = Fault("truncated_zstd", str(error))
            return b""


class _Joined(PlainStream):
    """Stream over all concatenated streams of a bzip2 or xz file. Reading ends at the first damaged stream."""

    def __init__(self, raw: Readable, reason: str, make: Callable[[], Any]) -> None:
        super().__init__(raw)
        self._reason, self._make, self._inflate = reason, make, make()
        self._next = self._raw.read(READ_BYTES)
        self._ended = not self._next

    def _fill(self, size: int) -> bytes:
        while not self._ended:
            if self._inflate.eof:
                self._next_stream()
                continue
            if self._inflate.needs_input and not self._next:
                self._next = self._raw.read(READ_BYTES)
                if not self._next:
                    return self._end(f"the file ends inside a stream, after {self.tell()} bytes")
            try:
                data, self._next = bytes(self._inflate.decompress(self._next, size)), b""
            except (OSError, lzma.LZMAError) as error:
                return self._end(str(error))
            if data:
                return data
        return b""

    def _next_stream(self) -> None:
        """Start the next concatenated stream, after skipping zeros that pad the previous stream."""
        self._next = self._inflate.unused_data.lstrip(b"\0")
        while not self._next and (more := self._raw.read(READ_BYTES)):
            self._next = more.lstrip(b"\0")
        self._inflate, self._ended = self._make(), not self._next

    def _end(self, detail: str) -> bytes:
        self._ended, self.fault = True, Fault(self._reason, detail)
        return b""


def with_compression(*stems: str) -> tuple[str, ...]:
    """Return the given suffixes, alone and followed by each compression suffix."""
    return tuple(stem + end for stem in stems for end in ("", *COMPRESSED))


def stretches(raw: Readable, name: str) -> Iterator[PlainStream]:
    """Yield the readable runs of a file, decompressed according to its suffix. Each run is read to its end before the
    next run starts."""
    name = name.lower()
    if name.endswith(".gz"):
        yield from members(raw)
    elif name.endswith((".zst", ".zstd")):
        yield _Zstandard(raw)
    elif name.endswith(".bz2"):
        yield _Joined(raw, "broken_bzip2", bz2.BZ2Decompressor)
    elif name.endswith(".xz"):
        yield _Joined(raw, "broken_xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_BYTES))
    else:
        yield PlainStream(raw)


def members(raw: Readable) -> Iterator[GzipMember]:
    """Yield the members of a gzip file. After a damaged member, continue at the next gzip header in the file."""
    pending = raw.read(READ_BYTES)
    while pending:
        member = GzipMember(raw, pending)
        yield member
        while member.read(READ_BYTES):
            pass
        pending = member.rest or (b"" if member.fault else raw.read(READ_BYTES))
        if member.fault:
            # The header of the damaged member itself must not be found again.
            pending = _next_member(raw, pending[1:])
        elif pending[:1] == b"\0" and not (pending := pending.lstrip(b"\0")):
            pending = _next_member(raw, b"")  # padding after a member is allowed


def _next_member(raw: Readable, pending: bytes) -> bytes:
    """Return the bytes from the next gzip header on, or no bytes if there is no other header."""
    while (at := pending.find(GZIP_MAGIC)) < 0:
        chunk = raw.read(READ_BYTES)
        if not chunk:
            return b""
        pending = pending[-len(GZIP_MAGIC) + 1 :] + chunk
    return pending[at:]


@dataclass(frozen=True, slots=True)
class TextLine:
    """Line without its line end, with its number from 1. `data` is None if the line is too long."""

    number: int
    data: bytes | None
    bytes: int


def lines(parts: Iterable[PlainStream], max_bytes: int, before: int = 0) -> Iterator[TextLine | Fault]:
    """Yield the lines of a file, and the faults between lines.

    A line over `max_bytes` is skipped without being kept in memory. `before` is the number of lines in earlier pieces
    of the file. A line may continue in the next gzip member; after a fault, the unfinished line is dropped.
    """
    number, held, skipped = before, b"", 0
    for part in parts:
        while chunk := part.read(READ_BYTES * 4):
            pieces = chunk.split(b"\n")
            for piece in pieces[:-1]:
                number += 1
                size = skipped + len(held) + len(piece)
                yield TextLine(number, None if size > max_bytes else held + piece, size)
                held, skipped = b"", 0
            held += pieces[-1]
            if len(held) + skipped > max_bytes:
                held, skipped = b"", skipped + len(held)
        if part.fault:
            yield part.fault
            held, skipped = b"", 0
    if held or skipped:
        size = skipped + len(held)
        yield TextLine(number + 1, None if size > max_bytes else held, size)


def read_all(part: PlainStream, max_bytes: int) -> bytes | None:
    """Return all bytes of a stream, or None if there are more than `max_bytes`."""
    pieces, size = [], 0
    while chunk := part.read(READ_BYTES * 4):
        size += len(chunk)
        if size > max_bytes:
            return None
        pieces.append(chunk)
    return b"".join(pieces)
