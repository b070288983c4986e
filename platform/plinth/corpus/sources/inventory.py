"""Inventory of a bucket's files: large files are cut into pieces, and pieces are grouped into parts."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.engine import Engine
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.corpus.sources.record import READERS
from plinth.corpus.sources.streams import COMPRESSED, members
from plinth.errors import SourceError
from plinth.records import Frozen
from plinth.storage import listing
from plinth.storage.files import MEMORY_FILE, Cutter, DigestMemory, Hashing, SourceFile, opened
from plinth.storage.uris import absolute, revision_of
from plinth.storage.workspace import Workspace

# Where large files are cut into pieces that are read by themselves, found while they are hashed.
#
#     plain WARC      at record boundaries, by following the lengths from record to record
#     gzipped WARC    at member boundaries, by inflating every member
#     JSON lines      after a line's end
#     Parquet         between row groups, as the footer lists them
#
# A cut is never guessed from bytes that look like a beginning: a page can be made to contain such bytes, and the
# records cut loose from it would carry whatever address it chose. So WARCs are followed from the first record on. A
# file that cannot be cut (one gzip member for a whole file, compressed JSON lines, other compression, a damaged record)
# stays one piece to its end. Cuts depend on the content only, not on the location or the reader.

PIECE_BYTES = 64 * 2**20
READ_BYTES = 1 << 20
MAX_HEADER_BYTES = 64 * 2**10
#: A member this many pieces long will not be the last such.
LONG_MEMBER_PIECES = 4
MAX_FOOTER_BYTES = 64 * 2**20
PARQUET_MAGIC = b"PAR1"


def cutter(kind: str, name_ending: str, piece_bytes: int = PIECE_BYTES) -> Cutter | None:
    """Return the function that cuts a file into pieces, by source kind and file name, or None if the file cannot be
    cut.

    Args:
        kind: kind of the source.
        name_ending: name of the file, or its suffix.
        piece_bytes: minimum size of a piece, which ends at the first boundary beyond this size.
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
    """Cut a file after the first line end at which a piece has at least `piece_bytes`."""
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
    """Cut a file before the first gzip member that begins at least `piece_bytes` after the last cut."""
    last = 0
    for member in members(stream):
        if member.start - last >= piece_bytes:
            stream.cut(member.start)
            last = member.start
        while member.read(READ_BYTES):
            if stream.tell() - member.start > LONG_MEMBER_PIECES * piece_bytes + READ_BYTES:
                return


def cut_records(stream: Hashing, piece_bytes: int) -> None:
    """Cut a file before the first WARC record that begins at least `piece_bytes` after the last cut."""
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
    """Cut a Parquet file before the first row group that begins at least `piece_bytes` after the last cut. The footer
    is added to each piece."""
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
    """Return the byte offset at which a row group's column chunks begin."""
    columns = [group.column(i) for i in range(group.num_columns)]
    starts = [(c.dictionary_page_offset, c.data_page_offset) for c in columns]
    return min((int(one) for pair in starts for one in pair if one is not None), default=0)


def _large_only(find: Callable[[Hashing, int], None], piece_bytes: int, stream: Hashing) -> None:
    if stream.size > 1.5 * piece_bytes:
        find(stream, piece_bytes)


def _line_end(header: bytes) -> bytes:
    """Return the line ending of a WARC header, taken from its first line. WARC drafts allow bare line feeds."""
    first = header.find(b"\n")
    return b"\r\n" if header[first - 1 : first] == b"\r" else b"\n"


