"""Small named objects (references, step records, manifests) that several writers may write at once.

    Folder     files below a folder of this machine or of a shared file system; a lock makes each write conditional
    S3Objects  objects below an `s3://` prefix (`s3_objects`); S3 makes each write conditional

Every write says what it replaces: the object that was read, by its tag, or none. Nothing is overwritten unseen. A write
of the bytes that are there already makes the object young again, so that nobody deletes for its age what somebody has
just counted on (`plinth.operation.retention`).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from plinth.storage import plain_file
from plinth.storage.atomic import named_failures, require_no_link, write_bytes
from plinth.storage.locks import locked

T = TypeVar("T")
R = TypeVar("R")

#: Who counts on an object that is older makes it young again; nothing younger than twice that is deleted for its age.
RENEW_AFTER_S = 3 * 86400.0


class ObjectVersion(NamedTuple):
    """An object as it was read; the tag names this version of it, `modified` is when it was written (Unix time)."""

    data: bytes
    tag: str
    modified: float


class ObjectFacts(NamedTuple):
    """An object that was not read: its name, its bytes, when it was written (Unix time)."""

    name: str
    bytes: int
    modified: float

    @property
    def old(self) -> bool:
        """Whether to make it young before counting on it."""
        return is_old(self.modified)


class Objects(Protocol):
    """Objects by name: JSON files, with slashes in their names."""

    @property
    def threads(self) -> int:
        """Requests worth making at once."""
        ...

    def where(self, name: str) -> str:
        """Path or URI, for messages."""
        ...

    def get(self, name: str) -> ObjectVersion | None:
        """An object, or None where there is none."""
        ...

    def put(self, name: str, data: bytes, replaces: str | None) -> bool:
        """Write an object in the place of the one with this tag, or of none; False where other bytes are there."""
        ...

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names that begin with `prefix`, sorted."""
        ...

    def facts(self) -> Iterator[ObjectFacts]:
        """Every object, in no order; none is read."""
        ...

    def remove_old(self, name: str, before: float) -> bool:
        """Remove an object that was last written before a time; False where it is younger. None is fine."""
        ...


def is_old(modified: float) -> bool:
    """Whether what was written then is made young before somebody counts on it."""
    return modified < time.time() - RENEW_AFTER_S


@dataclass(frozen=True)
class Folder:
    """Files below a folder. A writer holds a lock of the folder from the comparison to the rename."""

    root: Path
    threads = 1

    def where(self, name: str) -> str:
        return str(self.root / name)

    def get(self, name: str) -> ObjectVersion | None:
        try:
            with plain_file.opened(self.root / name) as stream:
                data, modified = stream.read(), os.fstat(stream.fileno()).st_mtime
        except FileNotFoundError:
            return None
        return ObjectVersion(data, hashlib.sha256(data).hexdigest(), modified)

    def put(self, name: str, data: bytes, replaces: str | None) -> bool:
        with locked(self.root / "lock"):
            found = self.get(name)
            if found and found.data == data:
                try:
                    os.utime(self.root / name)
                except PermissionError:  # another user's file in a folder of both
                    write_bytes(self.root / name, data)
                return True
            if (found.tag if found else None) != replaces:
                return False
            write_bytes(self.root / name, data)
        return True

    def names(self, prefix: str = "") -> Iterator[str]:
        found = []
        for folder, _, files in os.walk(self.root / prefix.rpartition("/")[0]):
            below = Path(folder).relative_to(self.root).as_posix()
            start = "" if below == "." else f"{below}/"
            found += [start + name for name in files if name.endswith(".json")]
        return iter(sorted(name for name in found if name.startswith(prefix)))

    def facts(self) -> Iterator[ObjectFacts]:
        require_no_link(self.root)  # old ones are deleted
        for name, found in files_below(self.root):
            if name.endswith(".json"):
                yield ObjectFacts(name, found.st_size, found.st_mtime)

    def remove_old(self, name: str, before: float) -> bool:
        with locked(self.root / "lock"):
            return unlink_old(self.root / name, before)


def files_below(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Files below a folder by their path in it, links not followed; what vanishes meanwhile is left out."""
    for folder, _, files in os.walk(root):
        below = os.path.relpath(folder, root)
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            yield (name if below == "." else f"{below}/{name}"), found


def unlink_old(path: Path, before: float) -> bool:
    """Remove a file that was last written before a time; False where it is younger. The caller holds a lock."""
    try:
        if path.stat().st_mtime >= before:
            return False
        with named_failures(path):
            path.unlink()
    except FileNotFoundError:
        pass
    return True


def write_once(objects: Objects, name: str, data: bytes, sound: Callable[[bytes], bool]) -> bytes:
    """Write an object that others may write too: the first sound one stays. Returns what is there afterwards.

    Args:
        sound: whether bytes that are there already may stay; others are replaced.
    """
    replaces = None
    while not objects.put(name, data, replaces):
        found = objects.get(name)
        if found and (found.data == data or sound(found.data)):
            return found.data
        replaces = found.tag if found else None
    return data


def at_once(objects: Objects, ask: Callable[[T], R], about: Iterable[T]) -> Iterator[R]:
    """Answers in order; where objects are far away, several questions are on their way at once."""
    if objects.threads == 1:
        yield from map(ask, about)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(objects.threads) as pool:
        yield from pool.map(ask, about)
