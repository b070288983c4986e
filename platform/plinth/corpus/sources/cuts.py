"""Where large files are cut into pieces that are read by themselves, found while they are hashed.

    plain WARC      at record boundaries, by following the lengths from record to record
    gzipped WARC    at member boundaries, by inflating every member
    JSON lines      after a line's end
    Parquet         between row groups, as the footer lists them

A cut is never guessed from bytes that look like a beginning: a page can be made to contain such bytes, and the
records cut loose from it would carry whatever address it chose. So WARCs are followed from the first record on.
A file that cannot be cut (one gzip member for a whole file, compressed JSON lines, other compression, a damaged record)
stays one piece to its end. Cuts depend on the content alone, never on where a file lies or who reads it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

from plinth.corpus.sources.streams import COMPRESSED, members
from plinth.storage.files import Cutter, Hashing

PIECE_BYTES = 64 * 2**20
READ_BYTES = 1 << 20
MAX_HEADER_BYTES = 64 * 2**10
#: A member this many pieces long will not be the last such.
LONG_MEMBER_PIECES = 4
MAX_FOOTER_BYTES = 64 * 2**20
PARQUET_MAGIC = b"PAR1"


def cutter(kind: str, name_ending: str, piece_bytes: int = PIECE_BYTES) -> Cutter | None:
    """How a file of a kind is cut, by its name; None when it cannot be.

    Args:
        kind: of its source.
        name_ending: the file's name, or enough of its end.
        piece_bytes: a piece ends at the first boundary this far from its beginning.
    """
    name = name_ending.lower()
    find: Callable[[Hashing, int], None] | None = None
    if kind == "jsonl" and not name.endswith(COMPRESSED):
        find = cut_lines
    elif kind == "warc" and name.endswith(".gz"):
        find = cut_members
    elif kind == "warc" and not name.endswith(COMPRESSED):
        find = cut_records
    elif kind == "parquet":
        find = cut_row_groups
    if find is None:
        return None
    return Cutter(name=f"{find.__name__}/2/{piece_bytes}", find=partial(_large_only, find, piece_bytes))


def cut_lines(stream: Hashing, piece_bytes: int) -> None:
    """After the first line's end that completes a piece."""
    target, lines = piece_bytes, 0
    while chunk := stream.read(READ_BYTES):
        base, done = stream.tell() - len(chunk), 0
        while (at := chunk.find(b"\n", max(done, target - 1 - base))) >= 0:
            lines += chunk.count(b"\n", done, at + 1)
            done = at + 1
            stream.cut(base + done, lines)
            target = base + done + piece_bytes
        lines += chunk.count(b"\n", done)


def cut_members(stream: Hashing, piece_bytes: int) -> None:
    """Before the first gzip member that begins a piece's length after the last cut."""
    last = 0
    for member in members(stream):
        if member.start - last >= piece_bytes:
            stream.cut(member.start)
            last = member.start
        while member.read(READ_BYTES):
            if stream.tell() - member.start > LONG_MEMBER_PIECES * piece_bytes + READ_BYTES:
                return


def cut_records(stream: Hashing, piece_bytes: int) -> None:
    """Before the first WARC record that begins a piece's length after the last cut."""
    held, start, last = b"", 0, 0  # unread bytes; where the record that they begin with starts
    while True:
        while (end := held.find(2 * _line_end(held))) < 0:
            data = stream.read(READ_BYTES)
            if not data or len(held) > MAX_HEADER_BYTES:
                return
            held += data
        length = _content_length(held[:end])
        if length is None:
            return
        size = end + length + 4 * len(_line_end(held))
        while len(held) < size:
            size, start = size - len(held), start + len(held)
            held = stream.read(READ_BYTES)
            if not held:
                return
        held, start = held[size:], start + size
        if start - last >= piece_bytes:
            stream.cut(start)
            last = start


def cut_row_groups(stream: Hashing, piece_bytes: int) -> None:
    """Before the first row group that begins a piece's length after the last cut; the footer goes with each piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = stream.at(max(0, stream.size - 8), 8)
    footer_bytes = int.from_bytes(end[:4], "little") + 8
    if end[4:] != PARQUET_MAGIC or not 8 < footer_bytes <= min(stream.size - 4, MAX_FOOTER_BYTES):
        return
    footer = stream.at(stream.size - footer_bytes, footer_bytes)
    try:
        metadata = pq.read_metadata(io.BytesIO(PARQUET_MAGIC + footer))
        starts = [row_group_start(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError):
        return  # the reader reports the damage
    if starts != sorted(set(starts)) or not starts or not 4 <= starts[0] <= starts[-1] < stream.size - footer_bytes:
        return
    cuts, last = [], 0
    for start in starts[1:]:
        if start - last >= piece_bytes:
            cuts.append(start)
            last = start
    if not cuts:
        return
    stream.tail = footer
    position = 0
    while chunk := stream.read(READ_BYTES):
        position += len(chunk)
        while cuts and cuts[0] <= position:
            stream.cut(cuts.pop(0))


def row_group_start(group: Any) -> int:
    """The first byte of a row group's column chunks."""
    columns = [group.column(i) for i in range(group.num_columns)]
    starts = [(c.dictionary_page_offset, c.data_page_offset) for c in columns]
    return min((int(one) for pair in starts for one in pair if one is not None), default=0)


def _large_only(find: Callable[[Hashing, int], None], piece_bytes: int, stream: Hashing) -> None:
    if stream.size > 1.5 * piece_bytes:
        find(stream, piece_bytes)


def _line_end(header: bytes) -> bytes:
    """What ends the lines of a WARC header, by its first one; draft versions have bare line feeds."""
    first = header.find(b"\n")
    return b"\r\n" if header[first - 1 : first] == b"\r" else b"\n"


def _content_length(header: bytes) -> int | None:
    """The length that a WARC header promises, or None when it is not one."""
    if not header.startswith(b"WARC/"):
        return None
    for line in header.split(_line_end(header))[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            value = value.strip()
            return int(value) if value.isdigit() and len(value) < 19 else None
    return None
