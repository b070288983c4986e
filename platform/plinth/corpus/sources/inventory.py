"""The files of a bucket, and how they are cut into groups of work.

Groups are content-defined: whether a group ends after a file is decided by a hash of the file's name, so a
file that is added or removed changes the group it falls in and, at most, its neighbour; never all that follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path

from plinth import fingerprint
from plinth.compute.engine import Engine
from plinth.corpus.sources.cuts import PIECE_BYTES, cutter
from plinth.corpus.sources.licences import LICENCES_FILE, PER_DOCUMENT, UNKNOWN, read_licences
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.corpus.sources.readers import READERS
from plinth.errors import SourceError
from plinth.records import Frozen
from plinth.storage import listing
from plinth.storage.digests import MEMORY_FILE, DigestMemory
from plinth.storage.files import SourceFile
from plinth.storage.hub import revision_of
from plinth.storage.workspace import Workspace


class Inventory(Frozen):
    """Every file of a bucket: (index in `bucket.sources`, file), in order of source and name."""

    files: tuple[tuple[int, SourceFile], ...]

    @cached_property
    def digest(self) -> str:
        """Identity of what lies in the sources: names and contents, wherever they are kept."""
        return fingerprint.digest([[index, file.name, file.sha256] for index, file in self.files])

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for _, file in self.files)

    @property
    def revisions(self) -> dict[str, str]:
        """By source, the commit of the Hub that its files are of."""
        return {str(index): commit for index, file in self.files if (commit := revision_of(file.uri))}

    def of(self, index: int) -> list[SourceFile]:
        """The files of one source."""
        return [file for at, file in self.files if at == index]


class Group(Frozen):
    """Files, or pieces of them, of one source that become one part, each with its licence (`per-document` where
    records carry it)."""

    source: int
    files: tuple[tuple[SourceFile, str], ...]


def inventory(
    bucket: Bucket,
    base: Path | str,
    memory: DigestMemory | None = None,
    piece_bytes: int = PIECE_BYTES,
    engine: Engine | None = None,
) -> Inventory:
    """List and hash the files of every source of a bucket, and find where large ones are cut.

    Args:
        bucket: its sources are looked up in order.
        base: folder or URI that relative source paths start from.
        memory: digests found earlier; without one every file is read.
        piece_bytes: files much larger than this are cut into pieces of about this size.
        engine: reads what is not remembered, where it is much; else this process reads it.

    Raises:
        SourceError: a source without files, an unreadable file, or a source that may not be trained on.
    """
    for source in bucket.sources:
        _require_terms(source)
    found: list[tuple[int, SourceFile]] = []
    for index, source in enumerate(bucket.sources):
        cut = partial(cutter, source.kind, piece_bytes=piece_bytes)
        files = listing.inventory(
            source.path, base, wanted_suffixes(source), cut, memory, engine.map if engine else None
        )
        found.extend((index, file) for file in files)
    return Inventory(files=tuple(found))


def remembered(workspace: Workspace) -> DigestMemory:
    """The workspace's record of hashed files, so that only new ones are read."""
    return DigestMemory(workspace.records / MEMORY_FILE)


def groups(bucket: Bucket, listed: Inventory, part_bytes: int) -> Iterator[Group]:
    """The groups of a bucket in order; each holds about `part_bytes` of source, a larger piece stands alone."""
    for index, source in enumerate(bucket.sources):
        files = listed.of(index)
        by_file = source.licence == PER_DOCUMENT and READERS.find(source.kind).licensed_by_file
        licences = read_licences(files) if by_file else None
        content = [file for file in files if file.refused or not (by_file and file.name == LICENCES_FILE)]
        pieces = [piece for file in content for piece in file.split()]
        for group in _cut(pieces, part_bytes):
            licensed = tuple((file, licences.of(file.name) if licences else source.licence) for file in group)
            yield Group(source=index, files=licensed)


def record_licence(declared: str, own: object) -> str:
    """The licence of a record: its source's, or its own where the source says `per-document`."""
    if declared != PER_DOCUMENT:
        return declared
    return own.strip() if isinstance(own, str) and own.strip() else UNKNOWN


def _cut(files: Iterable[SourceFile], target: int) -> Iterator[list[SourceFile]]:
    """Cut after a file with probability its size / target, by a hash of its name: about `target` bytes a group.

    Between a quarter of the target and twice it, as in content-defined chunking, so that parts are neither
    crumbs nor boulders; cuts forced by the upper bound fall back into step at the next hashed one.
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
    """Endings to list: what is read, and the licence file that governs it."""
    reader = READERS.find(source.kind)
    wanted = source.suffixes or reader.suffixes
    if wanted and reader.licensed_by_file and source.licence == PER_DOCUMENT:
        return (*wanted, LICENCES_FILE)
    return wanted


def _require_terms(source: Source) -> None:
    if not source.terms.train:
        raise SourceError(
            f"source {source.path} of {source.domain} may not be trained on",
            found="terms.train: false",
            expected="terms.train: true, granted by its owner",
            remedy="remove the source from the bucket, or obtain the right and record it in the recipe",
        )
