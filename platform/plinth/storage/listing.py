"""Listing of a location: every file with its digest, or only with a mark that changes with the file.

A symbolic link below a location is followed if it leads to a file below the same location that is not listed under
another name; a download cache is a folder of such links. Other links are listed as links, because an untrusted tree
must not lead to files of this machine. The location itself may be a link or pass through links if the recipe gives an
absolute path; a path relative to the workspace stays in its `input/`. Files that are off limits are flagged, wherever
they are (`off_limits`).

Files are selected by suffix, in any case. Hidden files (dot files and remains of editors and operating systems) are
skipped unless requested. Skipped files are counted.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from plinth.errors import SourceError
from plinth.storage import off_limits
from plinth.storage.files import (
    PRIVATE_FILE,
    SPECIAL_FILE,
    SYMLINK,
    Cutter,
    DigestMemory,
    DigestSession,
    FileDigests,
    SourceFile,
    digests,
    range_digest,
)
from plinth.storage.uris import (
    HUB_SCHEME,
    absolute,
    filesystem,
    open_stream,
    pinned,
    printable,
    readable,
    source_filesystem,
)

#: Maps a module-level function over small tasks and yields the results in order (`compute.engine`).
Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]

#: Files hashed in parallel: hashing releases Python's lock, and a bucket serves many requests at once.
HASHING_THREADS = 8
#: Parallel requests for the size of a file.
LOOKING_THREADS = 16
#: Maximum bytes read in the calling process if there are workers: starting workers takes longer.
HERE_BYTES = 256 * 2**20
#: Limits per task: bytes, unless one file has more, and files.
BATCH_BYTES, BATCH_FILES = 64 * 2**20, 256
#: A local file changed this recently may change again within the clock's resolution: its digest is not cached.
SETTLED_S = 2.0
#: Reasons for skipping a file, in addition to its suffix.
HIDDEN, NO_ENDING, OTHER = "hidden", "no ending", "other endings"
#: Files and folders that operating systems and programs leave behind, in lower case.
LEFT_BEHIND = frozenset({"__macosx", "__pycache__", "thumbs.db", "desktop.ini", "$recycle.bin"})
_ENDING = re.compile(r"(?<=[^/])(?:\.[\w+-]{1,20}(?=\.(?:gz|zst|zstd|bz2|xz|lz4|lzma|br|z|zip)$))?\.[\w+-]{1,20}$")
#: Maximum number of suffixes that are counted separately.
MAX_ENDINGS = 40
MARKS = ("blob_id", "ETag", "etag", "md5Hash", "LastModified")


class LocatedFiles(NamedTuple):
    """Files of a location, and the number of skipped files by reason: `HIDDEN`, or the suffix of their name."""

    files: list[SourceFile]
    unread: dict[str, int]


def inventory(
    location: str,
    base: Path | str,
    suffixes: tuple[str, ...] = (),
    cutter: Callable[[str], Cutter | None] | None = None,
    memory: DigestMemory | None = None,
    spread: Spread | None = None,
) -> list[SourceFile]:
    """Return every file of a location with its digest, without hidden files; skipped files are not counted.

    Raises:
        SourceError: there is no file, all are off limits, or a file cannot be read.
    """
    found = survey(location, base, suffixes, cutter, memory, spread)
    if not found.files:
        raise SourceError(
            f"no file matches {absolute(location, base)}",
            found=described(found.unread),
            expected=f"at least one file ending in {', '.join(suffixes)}" if suffixes else "at least one file",
            remedy="correct the source's `path` in the recipe",
        )
    return found.files


def survey(
    location: str,
    base: Path | str,
    suffixes: tuple[str, ...] = (),
    cutter: Callable[[str], Cutter | None] | None = None,
    memory: DigestMemory | None = None,
    spread: Spread | None = None,
    hidden: bool = False,
) -> LocatedFiles:
    """Return every file of a location (path, folder or glob) with its digest, sorted by name.

    Links, special files and files that are off limits are returned as `refused` files without content. Skipped files
    are counted.

    Args:
        location: path relative to `base`, absolute path, or URI.
        base: root of relative locations.
        suffixes: suffixes of the names to include; empty means all.
        cutter: returns the cutter for a file's name; None for a file that is not cut.
        memory: digests of unchanged files; without it, every file is read.
        spread: function that maps a task function over tasks on workers, in order; used if more than `HERE_BYTES`
            must be read.
        hidden: True includes hidden files.

    Raises:
        SourceError: the location cannot be listed, all of it is off limits, or a file cannot be read.
    """
    fs, anchor, found, unread = _find(location, base, suffixes, hidden)
    entries = [
        _Entry(
            info.get("uri") or fs.unstrip_protocol(path),
            name,
            info["size"] or 0,
            _mark(info),
            cutter(name) if cutter and "start" not in info else None,
            _refused(info),
            path[len(anchor.rstrip("/")) + 1 :].count("/"),
            info.get("start"),
        )
        for name, path, info in _sized(found)
    ]
    with memory.session() if memory else nullcontext(DigestSession(None)) as session:
        hashed = _hashed(entries, session, spread)
    files = [
        SourceFile(uri=entry.uri, name=entry.name, depth=entry.depth, refused=entry.refused, **entry.range, **dict(one))
        for entry, one in zip(entries, hashed, strict=True)
    ]
    return LocatedFiles(files, unread)


def described(unread: Mapping[str, int]) -> str:
    """Return skipped files in words: `3 .csv, 1 hidden`."""
    return ", ".join(f"{count} {reason}" for reason, count in unread.items()) or "nothing"


def listing(
    location: str, base: Path | str, suffixes: tuple[str, ...] = (), sized: bool = True, hidden: bool = False
) -> list[list[Any]]:
    """Return name, size and change mark of every file at a location. This is cheap, but does not prove the content.

    Files that are not read (`refused`) are left out.

    Args:
        sized: True requests sizes that a listing lacks; otherwise these are None.
        hidden: True includes hidden files.

    Raises:
        SourceError: the location cannot be listed.
    """
    _, _, found, _ = _find(location, base, suffixes, hidden)
    wanted = _sized(found) if sized else found
    return [[name, info["size"], _mark(info)] for name, _, info in wanted if not _refused(info)]


def newest(location: str, base: Path | str, suffixes: tuple[str, ...] = (), hidden: bool = False) -> float | None:
    """Return the arrival time of the newest file at a location (Unix seconds); None if the file system has no times.

    Raises:
        SourceError: the location cannot be listed.
    """
    _, _, found, _ = _find(location, base, suffixes, hidden)
    return max((time for _, _, info in found for time in _times(info)), default=None)


def _times(info: Mapping[str, Any]) -> Iterator[float]:
    """Yield the times at which a local file's content and its directory entry changed. A copy may keep the content time
    of the original."""
    for key in ("mtime", "created", "LastModified"):
        value = info.get(key)
        if value is not None:
            yield value.timestamp() if hasattr(value, "timestamp") else float(value)


class _Entry(NamedTuple):
    uri: str
    name: str
    size: int
    mark: str
    cutter: Cutter | None
    refused: str
    depth: int
    start: int | None = None  # start of a range that is listed as a file

    @property
    def kind(self) -> str:
        """Kind of the digest: a range, or the name of the file's cutter."""
        if self.start is not None:
            return f"range/{self.start}"
        return self.cutter.name if self.cutter else ""

    @property
    def place(self) -> tuple[int, int]:
        """Byte range: first byte and number of bytes."""
        return self.start or 0, self.size

    @property
    def range(self) -> dict[str, int]:
        """Byte range of a file, as fields of `SourceFile`; empty for a whole file."""
        return {} if self.start is None else {"start": self.start, "whole": self.start + self.size}


