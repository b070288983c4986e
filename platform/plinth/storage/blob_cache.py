"""Bounded cache of whole blobs of a remote store, shared by the processes of a machine.

    cache/files/md5/ab/cdef…   whole blobs, each compared with its SHA-256 when it was fetched
    cache/filling/             blobs being fetched, at full length, counted toward the limit
    cache/locks/               one lock per blob being fetched, for which other processes wait
    cache/leases/              open blobs of each live process, in locked files; never evicted

The size limit applies to `files` and `filling` together. The least recently used blob is evicted first.
Endpoint and credentials of `s3://` come from the environment of boto3.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Blob, Manifest
from plinth.storage import atomic, store
from plinth.storage.atomic import held, locked, named_failures, relative, require_no_link
from plinth.storage.store import Store
from plinth.storage.uris import filesystem


class Lease:
    """Blobs that this process has open, in a file that stays locked for the life of the process."""

    def __init__(self, folder: Path) -> None:
        with named_failures(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = (folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}").open("w")
            atomic.lock(self._stream.fileno())
        self._held: set[str] = set()

    def add(self, md5: str) -> None:
        """Lease a blob."""
        if md5 not in self._held:
            self._held.add(md5)
            self._stream.write(f"{md5}\n")
            self._stream.flush()

    def end(self) -> None:
        """Release all leases."""
        self._stream.close()


def leases(folder: Path) -> set[str]:
    """Return the blobs leased by live processes, and remove the leases of dead processes."""
    require_no_link(folder)
    every: set[str] = set()
    for path in folder.glob("*"):
        if atomic.held(path):
            every.update(path.read_text().split())
        else:
            path.unlink(missing_ok=True)
    return every


T = TypeVar("T")

CHUNK_BYTES = 8 * 2**20
ATTEMPTS = 5
BACKOFF_S = 0.2
#: The drivers' own retries are off: `Remote` retries, with a limit.
S3_DRIVER: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 0}},
    "default_fill_cache": False,
}


@dataclass
class RemoteTraffic:
    """Counters of remote reads in this process.

    Attributes:
        bytes, requests: bytes received, and requests sent.
        retries: requests repeated after an error.
        hits: blobs found in the cache.
        evicted: blobs removed from the cache.
        wait_s: seconds that readers waited, summed over threads.
    """

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    hits: int = 0
    evicted: int = 0
    wait_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **more: float) -> None:
        """Increase the named counters."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)


