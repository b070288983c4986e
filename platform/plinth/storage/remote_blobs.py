"""Read spans of blobs from a remote store, and retry failed requests.

Endpoint and credentials of `s3://` come from the environment, as boto3 reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plinth.errors import MissingError, StorageError
from plinth.records import Blob, Manifest
from plinth.storage.safe_path import relative
from plinth.storage.uris import filesystem

T = TypeVar("T")

CHUNK_BYTES = 8 * 2**20
ATTEMPTS = 5
BACKOFF_S = 0.2
#: The drivers' own retries are off: `Remote` retries, a bounded number of times.
S3_DRIVER: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 0}},
    "default_fill_cache": False,
}


@dataclass
class RemoteTraffic:
    """Counters of remote reads in this process.

    Attributes:
        bytes, requests: received, and requests made.
        retries: requests repeated after an error.
        hits: blobs found in the cache.
        evicted: blobs removed from the cache.
        wait_s: how long readers waited, summed over threads.
    """

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    hits: int = 0
    evicted: int = 0
    wait_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **more: float) -> None:
        """Add to counters, by name."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)


class RemoteBlobs:
    """Blobs behind a URI.

    Args:
        uri: of a store's remote (`files/md5/…` below it, as DVC writes it), or of a folder of exported files.
        names: path below the folder of each blob by MD5, where files have their parts' names.
        attempts, backoff_s: of one request; the pause doubles each time.
    """

    #: What to do about a blob that is not there, and about one with other bytes.
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
        """Where a blob is stored.

        Raises:
            MissingError: the exported files do not contain it.
        """
        if self.names is None:
            return f"{self.root}/files/md5/{blob.md5[:2]}/{blob.md5[2:]}"
        if blob.md5 not in self.names:
            raise MissingError(f"{self.root} has no file for blob {blob.md5}", remedy="export the shards again")
        return f"{self.root}/{relative(self.names[blob.md5], 'the manifest of the shards')}"

    def read(self, blob: Blob, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a blob.

        Raises:
            MissingError: it is not there.
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
    """Path of every blob below a folder of exported shards: `{asset}/{part}`."""
    return {part.blob.md5: f"{made.asset}/{part.name}" for made in shards.values() for part in made.parts}