#: Name of a file relative to the location, its path, and its known facts.
_Found = tuple[str, str, Mapping[str, Any]]


def _find(
    location: str, base: Path | str, suffixes: tuple[str, ...], hidden: bool
) -> tuple[Any, str, list[_Found], dict[str, int]]:
    """Return the file system, the folder below which no part of a path may be a link, the files, and counts of skipped
    files."""
    uri = absolute(location, base)
    fs, named = source_filesystem(uri)
    if HUB_SCHEME in fs.protocol:
        with readable(uri, "list"):
            fs.invalidate_cache()
            fs, named = filesystem(pinned(fs, uri))
    if "cc" in fs.protocol:
        with readable(uri, "list"):
            named_ones = [(one["name"], path, one) for path, one in sorted(fs.find(named).items())]
        wanted, others = _wanted(fs, named_ones, suffixes, hidden=True)
        return fs, "", wanted, _counted(reason for _, reason in others)
    folder = named.split("*", 1)[0].rsplit("/", 1)[0] if "*" in named else named
    local = "file" in fs.protocol
    root, anchor = off_limits.place(folder, base) if local else (folder, folder)
    path = root.rstrip("/") + named[len(folder) :]
    found: dict[str, Mapping[str, Any]] = {}
    with readable(uri, "list"):
        fs.invalidate_cache()  # drivers cache listings for the life of the process and would miss new files
        if "*" in path:
            for match, info in fs.glob(path, detail=True).items():
                found |= fs.find(match, detail=True) if info["type"] == "directory" else {match: info}
        else:
            found = fs.find(path, detail=True)
    if "https" in fs.protocol:
        root = folder = anchor = next(iter(found))  # the final address after redirects
    listed = [(_relative(one, root, folder), one, info) for one, info in sorted(found.items()) if one[-1:] != "/"]
    # A file or a pattern that the location spells out is included, whatever its name.
    meant = hidden or root in found or is_hidden(named[len(folder) :].strip("/"))
    wanted, others = _wanted(fs, listed, suffixes, meant)
    followed = _followed(fs, root.rstrip("/"), wanted)
    files = _guarded(followed, uri) if local else list(followed)
    read = {one for _, one, _ in files}
    return fs, anchor, files, _counted(reason for one, reason in others if one not in read)


