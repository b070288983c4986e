"""What is at a location: every file with its digest, or only with what tells that it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from plinth.errors import SourceError
from plinth.storage.digests import Cutter, DigestMemory, DigestSession, FileDigests, digests
from plinth.storage.files import SourceFile
from plinth.storage.uris import absolute, filesystem, open_stream, printable, readable

#: Maps a module-level function over small tasks and yields the results in order (`compute.engine`).
Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]

#: Files hashed side by side: hashing leaves Python's lock, and a bucket answers many requests at once.
HASHING_THREADS = 8
#: What is read in the calling process, at most, where there are workers: below it starting them takes longer.
HERE_BYTES = 256 * 2**20
#: Of one task: bytes, unless one file has more, and files.
BATCH_BYTES, BATCH_FILES = 64 * 2**20, 256
#: A local file changed so lately may change again within the clock's tick: its digest is not remembered.
SETTLED_S = 2.0
MARKS = ("ETag", "etag", "md5Hash", "LastModified")


def inventory(
    location: str,
    base: Path,
    suffixes: tuple[str, ...] = (),
    cutter: Callable[[str], Cutter | None] | None = None,
    memory: DigestMemory | None = None,
    spread: Spread | None = None,
) -> list[SourceFile]:
    """Every file that a location (path, folder or glob) names, sorted by name, with its digest.

    Args:
        location: relative to `base`, absolute, or a URI.
        base: what relative locations are relative to.
        suffixes: endings of the names wanted; empty means all.
        cutter: by a file's name, what finds where it is cut into pieces; None for a file that is not cut.
        memory: digests of files that have not changed since; without one every file is read.
        spread: where more than `HERE_BYTES` have to be read: maps a function over tasks on workers, in order.

    Raises:
        SourceError: when nothing is there or a file cannot be read.
    """
    fs, root, found = _find(location, base, suffixes)
    if not found:
        raise SourceError(
            f"no file matches {absolute(location, base)}",
            found="nothing",
            expected=f"at least one file ending in {', '.join(suffixes)}" if suffixes else "at least one file",
            remedy="correct the source's `path` in the recipe",
        )
    entries = [
        _Entry(name, fs.unstrip_protocol(name), info["size"] or 0, _mark(info), cutter(name) if cutter else None)
        for name, info in found
    ]
    with memory.session() if memory else nullcontext(DigestSession(None)) as session:
        hashed = _hashed(fs, entries, session, spread)
    return [
        SourceFile(uri=entry.uri, name=_relative(entry.name, root), **dict(one))
        for entry, one in zip(entries, hashed, strict=True)
    ]


def listing(location: str, base: Path, suffixes: tuple[str, ...] = ()) -> list[list[Any]]:
    """Name, size and change mark of every file at a location: cheap to ask often, and no proof of content.

    Raises:
        SourceError: the location cannot be listed.
    """
    _, root, found = _find(location, base, suffixes)
    return [[_relative(name, root), info["size"], _mark(info)] for name, info in found]


class _Entry(NamedTuple):
    name: str
    uri: str
    size: int
    mark: str
    cutter: Cutter | None

    @property
    def kind(self) -> str:
        return self.cutter.name if self.cutter else ""


def _find(location: str, base: Path, suffixes: tuple[str, ...]) -> tuple[Any, str, list[tuple[str, Mapping[str, Any]]]]:
    """File system, root that names are relative to, and the files wanted by name, with what is known of them."""
    uri = absolute(location, base)
    fs, path = filesystem(uri)
    root = path.split("*", 1)[0].rsplit("/", 1)[0] if "*" in path else path
    found: dict[str, Mapping[str, Any]] = {}
    with readable(uri, "list"):
        fs.invalidate_cache()  # drivers keep listings for the life of the process: new files would never be seen
        if "*" in path:
            for match, info in fs.glob(path, detail=True).items():
                found |= fs.find(match, detail=True) if info["type"] == "directory" else {match: info}
        else:
            found = fs.find(path, detail=True)
    wanted = ((name, info) for name, info in sorted(found.items()) if not name.endswith("/"))
    return fs, root, [(name, info) for name, info in wanted if not suffixes or name.endswith(suffixes)]


def _mark(info: Mapping[str, Any]) -> str:
    """What changes when a file changes: an entity tag, or times and inode of a local file; empty when unknown."""
    for key in MARKS:
        if info.get(key):
            return str(info[key])
    times = [info[key] for key in ("mtime", "created", "ino") if info.get(key)]
    return "-".join(map(str, times))


def _relative(name: str, root: str) -> str:
    return printable(name[len(root) :].lstrip("/") or name.rsplit("/", 1)[-1])


def _hashed(fs: Any, entries: Sequence[_Entry], session: DigestSession, spread: Spread | None) -> list[FileDigests]:
    """Digests of the entries in order, remembered where the mark is the same, read where it is not."""
    found = [session.get(one.uri, one.kind, one.size, one.mark) if one.mark else None for one in entries]
    missing = [i for i, one in enumerate(found) if one is None]
    started = time.time()
    tasks = list(_batches([entries[i] for i in missing]))
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        here = spread is None or sum(entries[i].size for i in missing) <= HERE_BYTES
        made = pool.map(_digests, tasks) if here or spread is None else spread(_digests, tasks)
        for i, answer in zip(missing, chain.from_iterable(made), strict=True):
            found[i], entry = answer, entries[i]
            if entry.mark and answer.bytes == entry.size and _settled(fs, entry, started):
                session.put(entry.uri, entry.kind, entry.mark, answer)
    return [one for one in found if one is not None]


def _batches(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, ...]]:
    """Neighbours of together about `BATCH_BYTES`, or one larger file."""
    batch, held = list[_Entry](), 0
    for entry in entries:
        if batch and (held + entry.size > BATCH_BYTES or len(batch) == BATCH_FILES):
            yield tuple(batch)
            batch, held = [], 0
        batch.append(entry)
        held += entry.size
    if batch:
        yield tuple(batch)


def _digests(entries: tuple[_Entry, ...]) -> list[FileDigests]:
    return [_file_digests(entry) for entry in entries]


def _file_digests(entry: _Entry) -> FileDigests:
    fs, _ = filesystem(entry.uri)
    with readable(entry.uri, "read"), open_stream(fs, entry.name) as stream:
        return digests(stream, entry.size, entry.cutter)


def _settled(fs: Any, entry: _Entry, started: float) -> bool:
    if "file" not in fs.protocol:
        return True  # an entity tag is of the content
    info = fs.info(entry.name)
    return _mark(info) == entry.mark and max(info["mtime"], info["created"]) < started - SETTLED_S
