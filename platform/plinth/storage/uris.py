"""Open and list source files through fsspec: callers cannot tell local from remote.

Names bear identity, URIs never do: a file moved to another machine or bucket keeps its name and digest. Where
`s3://` leads is said by the environment, as boto3 reads it: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
`AWS_PROFILE` and the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import fsspec

from plinth.errors import IntegrityError, SourceError
from plinth.records import Frozen
from plinth.storage.digests import Cutter, DigestMemory, Digests, Piece, Session, digests

CHUNK_BYTES = 1 << 20
#: Files hashed side by side: hashing leaves Python's lock, and a bucket answers many requests at once.
HASHING_THREADS = 8
#: What remote drivers fetch at a time.
BLOCK_BYTES = 8 * 2**20
#: A local file changed so lately may change again within the clock's tick: its digest is not remembered.
SETTLED_S = 2.0
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: What s3fs raises when an object no longer has the entity tag that it was opened with.
EXPIRED = "FileExpired"
MARKS = ("ETag", "etag", "md5Hash", "LastModified")


class SourceFile(Frozen):
    """One file of a source, or a piece of one. `uri` opens it; `name` is relative to the source's root and bears
    identity.

    `bytes` and `sha256` are the file's; of a piece, the piece's, which begins at byte `start` of the `whole`
    bytes and has `before` lines before it. The last `tail` bytes of the file belong to each of its pieces.
    """

    uri: str
    name: str
    bytes: int
    sha256: str
    pieces: tuple[Piece, ...] = ()
    start: int = 0
    before: int = 0
    tail: int = 0
    whole: int = 0

    @property
    def key(self) -> str:
        """The name, with the place where the piece begins."""
        return f"{self.name}@{self.start}" if self.start else self.name

    def split(self) -> list[SourceFile]:
        """The pieces as files of their own; the file itself where it is not cut."""
        return [
            SourceFile(uri=self.uri, name=self.name, whole=self.bytes, **piece.model_dump()) for piece in self.pieces
        ] or [self]


def absolute(location: str, base: Path) -> str:
    """A location as a URI: `s3://…` stays, a relative path is taken from `base`."""
    if SCHEME.match(location):
        return location
    path = Path(location).expanduser()
    return str(path if path.is_absolute() else base / path)


def filesystem(uri: str, **options: Any) -> tuple[Any, str]:
    """The fsspec file system of a URI and the path in it.

    Raises:
        SourceError: for a scheme without an installed driver.
    """
    # Not `url_to_fs`: it would take a name with `::` in it for a chain of addresses.
    scheme = SCHEME.match(uri)
    try:
        fs = fsspec.filesystem(scheme.group(1) if scheme else "file", **options)
        return fs, fs._strip_protocol(uri)
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"cannot open {uri}", found=error, remedy="install the extra that serves it, such as `plinth[s3]`"
        ) from error


def inventory(
    location: str,
    base: Path,
    suffixes: tuple[str, ...] = (),
    cutter: Callable[[str], Cutter | None] | None = None,
    memory: DigestMemory | None = None,
) -> list[SourceFile]:
    """Every file that a location (path, folder or glob) names, sorted by name, with its digest.

    Args:
        location: relative to `base`, absolute, or a URI.
        base: what relative locations are relative to.
        suffixes: endings of the names wanted; empty means all.
        cutter: by a file's name, what finds where it is cut into pieces; None for a file that is not cut.
        memory: digests of files that have not changed since; without one every file is read.

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
    with memory.session() if memory else nullcontext(Session(None)) as session:
        hashed = _hashed(fs, entries, session)
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
    with _readable(uri, "list"):
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
    return _printable(name[len(root) :].lstrip("/") or name.rsplit("/", 1)[-1])


def _hashed(fs: Any, entries: Sequence[_Entry], session: Session) -> list[Digests]:
    """Digests of the entries in order, remembered where the mark is the same, read where it is not."""
    found = [session.get(one.uri, one.kind, one.size, one.mark) if one.mark else None for one in entries]
    missing = [i for i, one in enumerate(found) if one is None]
    started = time.time()
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        answers = pool.map(lambda i: _digests(fs, entries[i]), missing)
        for i, answer in zip(missing, answers, strict=True):
            found[i], entry = answer, entries[i]
            if entry.mark and answer.bytes == entry.size and _settled(fs, entry, started):
                session.put(entry.uri, entry.kind, entry.mark, answer)
    return [one for one in found if one is not None]


def _digests(fs: Any, entry: _Entry) -> Digests:
    with _readable(entry.uri, "read"), _open(fs, entry.name) as stream:
        return digests(stream, entry.size, entry.cutter)


def _settled(fs: Any, entry: _Entry, started: float) -> bool:
    if "file" not in fs.protocol:
        return True  # an entity tag is of the content
    info = fs.info(entry.name)
    return _mark(info) == entry.mark and max(info["mtime"], info["created"]) < started - SETTLED_S


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
        with _readable(self._file.uri, "read"):
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
        SourceError: when it cannot be opened or read.
        IntegrityError: when it is no longer what the inventory lists.
    """
    fs, path = filesystem(file.uri)
    with _readable(file.uri, "open"):
        stream = _open(fs, path)
    with stream:
        checked = CheckedFile(file, stream)
        yield checked
        checked.finish()


def _open(fs: Any, name: str) -> Any:
    return fs.open(name, "rb", block_size=BLOCK_BYTES) if "file" not in fs.protocol else fs.open(name, "rb")


@contextmanager
def _readable(uri: str, doing: str) -> Iterator[None]:
    """Drivers raise exceptions of their own libraries; a reader is told the file in every case."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ == EXPIRED:
            raise IntegrityError(
                f"{uri} changed while it was being read",
                found=error,
                expected="the object that was listed",
                remedy="let whatever writes it finish, then run the same command again",
            ) from error
        raise SourceError(
            f"cannot {doing} {uri}",
            found=f"{type(error).__name__}: {error}",
            expected="a readable file or folder",
            remedy="check that it exists, its permissions, and for remote locations credentials and network",
        ) from error


def _printable(name: str) -> str:
    """A name that UTF-8 can carry: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