def _wanted(
    fs: Any, found: Sequence[_Found], suffixes: tuple[str, ...], hidden: bool
) -> tuple[list[_Found], list[tuple[str, str]]]:
    """Return the files to include, and the paths of skipped files with the reason."""
    ends = tuple(suffix.lower() for suffix in suffixes)
    wanted, others = list[_Found](), list[tuple[str, str]]()
    for name, path, info in found:
        if not hidden and is_hidden(name):
            others.append((path, HIDDEN))
        elif not ends or name.lower().endswith(ends) or (info.get("islink") and fs.isdir(path)):
            # Links to folders are included under any name: they may contain files of every suffix.
            wanted.append((name, path, info))
        else:
            others.append((path, ending(name)))
    return wanted, others


def is_hidden(name: str) -> bool:
    """Return True for files and folders that are not part of a source: dot files, editor backups, `LEFT_BEHIND`."""
    return any(
        part[:1] == "." or part[-1:] == "~" or (part[0] == part[-1] == "#") or part.lower() in LEFT_BEHIND
        for part in name.split("/")
        if part
    )


def ending(name: str) -> str:
    """Return the suffix of a file's name in lower case. If it is a compression suffix, the suffix before it is
    included."""
    found = _ENDING.search(name.rsplit("/", 1)[-1].lower())
    return found[0] if found else NO_ENDING


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    """Return counts by reason, largest first; suffixes beyond `MAX_ENDINGS` are counted together."""
    counts = sorted(Counter(reasons).items(), key=lambda one: (-one[1], one[0]))
    rest = sum(count for _, count in counts[MAX_ENDINGS:])
    return dict(counts[:MAX_ENDINGS]) | ({OTHER: rest} if rest else {})


def _guarded(found: Iterable[_Found], uri: str) -> list[_Found]:
    """Return the files, with those that are off limits flagged.

    Raises:
        SourceError: all files are off limits.
    """
    limits = off_limits.current()

    def hidden(path: str, info: Mapping[str, Any]) -> bool:
        return not _refused(info) and limits.has(path, info.get("nlink", 1))

    marked: list[_Found] = [(name, path, {**info, "off_limits": hidden(path, info)}) for name, path, info in found]
    if marked and all(info["off_limits"] for _, _, info in marked):
        raise off_limits.refused(uri, f"{len(marked)} files that are off limits")
    return marked


