"""Blobs of a remote store, fetched whole into a cache that the processes of a machine share.

    cache/files/md5/ab/cdef…   whole blobs, each compared with its SHA-256 when it was fetched
    cache/filling/             blobs being fetched, at their full length, so that they count
    cache/locks/               one per blob being fetched: a second process waits and fetches nothing
    cache/leases/              blobs that each living process has open; never evicted

The bound covers files and filling. The least recently used blob is evicted first.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from plinth.errors import IntegrityError, StorageError
from plinth.records import Blob
from plinth.storage import verified
from plinth.storage.atomic import named_failures
from plinth.storage.leases import Lease, leases
from plinth.storage.locks import held, locked
from plinth.storage.remote_blobs import CHUNK_BYTES, RemoteBlobs, RemoteTraffic
from plinth.storage.store import Store


class CachedStore(Store):
    """A store whose blobs are fetched from a remote when they are first opened.

    Args:
        root: of the cache; processes of one machine share it.
        remote: source of the blobs.
        limit_bytes: bound of the cache.
    """

    def __init__(self, root: Path | str, remote: RemoteBlobs, limit_bytes: int) -> None:
        super().__init__(root)
        self.remote, self.limit_bytes = remote, limit_bytes
        self.headroom_bytes = 0  # evicted beyond what is needed: where blobs are many, files are counted seldom
        self.bound_remedy = "raise training.reading.cache_bytes, or read by spans: training.reading.fetch: span"
        self._held: Lease | None = None

    @property
    def _lease(self) -> Lease:
        self._held = self._held or Lease(self.root / "leases")
        return self._held

    def release(self) -> None:
        """What was opened may be evicted from now on."""
        if self._held:
            self._held.end()
            self._held = None

    @property
    def traffic(self) -> RemoteTraffic:
        """Counters of the remote."""
        return self.remote.traffic

    def open_path(self, blob: Blob) -> Path:
        """The path of a blob, fetched and checked if it is not cached. It stays until this process ends, or `release`.

        Raises:
            MissingError, StorageError: it cannot be fetched.
            IntegrityError: the digest differs; nothing is kept.
        """
        started = time.perf_counter()
        path = self.located(blob)
        self.opened += 1
        self.checked += verified.verify_once(path, blob)
        self.traffic.add(wait_s=time.perf_counter() - started)
        return path

    def located(self, blob: Blob) -> Path:
        """As `open_path`; bytes that were in the cache are not compared."""
        return self.fill(blob)

    def fill(self, blob: Blob) -> Path:
        """As `open_path`, without counting the time as waiting: for prefetching."""
        if self._lease_cached(blob):
            self.traffic.add(hits=1)
            return self.path(blob)
        with locked(self.root / "locks" / blob.md5):
            if self._lease_cached(blob):  # fetched by the process that held the lock
                self.traffic.add(hits=1)
                return self.path(blob)
            partial = self._reserve(blob)
            try:
                self._fetch(blob, partial)
                with locked(self.root / "lock"), named_failures(partial):
                    self.path(blob).parent.mkdir(parents=True, exist_ok=True)
                    partial.chmod(0o444)
                    partial.replace(self.path(blob))
                    verified.remember(self.path(blob), blob)
                    self._lease.add(blob.md5)
            finally:
                partial.unlink(missing_ok=True)
        return self.path(blob)

    def keep(self, path: Path, blob: Blob) -> None:
        """Move a file with a blob's content into the cache, where it fits; `path` is gone afterwards."""
        with locked(self.root / "lock"), named_failures(path):
            if self._cached(blob) or not self._make_room(blob):
                path.unlink()
                return
            self.path(blob).parent.mkdir(parents=True, exist_ok=True)
            path.chmod(0o444)
            path.replace(self.path(blob))
            verified.remember(self.path(blob), blob)

    def held_bytes(self) -> int:
        """Bytes of cached blobs and of blobs being fetched."""
        return sum(size for _, _, size in self._files()) + sum(size for _, size in self._partial())

    def _lease_cached(self, blob: Blob) -> bool:
        """Lease a blob if it is cached."""
        with locked(self.root / "lock"):
            if not self._cached(blob):
                return False
            self._lease.add(blob.md5)
            compared = verified.known(self.path(blob), blob)
            os.utime(self.path(blob))  # the time of last use, which makes it another file to the memory
            if compared:
                verified.remember(self.path(blob), blob)
        return True

    def _cached(self, blob: Blob) -> bool:
        return Store.has(self, blob)

    def _reserve(self, blob: Blob) -> Path:
        """A file of the blob's length, once enough is evicted."""
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
        """Evict what a further blob needs, and note that it is coming; whether it fits. The caller holds the lock."""
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
        """Evict until the blob fits, and the headroom if possible; the bytes still in use."""
        for path, _ in self._partial():
            if not held(self.root / "locks" / path.name):  # its process is gone
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
                f"{self.remote.uri(blob)} has other bytes than were written",
                found=f"SHA-256 {digest.hexdigest()}",
                expected=f"SHA-256 {blob.sha256}",
                remedy=self.remote.wrong_remedy,
            )

    def _files(self) -> Iterator[tuple[int, Path, int]]:
        """Time of last use, path and bytes of every whole blob."""
        for path in self.files.glob("??/*"):
            found = path.stat()
            yield found.st_mtime_ns, path, found.st_size

    def _partial(self) -> Iterator[tuple[Path, int]]:
        for path in (self.root / "filling").glob("*"):
            yield path, path.stat().st_size
