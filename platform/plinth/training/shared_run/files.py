"""Form of a run's files in the bucket, for the supervisor that writes them and the machines that copy them.

    events.jsonl             growing file, in pieces of a fixed size; the last piece is written again as it grows
    logs/SESSION.log         the same of node 0's log, `job.log`, from the start of the session
    attempts/, result.json … small files, by content

The head lists the length and digest of each file, so a reader sees a whole prefix of the timeline whatever was written
after it, and a piece that is written twice is harmless. A machine's copy is a prefix of the file in the bucket. If the
machine was lost and another one continued the run, its own lines that were never shipped are moved aside.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from plinth.errors import IntegrityError
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import S3Objects
from plinth.training.shared_run.head import RecordedFile, SharedRun, content_name

#: Bytes of one piece of a growing file.
PIECE_BYTES = 1 << 20

EVENTS = "events.jsonl"

#: Names of files. A head with other names is refused.
NAME = re.compile(
    r"events\.jsonl|(result|resume|measured)\.json|excluded_hosts|(attempts|audits)/\d{4,}\.json"
    r"|logs/[0-9a-f]{8,64}\.log"
)

#: Names of files that a submitter gives.
GIVEN = re.compile(r"(config|allowance|handle)\.json|contracts/\d{4}\.json")


class GrowingFile:
    """A growing file and the part of it that was shipped.

    Args:
        name: name in the head.
        start: position in the file of this machine at which the shipped file begins.
        recorded: what earlier sessions have shipped; this machine's file begins with it.
    """

    def __init__(self, shared: SharedRun, name: str, path: Path, start: int, recorded: RecordedFile | None) -> None:
        self.name = name
        self._shared, self._path, self._start, self._recorded = shared, path, start, recorded
        self._digest, self._file = hashlib.sha256(), _identity(path)
        if recorded is not None:
            for data in _blocks(path, 0, recorded.bytes):
                self._digest.update(data)

    def ship(self) -> RecordedFile | None:
        """Ship the whole lines that were added. Return the record of the file, or None if there is no file yet."""
        if (file := _identity(self._path)) != self._file:  # another file, such as one with an earlier timeline before
            self._file, self._recorded, self._digest = file, None, hashlib.sha256()
        done = self._recorded.bytes if self._recorded is not None else 0
        size = _whole_lines(self._path, self._start + done) - self._start
        if size == done:
            return self._recorded
        digest, first, session = self._digest.copy(), done // PIECE_BYTES, self._shared.session
        for data in self._read(done, size):
            digest.update(data)
        for number in range(first, -(-size // PIECE_BYTES)):
            stop = min(size, (number + 1) * PIECE_BYTES)
            piece = b"".join(self._read(number * PIECE_BYTES, stop))
            self._shared.objects.replace(_piece(session, self.name, number), piece)
        pieces = self._recorded.pieces if self._recorded is not None else ()
        if not pieces or pieces[-1][1] != session:
            pieces = (*pieces, (first, session))
        self._digest = digest
        self._recorded = RecordedFile(bytes=size, sha256=digest.hexdigest(), pieces=pieces)
        return self._recorded

    def _read(self, start: int, stop: int) -> Iterator[bytes]:
        return _blocks(self._path, self._start + start, self._start + stop)


def fetch(objects: S3Objects, root: Path, name: str, recorded: RecordedFile, *, given: bool = False) -> None:
    """Bring one file up to date, and compare it with its digest. `given` is True for a file of the submitter."""
    path, small = root / name, not recorded.pieces
    if (GIVEN if given else NAME).fullmatch(name) is None or (name == EVENTS or name.startswith("logs/")) == small:
        raise IntegrityError(f"the record of run {root.name} lists a file that no run has", found=name)
    here = _digest_of(path, recorded.bytes)
    if here == recorded.sha256 and (not small or path.stat().st_size == recorded.bytes):
        return  # the same; or this machine has lines that were not shipped yet
    if small:
        found = objects.get(content_name(recorded))
        data = found.data if found else b""
        _require(objects, name, data, recorded)
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, data)
        return
    path.parent.mkdir(exist_ok=True)
    start = path.stat().st_size if path.exists() else 0
    if start <= recorded.bytes:
        known = hashlib.sha256()
        for block in _blocks(path, 0, start):
            known.update(block)
        added = _read_pieces(objects, name, recorded, start)
        known.update(added)
        if known.hexdigest() == recorded.sha256:
            with path.open("ab") as stream:
                stream.write(added)
            return
    data = _read_pieces(objects, name, recorded, 0)
    _require(objects, name, data, recorded)
    _move_aside(path, data)
    write_bytes(path, data)


def _read_pieces(objects: S3Objects, name: str, recorded: RecordedFile, start: int) -> bytes:
    """Return the bytes of a growing file from `start` on."""
    found = []
    for number in range(start // PIECE_BYTES, -(-recorded.bytes // PIECE_BYTES)):
        writer = next(session for first, session in reversed(recorded.pieces) if first <= number)
        piece = objects.get(_piece(writer, name, number))
        stop = min(PIECE_BYTES, recorded.bytes - number * PIECE_BYTES)  # its writer may have more meanwhile
        found.append((piece.data if piece else b"")[max(0, start - number * PIECE_BYTES) : stop])
    return b"".join(found)


def _require(objects: S3Objects, name: str, data: bytes, recorded: RecordedFile) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != recorded.sha256:
        raise IntegrityError(
            f"{objects.where(name)} differs from the record of the run",
            found=f"{len(data)} bytes, {found}",
            expected=f"{recorded.bytes} bytes, {recorded.sha256}",
            remedy="restore the object from a version of the bucket",
        )


def _move_aside(path: Path, data: bytes) -> None:
    """Keep lines that were never shipped before another machine continued the run, except for the announcement of a
    submission: the events of its job are on the machine of the job."""
    before = b"".join(_blocks(path, 0, None))
    known = set(data.splitlines())
    lost = [line for line in before.splitlines() if line not in known and b'"event": "submitted"' not in line]
    if lost:
        number = 1 + sum(1 for _ in path.parent.glob(f"{path.name}.unshipped-*"))
        path.rename(path.with_name(f"{path.name}.unshipped-{number}"))


def _identity(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def _whole_lines(path: Path, start: int) -> int:
    """Return the position after the last whole line of a file, at least `start`."""
    end = at = start
    for data in _blocks(path, start, None):
        last = data.rfind(b"\n")
        end = at + last + 1 if last >= 0 else end
        at += len(data)
    return end


def _digest_of(path: Path, size: int) -> str:
    """Return the digest of the first `size` bytes of a file; empty if it has fewer bytes, or does not exist."""
    digest, found = hashlib.sha256(), 0
    for data in _blocks(path, 0, size):
        digest.update(data)
        found += len(data)
    return digest.hexdigest() if found == size and path.exists() else ""


def _blocks(path: Path, start: int, stop: int | None) -> Iterator[bytes]:
    try:
        with atomic.opened(path) as stream:
            stream.seek(start)
            left = float("inf") if stop is None else stop - start
            while left > 0 and (data := stream.read(int(min(left, PIECE_BYTES)))):
                left -= len(data)
                yield data
    except FileNotFoundError:
        return


def _piece(session: str, name: str, number: int) -> str:
    return f"pieces/{session}/{name}/{number:06d}"