def _content_length(header: bytes) -> int | None:
    """Return the content length that a WARC header declares, or None if the bytes are not a WARC header."""
    if not header.startswith(b"WARC/"):
        return None
    for line in header.split(_line_end(header))[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            value = value.strip()
            return int(value) if value.isdigit() and len(value) < 19 else None
    return None


# The files of a bucket, and how they are cut into groups of work.
#
# Groups are content-defined: whether a group ends after a file is decided by a hash of the file's name, so a
# file that is added or removed changes the group it falls in and, at most, its neighbor; never all that follow.


class Inventory(Frozen):
    """All files of a bucket, each with the index of its source in `bucket.sources`, sorted by source and name."""

    files: tuple[tuple[int, SourceFile], ...]
    #: Number of other files in the sources, by the reason why they are not listed (`listing.LocatedFiles`).
    unread: Mapping[str, int] = {}

    @cached_property
    def digest(self) -> str:
        """Digest of the files' names and contents. The location of the files has no effect on the digest."""
        return fingerprint.digest([[index, file.name, file.sha256] for index, file in self.files])

    @property
    def found(self) -> int:
        """Number of files in the sources, including files that are not listed."""
        return len(self.files) + sum(self.unread.values())

    @property
    def bytes(self) -> int:
        """Total size of the listed files."""
        return sum(file.bytes for _, file in self.files)

    @property
    def revisions(self) -> dict[str, str]:
        """Commits on the Hugging Face Hub that the files come from, by source index."""
        return {str(index): commit for index, file in self.files if (commit := revision_of(file.uri))}

    def of(self, index: int) -> list[SourceFile]:
        """Return the files of one source."""
        return [file for at, file in self.files if at == index]


class Group(Frozen):
    """Files or pieces of one source that become one part. Each has its license, or `per-document` if each record has a
    license."""

    source: int
    files: tuple[tuple[SourceFile, str], ...]


def inventory(
    bucket: Bucket,
    base: Path | str,
    memory: DigestMemory | None = None,
    piece_bytes: int = PIECE_BYTES,
    engine: Engine | None = None,
) -> Inventory:
    """List and hash the files of every source of a bucket, and determine where large files are cut.

    Args:
        bucket: bucket whose sources are listed, in order.
        base: folder or URI that relative source paths start from.
        memory: digests of files that were hashed earlier; if None, every file is read.
        piece_bytes: target size of a piece; much larger files are cut.
        engine: engine that reads new files, if there are many bytes to read. If None, this process reads them.

    Raises:
        SourceError: a source has no files, a file is unreadable, or a source must not be used for training.
    """
    for source in bucket.sources:
        _require_terms(source)
    found: list[tuple[int, SourceFile]] = []
    unread = Counter[str]()
    for index, source in enumerate(bucket.sources):
        cut = partial(cutter, source.kind, piece_bytes=piece_bytes)
        there = listing.survey(
            source.path, base, wanted_suffixes(source), cut, memory, engine.map if engine else None, source.hidden
        )
        if not there.files:
            raise _nothing_to_read(source, base, there.unread)
        found.extend((index, file) for file in there.files)
        unread.update(there.unread)
    return Inventory(files=tuple(found), unread=dict(sorted(unread.items())))


def remembered(workspace: Workspace) -> DigestMemory:
    """Return the workspace's record of hashed files. With this record, an inventory reads only new files."""
    return DigestMemory(workspace.records / MEMORY_FILE)


def groups(bucket: Bucket, listed: Inventory, part_bytes: int) -> Iterator[Group]:
    """Yield the groups of files of a bucket in order. Each group has about `part_bytes` of source bytes. A piece that
    is larger becomes a group by itself."""
    for index, source in enumerate(bucket.sources):
        files = listed.of(index)
        by_file = _licensed_by_file(source)
        licences = read_licences(files) if by_file else None
        content = [file for file in files if not (by_file and _states_licences(file))]
        pieces = [piece for file in content for piece in file.split()]
        for group in _cut(pieces, part_bytes):
            licensed = tuple((file, licences.of(file.name) if licences else source.licence) for file in group)
            yield Group(source=index, files=licensed)


def not_read(bucket: Bucket, listed: Inventory) -> dict[str, int]:
    """Return the number of files of a bucket that are not read as records, by reason."""
    counts = Counter(listed.unread)
    for index, file in listed.files:
        if file.refused:
            counts[file.refused] += 1
        elif _licensed_by_file(bucket.sources[index]) and _states_licences(file):
            counts[LICENCES_FILE] += 1
    return dict(sorted(counts.items()))


def record_licence(declared: str, own: object) -> str:
    """Return the license of a record: the license declared for its source, or the record's `own` license if the source
    declares `per-document`."""
    if declared != PER_DOCUMENT:
        return declared
    return own.strip() if isinstance(own, str) and own.strip() else UNKNOWN


def _cut(files: Iterable[SourceFile], target: int) -> Iterator[list[SourceFile]]:
    """Yield groups of files with about `target` bytes each. A hash of a file's name decides whether a group ends after
    the file; the probability is size / target.

    As in content-defined chunking, a group has between a quarter of the target and twice the target. After a cut that
    the upper limit forces, later groups end at the same files as before.
    """
    group: list[SourceFile] = []
    held = 0
    for file in files:
        group.append(file)
        held += file.bytes
        drawn = int.from_bytes(hashlib.sha256(file.key.encode()).digest()[:8], "big") / 2**64
        if held >= 2 * target or (held >= target / 4 and drawn < file.bytes / target):
            yield group
            group, held = [], 0
    if group:
        yield group


def wanted_suffixes(source: Source) -> tuple[str, ...]:
    """Return the file name suffixes to list, which are the suffixes to read and the name of the license file."""
    wanted = source.suffixes or READERS.find(source.kind).suffixes
    if wanted and _licensed_by_file(source):
        return (*wanted, LICENCES_FILE)
    return wanted


def _licensed_by_file(source: Source) -> bool:
    return source.licence == PER_DOCUMENT and READERS.find(source.kind).licensed_by_file


def _states_licences(file: SourceFile) -> bool:
    return file.name == LICENCES_FILE and not file.refused


def _nothing_to_read(source: Source, base: Path | str, unread: Mapping[str, int]) -> SourceError:
    """Return the error for a source without readable files. The error lists the files that exist and explains how to
    read them."""
    wanted = wanted_suffixes(source)
    ways = ["`hidden: true` in the source reads hidden files"] if listing.HIDDEN in unread else []
    for end in unread:
        kinds = [kind for kind in READERS if end in READERS.find(kind).suffixes]
        ways += [f"`kind: {kinds[0]}` reads {end}"] if kinds else []
        ways += [f"decompress files that end in {end}"] if end.rpartition(".")[0] in wanted else []
    plain = [end for end in wanted if not end.endswith(COMPRESSED)]
    packed = f" (or compressed: {', '.join(COMPRESSED)})" if len(plain) < len(wanted) else ""
    return SourceError(
        f"no file matches {absolute(source.path, base)}" if not unread else f"no file of {source.path} is read",
        found=listing.described(unread),
        expected=f"at least one file ending in {', '.join(plain)}{packed}" if wanted else "at least one file",
        remedy="; ".join([*ways, "fix the source's `path` or `suffixes` in the recipe"]),
    )


def _require_terms(source: Source) -> None:
    if not source.terms.train:
        raise SourceError(
            f"source {source.path} of {source.domain} may not be trained on",
            found="terms.train: false",
            expected="terms.train: true, as granted by the owner",
            remedy="remove the source from the bucket, or obtain permission and set terms.train in the recipe",
        )


# The license of a file of a `per-document` source.
#
# A folder of files may hold `LICENCES.json` at its root: a JSON object from relative path (a folder, a file, or
# `""` for everything else) to an SPDX expression. The longest path that leads to a file decides. What nothing
# names is `unknown`, and the license gate stops it. JSON lines and WARC have no such file: there the record
# itself carries the license.

PER_DOCUMENT = "per-document"
UNKNOWN = "unknown"
LICENCES_FILE = "LICENCES.json"
MAX_LICENCES_BYTES = 64 * 2**20


class Licences:
    """Map from relative path to license. If several paths match a file or its folders, the longest path applies."""

    def __init__(self, by_path: Mapping[str, str]) -> None:
        self._by_path = {path.strip("/"): licence for path, licence in by_path.items()}

    def of(self, name: str) -> str:
        """Return the license of the file with this name in the source."""
        path = name
        while path:
            if path in self._by_path:
                return self._by_path[path]
            path = path.rpartition("/")[0]
        return self._by_path.get("", UNKNOWN)


def read_licences(files: Sequence[SourceFile]) -> Licences:
    """Return the licenses that `LICENCES.json` of a source declares for its files. If there is no such file, the map is
    empty.

    Raises:
        SourceError: the file exists and is not valid.
    """
    for file in files:
        if file.name == LICENCES_FILE and not file.refused:
            return Licences(_parse(file))
    return Licences({})


def _parse(file: SourceFile) -> dict[str, str]:
    with opened(file) as stream:
        data = stream.read(MAX_LICENCES_BYTES)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        found = error
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    raise SourceError(
        f"{file.uri} does not list the licenses of files",
        found=found if isinstance(found, Exception) else type(found).__name__,
        expected='a JSON object from relative path to SPDX expression, such as {"requests": "Apache-2.0"}',
        remedy="fix the file, or set one license for the source in the recipe",
    )