class RemoteBlobs:
    """Blobs of a remote store at a URI.

    Args:
        uri: remote of a store (`files/md5/…` below it, as DVC writes it), or folder of exported files.
        names: path of each blob below the folder, by MD5, if files have the names of their parts.
        attempts, backoff_s: attempts per request, and the first pause, which doubles each time.
    """

    #: Remedies for a missing blob, and for a blob with wrong bytes.
    remedy = "push or export the shards again"
    wrong_remedy = "push or export the shards again; the wrong bytes were not kept"

    def __init__(
        self,
        uri: str,
        names: Mapping[str, str] | None = None,
        *,
        attempts: int = ATTEMPTS,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self.root, self.names = uri.rstrip("/"), names
        self.attempts, self.backoff_s, self.traffic = attempts, backoff_s, RemoteTraffic()
        self._fs: Any = None

    def uri(self, blob: Blob) -> str:
        """Return the location of a blob.

        Raises:
            MissingError: the exported files do not contain the blob.
        """
        if self.names is None:
            return f"{self.root}/files/md5/{blob.md5[:2]}/{blob.md5[2:]}"
        if blob.md5 not in self.names:
            raise MissingError(f"{self.root} has no file for blob {blob.md5}", remedy="export the shards again")
        return f"{self.root}/{relative(self.names[blob.md5], 'the manifest of the shards')}"

    def read(self, blob: Blob, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of a blob.

        Raises:
            MissingError: the blob does not exist.
            StorageError: no complete answer within the attempts.
        """
        uri = self.uri(blob)

        def request() -> bytes:
            fs, path = self._open(uri)
            data: bytes = fs.cat_file(path, start=start, end=stop)
            if len(data) != stop - start:
                raise OSError(f"{len(data)} bytes received, expected {stop - start}")
            return data

        data = self._retry(uri, request)
        self.traffic.add(bytes=len(data))
        return data

    def _open(self, uri: str) -> tuple[Any, str]:
        fs, path = filesystem(uri, **(S3_DRIVER if uri.startswith("s3://") else {}))
        if uri.startswith("s3://"):
            fs.retries = 1
        return fs, path

    def _retry(self, uri: str, request: Callable[[], T]) -> T:
        for attempt in range(self.attempts):
            self.traffic.add(requests=1)
            try:
                return request()
            except FileNotFoundError as error:
                raise MissingError(f"there is no {uri}", remedy=self.remedy) from error
            except PermissionError as error:
                raise StorageError(f"may not read {uri}", found=error, remedy="check the credentials") from error
            except Exception as error:  # drivers raise any type
                failure = error
            if attempt + 1 < self.attempts:
                self.traffic.add(retries=1)
                time.sleep(self.backoff_s * 2**attempt)
        raise StorageError(
            f"cannot read {uri}",
            found=f"{type(failure).__name__}: {failure}",
            expected=f"an answer within {self.attempts} attempts",
            remedy="check network, credentials and AWS_ENDPOINT_URL; the run continues from its last checkpoint",
        ) from failure


def exported_names(shards: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the path of every blob below a folder of exported shards: `{asset}/{part}`."""
    return {part.blob.md5: f"{made.asset}/{part.name}" for made in shards.values() for part in made.parts}


class CachedStore(Store):
    """A store whose blobs are fetched from a remote when they are first opened.

    Args:
        root: folder of the cache; processes of one machine share it.
        remote: source of the blobs.
        limit_bytes: maximum size of the cache.
    """

    def __init__(self, root: Path | str, remote: RemoteBlobs, limit_bytes: int) -> None:
        super().__init__(root)
        self.remote, self.limit_bytes = remote, limit_bytes
        # bytes to evict in addition, so that one file count serves many blobs
        self.headroom_bytes = 0
        self.bound_remedy = (
            "raise `training.reading.cache_bytes`, or set `training.reading.fetch: span`, which fetches only the "
            "needed blocks"
        )
        self._held: Lease | None = None

    @property
    def _lease(self) -> Lease:
        self._held = self._held or Lease(self.root / "leases")
        return self._held

    def release(self) -> None:
        """Allow the eviction of blobs that were opened."""
        if self._held:
            self._held.end()
            self._held = None

    @property
    def traffic(self) -> RemoteTraffic:
        """Counters of remote reads."""
        return self.remote.traffic

    def open_path(self, blob: Blob) -> Path:
        """Return the path of a blob; fetch and check the blob if needed. The blob stays in the cache until the process
        ends, or until `release`.

        Raises:
            MissingError, StorageError: the blob cannot be fetched.
            IntegrityError: the digest differs; nothing is kept.
        """
        started = time.perf_counter()
        path = self.located(blob)
        self.opened += 1
        self.checked += store.verify_once(path, blob)
        self.traffic.add(wait_s=time.perf_counter() - started)
        return path

    def located(self, blob: Blob) -> Path:
        """Return the path of a blob; fetch the blob if needed. The digest of a cached blob is not compared."""
        return self.fill(blob)

    def fill(self, blob: Blob) -> Path:
        """Fetch and check a blob if needed, without counting wait time; for prefetching."""
        if self._lease_cached(blob):
            self.traffic.add(hits=1)
            return self.path(blob)
        with locked(self.root / "locks" / blob.md5):
            if self._lease_cached(blob):  # fetched by the previous lock holder
                self.traffic.add(hits=1)
                return self.path(blob)
            partial = self._reserve(blob)
            try:
                self._fetch(blob, partial)
                with locked(self.root / "lock"), named_failures(partial):
                    self.path(blob).parent.mkdir(parents=True, exist_ok=True)
                    partial.chmod(0o444)
                    partial.replace(self.path(blob))
                    store.remember(self.path(blob), blob)
                    self._lease.add(blob.md5)
            finally:
                partial.unlink(missing_ok=True)
        return self.path(blob)

    def keep(self, path: Path, blob: Blob) -> None:
        """Move a file with a blob's content into the cache if it fits; `path` is gone afterward."""
        with locked(self.root / "lock"), named_failures(path):
            if self._cached(blob) or not self._make_room(blob):
                path.unlink()
                return
            self.path(blob).parent.mkdir(parents=True, exist_ok=True)
            path.chmod(0o444)
            path.replace(self.path(blob))
            store.remember(self.path(blob), blob)

    def held_bytes(self) -> int:
        """Return the bytes of cached blobs and of blobs being fetched."""
        return sum(size for _, _, size in self._files()) + sum(size for _, size in self._partial())

    def _lease_cached(self, blob: Blob) -> bool:
        """Lease a blob; return True if it is cached."""
        with locked(self.root / "lock"):
            if not self._cached(blob):
                return False
            self._lease.add(blob.md5)
            compared = store.known(self.path(blob), blob)
            os.utime(self.path(blob))  # time of last use; changes the file's change mark
            if compared:
                store.remember(self.path(blob), blob)
        return True

    def _cached(self, blob: Blob) -> bool:
        return Store.has(self, blob)

    def _reserve(self, blob: Blob) -> Path:
        """Return a file of the blob's length, after evicting enough other blobs."""
        partial = self.root / "filling" / blob.md5
        with locked(self.root / "lock"), named_failures(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            if not self._make_room(blob):
                raise StorageError(
                    f"the cache {self.root} is too small",
                    found=f"{self.held_bytes():,} bytes in use, {blob.bytes:,} more needed",
                    expected=f"at most {self.limit_bytes:,} bytes",
                    remedy=self.bound_remedy,
                )
            with partial.open("wb") as stream:
                stream.truncate(blob.bytes)
        return partial

    def _make_room(self, blob: Blob) -> bool:
        """Evict enough blobs to make room for another one and reserve its bytes; return True if it fits. The caller
        holds the lock."""
        used = self._noted_bytes()
        if used is None or used + blob.bytes > self.limit_bytes:
            used = self._evict_for(blob)
        fits = used + blob.bytes <= self.limit_bytes
        (self.root / "usage").write_text(str(used + blob.bytes if fits else used))
        return fits

    def _noted_bytes(self) -> int | None:
        try:
            return int((self.root / "usage").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _evict_for(self, blob: Blob) -> int:
        """Evict until the blob and, if possible, the headroom fit; return the bytes still in use."""
        for path, _ in self._partial():
            if not held(self.root / "locks" / path.name):  # its process has ended
                path.unlink(missing_ok=True)
        files, used = sorted(self._files()), self.held_bytes()
        leased = leases(self.root / "leases")
        wanted = self.limit_bytes - (self.headroom_bytes if used + blob.bytes > self.limit_bytes else 0)
        for _, path, size in files:
            if used + blob.bytes <= wanted:
                break
            if path.parent.name + path.name not in leased:
                path.unlink(missing_ok=True)
                used -= size
                self.traffic.add(evicted=1)
        return used

    def _fetch(self, blob: Blob, partial: Path) -> None:
        digest = hashlib.sha256()
        with named_failures(partial), partial.open("r+b") as stream:
            for start in range(0, blob.bytes, CHUNK_BYTES):
                data = self.remote.read(blob, start, min(start + CHUNK_BYTES, blob.bytes))
                digest.update(data)
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if digest.hexdigest() != blob.sha256:
            raise IntegrityError(
                f"{self.remote.uri(blob)} has wrong bytes",
                found=f"SHA-256 {digest.hexdigest()}",
                expected=f"SHA-256 {blob.sha256}",
                remedy=self.remote.wrong_remedy,
            )

    def _files(self) -> Iterator[tuple[int, Path, int]]:
        """Yield time of last use, path and bytes of every whole blob."""
        for path in self.files.glob("??/*"):
            found = path.stat()
            yield found.st_mtime_ns, path, found.st_size

    def _partial(self) -> Iterator[tuple[Path, int]]:
        for path in (self.root / "filling").glob("*"):
            yield path, path.stat().st_size
