"""Small named objects (references, step records, manifests) that several writers may write at once.

    Folder     files below a folder of this machine or of a shared file system; a lock makes each write conditional
    S3Objects  objects below an `s3://` prefix (`s3_objects`); S3 makes each write conditional

Every write says what it replaces: the object that was read, by its tag, or none. Nothing is overwritten unseen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from plinth.storage.atomic import write_bytes
from plinth.storage.locks import locked

T = TypeVar("T")
R = TypeVar("R")


class ObjectVersion(NamedTuple):
    """An object as it was read; the tag names this version of it."""

    data: bytes
    tag: str


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


@dataclass(frozen=True)
class Folder:
    """Files below a folder. A writer holds a lock of the folder from the comparison to the rename."""

    root: Path
    threads = 1

    def where(self, name: str) -> str:
        return str(self.root / name)

    def get(self, name: str) -> ObjectVersion | None:
        try:
            data = (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        return ObjectVersion(data, hashlib.sha256(data).hexdigest())

    def put(self, name: str, data: bytes, replaces: str | None) -> bool:
        with locked(self.root / "lock"):
            found = self.get(name)
            if (found.tag if found else None) != replaces:
                return found is not None and found.data == data
            write_bytes(self.root / name, data)
        return True

    def names(self, prefix: str = "") -> Iterator[str]:
        found = []
        for folder, _, files in os.walk(self.root / prefix.rpartition("/")[0]):
            below = Path(folder).relative_to(self.root).as_posix()
            start = "" if below == "." else f"{below}/"
            found += [start + name for name in files if name.endswith(".json")]
        return iter(sorted(name for name in found if name.startswith(prefix)))


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
    with ThreadPoolExecutor(objects.threads) as pool:
        yield from pool.map(ask, about)
