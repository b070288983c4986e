"""Content store of a shared workspace: blobs in a bucket, behind a bounded cache on the disk of each machine.

A blob is in the store if it is in the bucket. Tasks write to the cache and upload; an opened blob is downloaded once
per machine, with its digest compared. No locks are needed, because content has the same name everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plinth.errors import StorageError, WorkspaceError
from plinth.records import Blob
from plinth.storage.atomic import named_failures
from plinth.storage.blob_cache import CachedStore, RemoteBlobs
from plinth.storage.objects import ObjectFacts, S3Objects, at_once
from plinth.storage.store import Store, hash_stream, require_unchanged
from plinth.storage.workspace import Workspace, folder_of

#: Variable with the limit of a machine's cache of a shared workspace, in bytes.
BOUND_VARIABLE = "PLINTH_CACHE_BYTES"
BOUND_BYTES = 256 * 2**30


def open_store(workspace: Workspace) -> Store:
    """Return the store of a workspace: its folder, or a bucket behind a cache in that folder."""
    return SharedStore(workspace.store, workspace.uri) if workspace.uri else Store(workspace.store)


def store_at(uri: str) -> Store:
    """Return the store of the shared workspace at `uri`, behind this machine's cache of it."""
    return open_store(Workspace(folder_of(uri)))


class S3Blobs(RemoteBlobs):
    """Blobs of a bucket. The S3 client retries requests, so this class does not."""

    wrong_remedy = "delete that object and run the same command again to recreate it; the wrong bytes were not kept"

    def __init__(self, objects: S3Objects) -> None:
        super().__init__(objects.uri)
        self.objects = objects

    def read(self, blob: Blob, start: int, stop: int) -> bytes:
        data = self.objects.read(address(blob), start, stop)
        self.traffic.add(requests=1, bytes=len(data))
        return data


class SharedStore(CachedStore):
    """The store of the workspace at `uri`, behind a cache below `root`."""

    def __init__(self, root: Path, uri: str) -> None:
        self.workspace_uri, self.objects = uri, S3Objects(f"{uri}/store")
        super().__init__(root, S3Blobs(self.objects), bound())
        self.headroom_bytes = self.limit_bytes // 8
        self.bound_remedy = f"raise {BOUND_VARIABLE}, or run fewer workers on this machine"
        self._present: set[str] = set()  # blobs that this process found in the bucket
        self._young: set[str] = set()  # blobs that this process wrote, or found with a recent time

    def __reduce__(self) -> tuple[Any, ...]:
        return store_at, (self.workspace_uri,)

    @contextmanager
    def for_task(self) -> Iterator[Store]:
        own = SharedStore(self.root, self.workspace_uri)
        own._present, own._young = self._present, self._young
        try:
            yield own
        finally:
            own.release()

    def require_folder(self, doing: str) -> None:
        raise StorageError(
            f"{doing} needs a store of local files",
            found=f"the shared workspace {self.workspace_uri}",
            expected="a workspace in a local folder",
            remedy=f"`plinth export restore DIGEST DIRECTORY` writes a manifest's files; blobs are in "
            f"{self.objects.uri}",
        )

    def has(self, blob: Blob) -> bool:
        """Return True if the blob is in the bucket with its recorded length; a found blob is not checked again."""
        if blob.md5 not in self._present and self.objects.size(address(blob)) == blob.bytes:
            self._present.add(blob.md5)
        return blob.md5 in self._present

    def remove(self, blob: Blob) -> None:
        """Remove a blob from the bucket; caches evict it when they need room."""
        self.objects.remove(address(blob))
        self._present.discard(blob.md5)
        self._young.discard(blob.md5)

    def facts(self) -> Iterator[ObjectFacts]:
        for one in self.objects.every("files/md5/"):
            yield one._replace(name=one.name.removeprefix("files/md5/").replace("/", ""))

    def remove_old(self, md5: str, before: float) -> bool:
        return self.objects.remove_old(address(md5), before)

    def directory(self, md5: str) -> bytes:
        found = self.objects.get(address(md5))
        return found.data if found else b""

    def has_all(self, blobs: Iterable[Blob]) -> bool:
        return all(at_once(self.objects, self.has, blobs))

    def put_file(self, path: Path) -> Blob:
        with named_failures(path), path.open("rb") as stream:
            blob = hash_stream(stream)
            os.fsync(stream.fileno())
        if blob.md5 not in self._young:
            found = self.objects.look_up(address(blob))
            if found is None or found.bytes != blob.bytes or found.old:
                self.objects.upload(address(blob), path, blob)
            self._young.add(blob.md5)
            self._present.add(blob.md5)
        self.keep(path, blob)
        self.written, self.written_bytes = self.written + 1, self.written_bytes + blob.bytes
        return blob

    def keep_scratch(self, path: Path, name: str) -> None:
        with named_failures(path), path.open("rb") as stream:
            self.objects.upload(f"staging/{name}", path, hash_stream(stream))
        super().keep_scratch(path, name)

    def has_scratch(self, name: str, size: int) -> bool:
        return self.objects.size(f"staging/{name}") == size

    def open_scratch(self, name: str, blob: Blob) -> Path:
        if not super().has_scratch(name, blob.bytes):
            with self.staging(".scratch") as path:
                with named_failures(path), path.open("wb") as stream:
                    self.objects.read_into(f"staging/{name}", blob.bytes, stream.write)
                require_unchanged(path, blob)
                super().keep_scratch(path, name)
        return self.scratch(name)

    def remove_scratch(self, name: str) -> None:
        self.objects.remove(f"staging/{name}")
        super().remove_scratch(name)


def address(blob: Blob | str) -> str:
    """Return the name of a blob's object, in DVC's layout. Accepts a blob or an MD5."""
    md5 = blob if isinstance(blob, str) else blob.md5
    return f"files/md5/{md5[:2]}/{md5[2:]}"


def bound() -> int:
    """Return the limit of a cache from the environment.

    Raises:
        WorkspaceError: the variable is not a number of bytes.
    """
    given = os.environ.get(BOUND_VARIABLE, str(BOUND_BYTES))
    if not given.isdigit():
        raise WorkspaceError(f"{BOUND_VARIABLE} is not a number", found=given, expected=f"bytes, such as {BOUND_BYTES}")
    return int(given)
