"""Committed checkpoints in a bucket: the same files as on disk, verified by digest on upload and download.

    s3://bucket/prefix/RUN/step-00000100/…            files and manifest
    s3://bucket/prefix/RUN/step-00000100.events.jsonl the timeline up to that step
    s3://bucket/prefix/RUN/step-00000100.events.json  the signed digest of the timeline
    s3://bucket/prefix/RUN/step-00000100.json         the signed commit record, uploaded last; it completes the commit

Endpoint and credentials come from the environment of boto3.

Does not belong here: the time of an upload, and retries after a failure (upload).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from plinth.errors import CheckpointError, IntegrityError, MissingError, StorageError
from plinth.storage.atomic import sync_directory, write_bytes
from plinth.training.checkpoint import checkpoint, commit_record, digest_tree
from plinth.training.checkpoint.digest_tree import (
    MANIFEST,
    Beat,
    CheckpointRoot,
    File,
    RankFiles,
    RankManifest,
    path_in,
    require_total,
)
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import Pulse, put_before, timeline

#: Bytes of one part of an upload; S3 allows 10,000 parts of at least 5 MiB.
PART_BYTES = 64 * 2**20

#: Concurrent file transfers per node.
STREAMS = 16

#: Seconds without data until a connection times out.
STALL_S = 60

#: Attempts per file when its connection breaks or stalls.
TRIES = 3


class OtherNodes(Protocol):
    """The other nodes of a job. Each can fetch a part of a checkpoint."""

    @property
    def count(self) -> int:
        """Number of nodes, including the calling node."""

    def begin(self, step: int) -> None:
        """Tell each node to fetch its part of the checkpoint."""

    def failed(self) -> list[int]:
        """Wait for the nodes. Return the numbers of the nodes that failed to fetch their part."""


class LocatedCheckpoint(NamedTuple):
    """Verified commit record and root of a checkpoint in a bucket."""

    name: str
    where: str
    record: bytes
    manifest: bytes
    root: CheckpointRoot


class RemoteCheckpoints:
    """The checkpoints of one run in a bucket."""

    def __init__(self, uri: str, run_id: str) -> None:
        import boto3

        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.bucket, self.prefix = bucket, "/".join(part for part in (prefix.strip("/"), run_id) if part)
        patience: Any = {"connect_timeout": 10, "read_timeout": STALL_S, "max_pool_connections": STREAMS}
        retries: Any = {"mode": "standard"}  # number: AWS_MAX_ATTEMPTS, default 3
        self.client: Any = boto3.client("s3", config=boto3.session.Config(**patience, retries=retries))

    def upload(self, run: RunDirectory, step: int) -> int:
        """Upload a committed checkpoint and return its size in bytes. The upload is idempotent.

        Raises:
            MissingError: the checkpoint no longer exists.
            IntegrityError: a file differs from the manifest, either on this disk or in the bucket.
            StorageError: the bucket is unreachable or rejects the request.
        """
        folder, name = checkpoint.path(run, step), checkpoint.name(step)
        try:
            record = checkpoint.record_path(run, step).read_bytes()
            manifest = (folder / MANIFEST).read_bytes()
            events = run.events.read_bytes() if run.events.exists() else b""
        except FileNotFoundError as error:
            raise MissingError(f"checkpoint {name} no longer exists", found=error) from error
        with named_errors(self.bucket), ThreadPoolExecutor(STREAMS) as pool:
            root = digest_tree.read_root(manifest, name)
            ranks = [digest_tree.manifest_in(folder, one, name) for one in root.ranks]
            files = digest_tree.every_file(root, ranks, name)
            list(pool.map(lambda file: self._put_file(path_in(folder, file.path), f"{name}/{file.path}", file), files))
            self._put(f"{name}/{MANIFEST}", manifest)
            self._put(f"{name}.events.jsonl", events)
            self._put(f"{name}.events.json", commit_record.seal_timeline(run, step, events))
            self._put(f"{name}.json", record)
        write_bytes(checkpoint.uploaded_path(run, step), record)
        return commit_record.stated(record, name).bytes

    def withdraw(self, step: int) -> bool:
        """Delete the commit record of a step, so that the checkpoint is ignored. Return True if the step had a record.

        Raises:
            StorageError: the bucket is unreachable or rejects the request.
        """
        if step not in self.steps():
            return False
        with named_errors(self.bucket):
            self.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}/{checkpoint.name(step)}.json")
        return True

    def steps(self) -> list[int]:
        """Return the steps with a commit record in the bucket, oldest first."""
        pattern = re.compile(rf"{re.escape(self.prefix)}/step-(\d{{8}})\.json")
        with named_errors(self.bucket):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{self.prefix}/step-"
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return sorted(int(found[1]) for key in keys if (found := pattern.fullmatch(key)))

    def download(self, run: RunDirectory, step: int, others: OtherNodes | None = None) -> None:
        """Download a checkpoint and commit it on this machine.

        The commit record comes first and its signature is verified. The lists of files follow, then the files. Every
        byte is compared with its digest.

        Args:
            run: directory of the run.
            step: step of the checkpoint.
            others: nodes that each fetch a part into the same directory; this node fetches the files that they fail to
                fetch.

        Raises:
            CheckpointError: no trainer signed the record or the timeline, a file is missing, or a file differs from its
                digest.
            SignatureError: no root of trust is pinned on this machine.
            StorageError: the bucket is unreachable.
        """
        name, target = checkpoint.name(step), checkpoint.path(run, step)
        staged = checkpoint.stage(run, step)
        with named_errors(self.bucket), ThreadPoolExecutor(STREAMS) as pool:
            there = self._located(run, step)
            events, stated = self._get(f"{name}.events.jsonl"), self._get(f"{name}.events.json")
            commit_record.require_timeline(run, step, events, stated, there.where)
            count = 1 if others is None else others.count
            if others is not None:
                others.begin(step)
            self._fetch(pool, there, staged, 0, count, run.events)
            for index in () if others is None else others.failed():
                self._fetch(pool, there, staged, index, count, run.events)
            files = {file.path: file.bytes for file in there.root.files}
            require_total(staged, files, there.root.total_files, there.root.total_bytes)
            write_bytes(staged / MANIFEST, there.manifest)
            if not timeline(run.events).steps:  # it has at most the job's submission and start
                put_before(run.events, events)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
        sync_directory(run.checkpoints)
        write_bytes(checkpoint.uploaded_path(run, step), there.record)
        write_bytes(checkpoint.record_path(run, step), there.record)

    def fetch(self, run: RunDirectory, step: int, index: int, count: int) -> None:
        """Fetch the files of node `index` of `count` into the directory that the first node has staged.

        Raises:
            CheckpointError, SignatureError, StorageError: for the same reasons as in `download`.
        """
        with named_errors(self.bucket), ThreadPoolExecutor(STREAMS) as pool:
            staged = run.staging / checkpoint.name(step)
            self._fetch(pool, self._located(run, step), staged, index, count, run.events)

    def _located(self, run: RunDirectory, step: int, base: str = "") -> LocatedCheckpoint:
        """Return the verified record and root of a checkpoint in the bucket. `base` is its name in the bucket, by
        default the name of the step."""
        name, base = checkpoint.name(step), base or checkpoint.name(step)
        record, where = self._get(f"{base}.json"), f"s3://{self.bucket}/{self.prefix}/{base}.json"
        expected = commit_record.verified(run, step, record, where).manifest_sha256
        manifest = self._get(f"{base}/{MANIFEST}")
        if hashlib.sha256(manifest).hexdigest() != expected:
            raise CheckpointError(
                f"{name} in {self.bucket}: the checkpoint's manifest does not match its commit record"
            )
        return LocatedCheckpoint(base, where, record, manifest, digest_tree.read_root(manifest, name))

    def _fetch(
        self, pool: ThreadPoolExecutor, there: LocatedCheckpoint, staged: Path, index: int, count: int, events: Path
    ) -> None:
        """Fetch the rank files that are assigned to a node. The first node also fetches the files of the run."""
        beat, ranks = Pulse(events), digest_tree.share(there.root, index, count)
        manifests = list(pool.map(lambda one: self._get_manifest(one, staged, there.name), ranks))
        files = [*there.root.files] if index == 0 else []
        files += [file for one in manifests for file in one.files]
        largest_first = sorted(files, key=lambda file: -file.bytes)
        list(pool.map(lambda file: self._get_file(f"{there.name}/{file.path}", staged, file, beat), largest_first))

    def _put_file(self, path: Path, key: str, file: File) -> None:
        """Upload a file in parts. The object exists only if all its bytes match the manifest's digest."""
        where = {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}"}
        if file.bytes <= PART_BYTES:
            data = _read(path, file)
            self._put(key, data)
            return
        upload = self.client.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")["UploadId"]
        try:
            total, parts = file.hasher(), []
            for number, data in enumerate(_chunks(path), 1):
                total.update(data)
                checksum = _base64(data)
                answer = self.client.upload_part(
                    **where, UploadId=upload, PartNumber=number, Body=data, ChecksumSHA256=checksum
                )
                _require_same(answer, checksum, key)
                parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum})
            _require_digest(path, total.hexdigest(), file)
            self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self.client.abort_multipart_upload(**where, UploadId=upload)
            raise
        found = self.client.head_object(**where)["ContentLength"]
        if found != file.bytes:
            raise IntegrityError(f"{key} has a wrong length after the upload", found=found, expected=file.bytes)

    def _put(self, key: str, data: bytes) -> None:
        checksum = _base64(data)
        answer = self.client.put_object(
            Bucket=self.bucket, Key=f"{self.prefix}/{key}", Body=data, ChecksumSHA256=checksum
        )
        _require_same(answer, checksum, key)

    def _get(self, key: str, most: int | None = None) -> bytes:
        """Return an object's bytes. If `most` is set, at most `most` + 1 bytes are read, so that a longer object is
        detected."""
        data: bytes = self._body(key).read(None if most is None else most + 1)
        return data

    def _body(self, key: str) -> Any:
        """Return the content of an object as a stream. A missing object raises an error about this checkpoint only."""
        try:
            return self.client.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}")["Body"]
        except self.client.exceptions.NoSuchKey as error:
            raise CheckpointError(
                f"{key} is not in {self.bucket}", expected="all parts", remedy="an older checkpoint is used"
            ) from error

    def _get_manifest(self, one: RankFiles, folder: Path, name: str) -> RankManifest:
        data = self._get(f"{name}/{one.path}", one.bytes)
        found = digest_tree.read_manifest(data, one, name)
        path = path_in(folder, one.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
        return found

    def _get_file(self, key: str, folder: Path, file: File, beat: Beat) -> None:
        """Fetch a file and compare its digest. If the connection breaks, the whole file is fetched again."""
        for left in reversed(range(TRIES)):
            try:
                found = self._received(key, folder, file, beat)
                break
            except _broken_lines():
                if not left:
                    raise
        if found != (file.bytes, file.digest):
            raise CheckpointError(
                f"{key} in {self.bucket} differs from the checkpoint's manifest",
                found=f"{found[0]} bytes, {found[1]}",
                expected=f"{file.bytes} bytes, {file.digest}",
            )

    def _received(self, key: str, folder: Path, file: File, beat: Beat) -> tuple[int, str]:
        path, digest, size = path_in(folder, file.path), file.hasher(), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for data in self._body(key).iter_chunks(1 << 20):
                digest.update(data)
                size += stream.write(data)
                beat()
                if size > file.bytes:  # or an endless object would fill the disk
                    break
            stream.flush()
            os.fsync(stream.fileno())
        return size, digest.hexdigest()


def _broken_lines() -> tuple[type[Exception], ...]:
    """Return the exception classes of a connection that was cut or timed out."""
    from botocore.exceptions import HTTPClientError, IncompleteReadError
    from urllib3.exceptions import HTTPError

    return HTTPClientError, IncompleteReadError, HTTPError, ConnectionError


class named_errors:
    """Context manager that converts boto3 errors to a StorageError."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        if isinstance(error, (BotoCoreError, ClientError, HTTPError, ConnectionError)):
            raise StorageError(
                f"bucket {self.bucket} is unreachable or refused the request",
                found=error,
                expected="a successful response",
                remedy="check the AWS_* variables and the network; checkpoints stay on disk until they are uploaded",
            ) from error


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while data := stream.read(PART_BYTES):
                yield data
    except FileNotFoundError as error:
        raise MissingError(f"{path} no longer exists", found=error) from error


def _read(path: Path, file: File) -> bytes:
    data, total = b"".join(_chunks(path)), file.hasher()
    total.update(data)
    _require_digest(path, total.hexdigest(), file)
    return data


def _require_digest(path: Path, found: str, file: File) -> None:
    if found != file.digest:
        raise IntegrityError(f"{path} has changed since it was committed", found=found, expected=file.digest)


def _require_same(answer: dict[str, Any], checksum: str, key: str) -> None:
    """Compare a local checksum with the SHA-256 in the server's response.

    If the server returns no checksum, the bytes are checked when the checkpoint is read.
    """
    found = answer.get("ChecksumSHA256", checksum)
    if found != checksum:
        raise IntegrityError(f"{key} was corrupted during the upload", found=found, expected=checksum)


def _base64(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
