"""Small named objects (references, step records, manifests) with concurrent writers.

    Folder     files below a folder of this machine or of a shared file system; writes are conditional under a lock
    S3Objects  objects below an `s3://` prefix; conditional writes of S3

Every write names the tag of the object that it replaces, or None, so concurrent changes are never overwritten. A write
of identical bytes renews the object's time, so that retention does not delete an object that a process is about to use.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from plinth.errors import MissingError, StorageError, WorkspaceError
from plinth.records import Blob
from plinth.storage import atomic
from plinth.storage.atomic import locked, named_failures, require_no_link, write_bytes

T = TypeVar("T")
R = TypeVar("R")

#: Age from which a user of an object renews its time; nothing younger than twice this age is deleted.
RENEW_AFTER_S = 3 * 86400.0


class ObjectVersion(NamedTuple):
    """Object as read. The tag identifies this version; `modified` is the time of the write, and `read` that of the
    answer (Unix time). The store sets both, so their difference does not depend on the clock of this machine."""

    data: bytes
    tag: str
    modified: float
    read: float


class ObjectFacts(NamedTuple):
    """Metadata of an object that was not read: its name, its size in bytes, the time of the last write (Unix time)."""

    name: str
    bytes: int
    modified: float

    @property
    def old(self) -> bool:
        """True if retention might delete the object, so its time must be renewed before use."""
        return is_old(self.modified)


class Objects(Protocol):
    """Objects by name: JSON files, with slashes in their names."""

    @property
    def threads(self) -> int:
        """Number of useful parallel requests."""
        ...

    def where(self, name: str) -> str:
        """Return the path or URI of an object, for messages."""
        ...

    def get(self, name: str) -> ObjectVersion | None:
        """Return an object, or None if it does not exist."""
        ...

    def put(self, name: str, data: bytes, replaces: str | None) -> bool:
        """Replace the object that has the tag `replaces`, or create it if None. Return False if the stored object has
        another tag and other bytes."""
        ...

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that begin with `prefix`, sorted."""
        ...

    def facts(self) -> Iterator[ObjectFacts]:
        """Yield the metadata of every object, unordered, without reading any object."""
        ...

    def remove_old(self, name: str, before: float) -> bool:
        """Remove an object that was last written before a time; return False if it is younger. A missing object is not
        an error."""
        ...


def is_old(modified: float) -> bool:
    """Return True if retention might delete an object with this time, so the time must be renewed before use."""
    return modified < time.time() - RENEW_AFTER_S


@dataclass(frozen=True)
class Folder:
    """Files below a folder. Each write holds a lock of the folder from the comparison to the rename."""

    root: Path
    threads = 1

    def where(self, name: str) -> str:
        return str(self.root / name)

    def get(self, name: str) -> ObjectVersion | None:
        try:
            with atomic.opened(self.root / name) as stream:
                data, modified = stream.read(), os.fstat(stream.fileno()).st_mtime
        except FileNotFoundError:
            return None
        return ObjectVersion(data, hashlib.sha256(data).hexdigest(), modified, time.time())

    def put(self, name: str, data: bytes, replaces: str | None) -> bool:
        with locked(self.root / "lock"):
            found = self.get(name)
            if found and found.data == data:
                try:
                    os.utime(self.root / name)
                except PermissionError:  # another user's file in a shared folder
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
        require_no_link(self.root)  # old files are deleted
        for name, found in files_below(self.root):
            if name.endswith(".json"):
                yield ObjectFacts(name, found.st_size, found.st_mtime)

    def remove_old(self, name: str, before: float) -> bool:
        with locked(self.root / "lock"):
            return unlink_old(self.root / name, before)


