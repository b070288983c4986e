"""Blobs of a remote store: fetched whole into a cache that the processes of a machine share, or by spans.

    cache/files/md5/ab/cdef…   whole blobs, each checked by SHA-256 once, when it came
    cache/filling/             blobs on their way, at their full length, so that they count
    cache/locks/               one per blob on its way: who comes second waits and fetches nothing
    cache/leases/              what each living process has open; never evicted

The bound covers files and filling. What is used least recently goes first. Where `s3://` leads is said by the
environment, as boto3 reads it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Blob, Manifest
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store
from plinth.storage.uris import filesystem

T = TypeVar("T")

CHUNK_BYTES = 8 * 2**20
ATTEMPTS = 5
BACKOFF_S = 0.2
#: Drivers wait and try again on their own; one voice is enough, and it must end.
_S3: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 0}},
    "default_fill_cache": False,
}


@dataclass
class Traffic:
    """What reading cost so far, in this process.

    Attributes:
        bytes, requests: that came, and how often was asked.
        retries: requests that were asked again.
        hits: blobs that were there already.
        evicted: blobs that made room.
        wait_s: how long readers waited, all threads together.
    """

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    hits: int = 0
    evicted: int = 0
    wait_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **more: float) -> None:
        """Count."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)


class Remote:
    """Blobs behind a URI.

    Args:
        uri: of a store's remote (`files/md5/…` below it, as DVC writes it), or of a folder of exported files.
        names: path below the folder of each blob by MD5, where files have their parts' names.
        attempts, backoff_s: of one request; the pause doubles each time.
    """

    def __init__(
        self,
        uri: str,
        names: Mapping[str, str] | None = None,
        *,
        attempts: int = ATTEMPTS,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self.root, self.names = uri.rstrip("/"), names
        self.attempts, self.backoff_s, self.traffic = attempts, backoff_s, Traffic()
        self._fs: Any = None

    def uri(self, blob: Blob) -> str:
        """Where a blob lies.

        Raises:
            MissingError: the exported files do not have it.
        """
        if self.names is None:
            return f"{self.root}/files/md5/{blob.md5[:2]}/{blob.md5[2:]}"
        if blob.md5 not in self.names:
            raise MissingError(f"{self.root} has no file for blob {blob.md5}", remedy="export the shards again")
        return f"{self.root}/{self.names[blob.md5]}"

    def read(self, blob: Blob, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a blob.

        Raises:
            MissingError: it is not there.
            StorageError: no whole answer within the attempts.
        """
        uri = self.uri(blob)

        def ask() -> bytes:
            fs, path = self._open(uri)
            data: bytes = fs.cat_file(path, start=start, end=stop)
            if len(data) != stop - start:
                raise OSError(f"{len(data)} bytes came of {stop - start}")
            return data

        data = self._tried(uri, ask)
        self.traffic.add(bytes=len(data))
        return data

    def _open(self, uri: str) -> tuple[Any, str]:
        fs, path = filesystem(uri, **(_S3 if uri.startswith("s3://") else {}))
        if uri.startswith("s3://"):
            fs.retries = 1
        return fs, path

    def _tried(self, uri: str, ask: Callable[[], T]) -> T:
        for attempt in range(self.attempts):
            self.traffic.add(requests=1)
            try:
                return ask()
            except FileNotFoundError as error:
                raise MissingError(f"there is no {uri}", remedy="push or export the shards again") from error
            except PermissionError as error:
                raise StorageError(f"may not read {uri}", found=error, remedy="check the credentials") from error
            except Exception as error:  # drivers raise what they like
                failure = error
            if attempt + 1 < self.attempts:
                self.traffic.add(retries=1)
                time.sleep(self.backoff_s * 2**attempt)
        raise StorageError(
            f"cannot read {uri}",
            found=f"{type(failure).__name__}: {failure}",
            expected=f"an answer within {self.attempts} attempts",
            remedy="check network, credentials and AWS_ENDPOINT_URL; the run goes on from its last checkpoint",
        ) from failure


class CachedStore(Store):
    """A store whose blobs come from a remote when they are first opened.

    Args:
        root: of the cache; processes of one machine share it.
        remote: where the blobs are.
        limit_bytes: bound of the cache.
    """

    def __init__(self, root: Path | str, remote: Remote, limit_bytes: int) -> None:
        super().__init__(root)
        self.remote, self.limit_bytes = remote, limit_bytes
        self._lease = Lease(self.root / "leases")

    @property
    def traffic(self) -> Traffic:
        """What reading cost so far."""
        return self.remote.traffic

    def open_path(self, blob: Blob) -> Path:
        """The path of a blob, fetched and checked if it is not there. It stays until this process ends.

        Raises:
            MissingError, StorageError: it does not come.
            IntegrityError: other bytes came; nothing of them is kept.
        """
        started = time.perf_counter()
        path = self.fill(blob)
        self.traffic.add(wait_s=time.perf_counter() - started)
        return path

    def fill(self, blob: Blob) -> Path:
        """As `open_path`, for whoever fetches ahead and does not count as waiting."""
        if self._take(blob):
            self.traffic.add(hits=1)
            return self.path(blob)
        with _locked(self.root / "locks" / blob.md5):
            if self._take(blob):  # who held the lock has brought it
                self.traffic.add(hits=1)
                return self.path(blob)
            partial = self._reserve(blob)
            try:
                self._fetch(blob, partial)
                with _locked(self.root / "lock"), named_failures(partial):
                    self.path(blob).parent.mkdir(parents=True, exist_ok=True)
                    partial.replace(self.path(blob))
                    self._lease.add(blob.md5)
            finally:
                partial.unlink(missing_ok=True)
        return self.path(blob)

    def held_bytes(self) -> int:
        """Bytes of what is there and of what is on its way."""
        return sum(size for _, _, size in self._files()) + sum(size for _, size in self._partial())

    def _take(self, blob: Blob) -> bool:
        """Lease a blob that is there."""
        with _locked(self.root / "lock"):
            if not self.has(blob):
                return False
            self._lease.add(blob.md5)
            os.utime(self.path(blob))
        return True

    def _reserve(self, blob: Blob) -> Path:
        """A file of the blob's length, once there is room for it."""
        partial = self.root / "filling" / blob.md5
        with _locked(self.root / "lock"), named_failures(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            self._make_room(blob)
            with partial.open("wb") as stream:
                stream.truncate(blob.bytes)
        return partial

    def _make_room(self, blob: Blob) -> None:
        for path, _ in self._partial():
            if not _held(self.root / "locks" / path.name):  # its process is gone
                path.unlink(missing_ok=True)
        files, used = sorted(self._files()), self.held_bytes()
        leased = leases(self.root / "leases")
        for _, path, size in files:
            if used + blob.bytes <= self.limit_bytes:
                return
            if path.parent.name + path.name not in leased:
                path.unlink(missing_ok=True)
                used -= size
                self.traffic.add(evicted=1)
        if used + blob.bytes > self.limit_bytes:
            raise StorageError(
                f"the cache {self.root} is too small",
                found=f"{used:,} bytes in use, {blob.bytes:,} more needed",
                expected=f"at most {self.limit_bytes:,} bytes",
                remedy="raise training.reading.cache_bytes, or read by spans: training.reading.fetch: span",
            )

    def _fetch(self, blob: Blob, partial: Path) -> None:
        digest = hashlib.sha256()
        with named_failures(partial), partial.open("r+b") as stream:
            for start in range(0, blob.bytes, CHUNK_BYTES):
                data = self.remote.read(blob, start, min(start + CHUNK_BYTES, blob.bytes))
                digest.update(data)
                stream.write(data)
        if digest.hexdigest() != blob.sha256:
            raise IntegrityError(
                f"{self.remote.uri(blob)} has other bytes than were written",
                found=f"SHA-256 {digest.hexdigest()}",
                expected=f"SHA-256 {blob.sha256}",
                remedy="push or export the shards again; nothing wrong was kept here",
            )

    def _files(self) -> Iterator[tuple[int, Path, int]]:
        """Time of last use, path and bytes of every whole blob."""
        for path in self.files.glob("??/*"):
            found = path.stat()
            yield found.st_mtime_ns, path, found.st_size

    def _partial(self) -> Iterator[tuple[Path, int]]:
        for path in (self.root / "filling").glob("*"):
            yield path, path.stat().st_size


class Lease:
    """Blobs that this process has open, in a file that is locked as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        with named_failures(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = (folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}").open("w")
            fcntl.flock(self._stream, fcntl.LOCK_EX)
        self._held: set[str] = set()

    def add(self, md5: str) -> None:
        """Hold one more."""
        if md5 not in self._held:
            self._held.add(md5)
            self._stream.write(f"{md5}\n")
            self._stream.flush()


def leases(folder: Path) -> set[str]:
    """What living processes hold; leases of dead ones are removed."""
    held: set[str] = set()
    for path in folder.glob("*"):
        if _held(path):
            held.update(path.read_text().split())
        else:
            path.unlink(missing_ok=True)
    return held


def exported_names(shards: Mapping[str, Manifest]) -> dict[str, str]:
    """Path of every blob below a folder of exported shards: `{asset}/{part}`."""
    return {part.blob.md5: f"{made.asset}/{part.name}" for made in shards.values() for part in made.parts}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process, and by one thread of it."""
    with named_failures(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a")
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _held(path: Path) -> bool:
    """Whether somebody holds the lock of a file."""
    try:
        with path.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