def _sized(found: Sequence[_Found]) -> list[_Found]:
    """Add sizes and change marks that the listing lacks."""

    def unknown(info: Mapping[str, Any]) -> bool:
        return info["size"] is None and "uri" in info

    def sized(one: _Found) -> _Found:
        name, path, info = one
        if not unknown(info):
            return one
        fs, own = filesystem(info["uri"])
        with readable(info["uri"], "open"):
            return name, path, {**fs.info(own), **{key: value for key, value in info.items() if value is not None}}

    if not any(unknown(info) for _, _, info in found):
        return list(found)
    with ThreadPoolExecutor(LOOKING_THREADS) as pool:
        return list(pool.map(sized, found))


def _followed(fs: Any, root: str, found: Sequence[_Found]) -> Iterator[_Found]:
    """Yield the files. A link to a file below the root is replaced by that file if the listing has the file under no
    other name."""
    read = {path for _, path, info in found if not info.get("islink")}
    for name, path, info in found:
        target = os.path.realpath(path) if info.get("islink") else path
        if target != path and target.startswith(f"{root}/") and target not in read and fs.isfile(target):
            read.add(target)
            yield name, target, fs.info(target)
        else:
            yield name, path, info


def _refused(info: Mapping[str, Any]) -> str:
    """Return why a file is not read, or an empty string if it is read. Only local file systems have such files."""
    if info.get("off_limits"):
        return PRIVATE_FILE
    if info.get("islink"):
        return SYMLINK
    return SPECIAL_FILE if info.get("type") == "other" else ""


def _mark(info: Mapping[str, Any]) -> str:
    """Return an entity tag, or times and inode of a local file, which change with the file; empty if unknown."""
    for key in MARKS:
        if info.get(key):
            return str(info[key])
    times = [info[key] for key in ("mtime", "created", "ino") if info.get(key)]
    return "-".join(map(str, times))


def _relative(path: str, root: str, folder: str) -> str:
    """Return a path relative to the root. If the location itself is a file, return the file's name."""
    return printable(path[len(root) :].lstrip("/") or folder.rsplit("/", 1)[-1])


def _hashed(entries: Sequence[_Entry], session: DigestSession, spread: Spread | None) -> list[FileDigests]:
    """Return digests of the entries in order: from the cache if the change mark is the same, otherwise computed."""
    found = [
        _no_content(one) if one.refused else session.get(one.uri, one.kind, one.size, one.mark) if one.mark else None
        for one in entries
    ]
    missing = [i for i, one in enumerate(found) if one is None]
    started = time.time()
    tasks = list(_batches([entries[i] for i in missing]))
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        here = spread is None or sum(entries[i].size for i in missing) <= HERE_BYTES
        made = pool.map(_digests, tasks) if here or spread is None else spread(_digests, tasks)
        for i, answer in zip(missing, chain.from_iterable(made), strict=True):
            found[i], entry = answer, entries[i]
            if entry.mark and answer.bytes == entry.size and _settled(entry, started):
                session.put(entry.uri, entry.kind, entry.mark, answer)
    return [one for one in found if one is not None]


def _batches(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, ...]]:
    """Yield groups of consecutive entries of about `BATCH_BYTES`, or one larger file."""
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
    fs, path = filesystem(entry.uri)
    bounded = entry.start is not None
    with readable(entry.uri, "read"), open_stream(fs, path, entry.depth, entry.size if bounded else 0) as stream:
        return digests(stream, entry.size, entry.cutter) if not bounded else range_digest(stream, *entry.place)


def _no_content(entry: _Entry) -> FileDigests:
    """Return the digest of a link. It covers only the fact that the file is a link, because the link's target is a path
    of this machine."""
    return FileDigests(bytes=0, sha256=hashlib.sha256(entry.refused.encode()).hexdigest())


def _settled(entry: _Entry, started: float) -> bool:
    fs, path = filesystem(entry.uri)
    if "file" not in fs.protocol:
        return True  # an entity tag identifies the content
    info = fs.info(path)
    return _mark(info) == entry.mark and max(info["mtime"], info["created"]) < started - SETTLED_S