def files_below(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files below a folder with their relative paths; links are not followed, and vanished files are left out."""
    for folder, _, files in os.walk(root):
        below = os.path.relpath(folder, root)
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            yield (name if below == "." else f"{below}/{name}"), found


def unlink_old(path: Path, before: float) -> bool:
    """Remove a file that was last written before a time; return False if it is younger. The caller holds a lock."""
    try:
        if path.stat().st_mtime >= before:
            return False
        with named_failures(path):
            path.unlink()
    except FileNotFoundError:
        pass
    return True


def write_once(objects: Objects, name: str, data: bytes, sound: Callable[[bytes], bool]) -> bytes:
    """Write an object that other processes may write too; the first valid version stays. Return the stored bytes.

    Args:
        sound: returns True if existing bytes are valid and may stay; others are replaced.
    """
    replaces = None
    while not objects.put(name, data, replaces):
        found = objects.get(name)
        if found and (found.data == data or sound(found.data)):
            return found.data
        replaces = found.tag if found else None
    return data


def at_once(objects: Objects, ask: Callable[[T], R], about: Iterable[T]) -> Iterator[R]:
    """Yield the results of `ask` in order; for remote objects, several requests run in parallel."""
    if objects.threads == 1:
        yield from map(ask, about)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(objects.threads) as pool:
        yield from pool.map(ask, about)


# Objects and blobs below an `s3://` prefix, through boto3: conditional writes, checked uploads, limited retries.
#
# Endpoint and credentials come from the environment of boto3. Temporary failures are retried here, not by boto3, so
# that interrupted responses are retried too.

CHUNK_BYTES = 8 * 2**20
ATTEMPTS = 6
BACKOFF_S = 0.2
#: Size from which a file is uploaded in parallel parts, each with a checksum.
ONE_REQUEST_BYTES = 64 * 2**20
#: Error codes of S3 for a missing object, a failed condition, and a denied request.
ABSENT, CHANGED, REFUSED = {"404", "NoSuchKey"}, {"412", "PreconditionFailed"}, {"401", "403", "AccessDenied"}
#: Errors of the caller: a retry does not help.
FINAL = {"400", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}


class Absent(Exception):
    """Exception for an object that does not exist."""


class Changed(Exception):
    """Exception for a conditional write whose condition is not met."""


@dataclass(frozen=True)
class S3Objects:
    """Objects below `uri`, which has no trailing slash."""

    uri: str
    threads = 16

    def where(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def get(self, name: str) -> ObjectVersion | None:
        try:
            return self._ask("read", name, lambda s3, at: _found(s3.get_object(**at)))
        except Absent:
            return None

    def put(self, name: str, data: bytes, replaces: str | None) -> bool:
        condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        try:
            self._ask("write", name, lambda s3, at: s3.put_object(**at, **condition, Body=data))
        except (Absent, Changed):
            # A retry of a write with a lost response finds its own object.
            found = self.get(name)
            if found is None or found.data != data:
                return False
            return self.put(name, data, found.tag) if is_old(found.modified) else True
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write an object whatever it has been; only one process at a time writes objects of this name."""
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        self._ask("write", name, lambda s3, at: s3.put_object(**at, Body=data, ContentMD5=checksum))

    def names(self, prefix: str = "") -> Iterator[str]:
        return iter(sorted(one.name for one in self.every(prefix) if one.name.endswith(".json")))

    def facts(self) -> Iterator[ObjectFacts]:
        return (one for one in self.every() if one.name.endswith(".json"))

    def every(self, prefix: str = "") -> list[ObjectFacts]:
        """Return every object whose name begins with `prefix`, whatever its suffix."""
        bucket, top = self._place("")

        def listed(s3: Any, _: Any) -> list[ObjectFacts]:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=top + prefix)
            return [
                ObjectFacts(one["Key"][len(top) :], int(one["Size"]), one["LastModified"].timestamp())
                for page in pages
                for one in page.get("Contents", ())
            ]

        return self._ask("list", prefix, listed)

    def folders(self, prefix: str = "") -> list[str]:
        """Return the names of the folders whose path begins with `prefix`, in the last folder of it, sorted."""
        bucket, top = self._place("")

        def listed(s3: Any, _: Any) -> list[str]:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=top + prefix, Delimiter="/")
            return sorted(one["Prefix"][len(top) : -1] for page in pages for one in page.get("CommonPrefixes", ()))

        return self._ask("list", prefix, listed)

    def look_up(self, name: str) -> ObjectFacts | None:
        """Return the metadata of an object without reading it, or None if it does not exist."""

        def headed(s3: Any, at: dict[str, str]) -> ObjectFacts:
            answer = s3.head_object(**at)
            return ObjectFacts(name, int(answer["ContentLength"]), answer["LastModified"].timestamp())

        try:
            return self._ask("look up", name, headed)
        except Absent:
            return None

    def size(self, name: str) -> int | None:
        """Return the bytes of an object, or None if it does not exist."""
        found = self.look_up(name)
        return found.bytes if found else None

    def remove_old(self, name: str, before: float) -> bool:
        # S3 has no removal conditional on a time: some milliseconds pass between check and removal.
        found = self.look_up(name)
        if found and found.modified >= before:
            return False
        self.remove(name)
        return True

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of an object.

        Raises:
            MissingError: the object does not exist.
            StorageError: no complete answer within the attempts.
        """

        def span(s3: Any, at: dict[str, str]) -> bytes:
            data: bytes = s3.get_object(**at, Range=f"bytes={start}-{stop - 1}")["Body"].read()
            if len(data) != stop - start:
                raise OSError(f"{len(data)} bytes received, expected {stop - start}")
            return data

        try:
            return self._ask("read", name, span) if stop > start else b""
        except Absent as error:
            raise MissingError(
                f"{self.where(name)} does not exist", remedy="run the same command again to recreate it"
            ) from error

    def read_into(self, name: str, size: int, write: Callable[[bytes], object]) -> None:
        """Read an object of a known size in chunks."""
        for start in range(0, size, CHUNK_BYTES):
            write(self.read(name, start, min(start + CHUNK_BYTES, size)))

    def upload(self, name: str, path: Path, blob: Blob) -> None:
        """Write a file; S3 compares its checksum, and the object appears only after the last byte."""
        if blob.bytes <= ONE_REQUEST_BYTES:
            checksum = base64.b64encode(bytes.fromhex(blob.md5)).decode()

            def one(s3: Any, at: dict[str, str]) -> None:
                with path.open("rb") as stream:
                    s3.put_object(**at, Body=stream, ContentMD5=checksum)

            self._ask("write", name, one)
        else:
            extra = {"ChecksumAlgorithm": "SHA256"}
            self._ask("write", name, lambda s3, at: s3.upload_file(str(path), at["Bucket"], at["Key"], ExtraArgs=extra))

    def remove(self, name: str) -> None:
        """Remove an object; a missing object is not an error."""
        self._ask("remove", name, lambda s3, at: s3.delete_object(**at))

    def _place(self, name: str) -> tuple[str, str]:
        bucket, _, top = self.uri.removeprefix("s3://").partition("/")
        return bucket, f"{top}/{name}" if top else name

    def _ask(self, doing: str, name: str, request: Callable[[Any, dict[str, str]], T]) -> T:
        """Repeat a request until it is answered, up to a limit.

        Raises:
            Absent, Changed: the object does not exist, or the condition of a write is not met.
            StorageError: no credentials, no permission, or no answer.
        """
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            IncompleteReadError,
        )
        from urllib3.exceptions import HTTPError

        passing = (ConnectionError, HTTPClientError, HTTPError, IncompleteReadError, S3UploadFailedError, OSError)
        bucket, key = self._place(name)
        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                return request(client(), {"Bucket": bucket, "Key": key})
            except ClientError as error:
                failure = error
                self._final(doing, name, error)
            except passing as error:
                failure = error
            except BotoCoreError as error:  # missing credentials or settings
                raise self._denied(doing, name, error) from error
        raise StorageError(
            f"cannot {doing} {self.where(name)}",
            found=f"{type(failure).__name__}: {failure}",
            expected=f"a response within {ATTEMPTS} attempts",
            remedy="check the network and AWS_ENDPOINT_URL, then run the same command again; finished parts are kept",
        ) from failure

    def _final(self, doing: str, name: str, error: Any) -> None:
        """Raise an error at once if a retry cannot help."""
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code == "NoSuchBucket":
            raise WorkspaceError(
                f"cannot {doing} {self.where(name)}", found="no such bucket", remedy="create the bucket first"
            ) from error
        if code in ABSENT:
            raise Absent(name) from error
        if code in CHANGED:
            raise Changed(name) from error
        if code in REFUSED | FINAL:
            raise self._denied(doing, name, error) from error

    def _denied(self, doing: str, name: str, error: Exception) -> WorkspaceError:
        return WorkspaceError(
            f"cannot {doing} {self.where(name)}",
            found=f"{type(error).__name__}: {error}",
            expected="credentials with permission to list, read and write below the prefix",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, on every machine of the run",
        )


def _found(answer: Any) -> ObjectVersion:
    read = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
    return ObjectVersion(answer["Body"].read(), answer["ETag"], answer["LastModified"].timestamp(), read)


def client() -> Any:
    """Return the S3 client of this process for its current environment; for requests about buckets."""
    named = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONFIG_FILE")
    return _client_of(os.getpid(), *(os.environ.get(name) for name in named))


@lru_cache(maxsize=4)
def _client_of(process: int, *environment: str | None) -> Any:
    """Return the S3 client of a process and its environment. It is cached, because creating it takes 0.1 seconds."""
    from boto3.session import Session
    from botocore.config import Config

    once = {"total_max_attempts": 1}
    return Session().client(
        "s3", config=Config(connect_timeout=10, read_timeout=60, retries=once, max_pool_connections=32)
    )
