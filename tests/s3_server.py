"""A real S3 server over HTTP for tests, and a bad line to it."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from plinth_jobs.object_store import atomic_conditions

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Bucket:
    """A bucket of its own on the server that the environment names."""

    def __init__(self, client: Any, endpoint: str) -> None:
        self.client, self.endpoint, self.name = client, endpoint, f"test-{uuid.uuid4().hex[:12]}"
        client.create_bucket(Bucket=self.name)

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def put_in_parts(self, key: str, data: bytes, part_bytes: int = 5 * 2**20) -> None:
        """Upload as AWS does with large files: its entity tag is not the MD5 of the content."""
        where = {"Bucket": self.name, "Key": key}
        upload = self.client.create_multipart_upload(**where)["UploadId"]
        parts = []
        for number, at in enumerate(range(0, len(data), part_bytes), 1):
            body = data[at : at + part_bytes]
            tag = self.client.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)["ETag"]
            parts.append({"PartNumber": number, "ETag": tag})
        self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})

    def uri(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"


@contextmanager
def serving() -> Iterator[Bucket]:
    """A server with an empty bucket, named by the environment variables that boto3 reads, for as long as the block.

    It leaves nothing behind: buckets and accounts belong to the process, and the next server has none of them.
    """
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    import boto3
    import s3fs
    from moto import settings
    from moto.core.base_backend import BackendDict
    from moto.server import ThreadedMotoServer

    open_requests = settings.INITIAL_NO_AUTH_ACTION_COUNT
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = atomic_conditions(server._server.app)
    host, port = server.get_host_and_port()
    with _environment({**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}):
        s3fs.S3FileSystem.clear_instance_cache()  # a driver keeps the endpoint it was made with
        try:
            yield Bucket(boto3.client("s3"), f"{host}:{port}")
        finally:
            server.stop()
            settings.INITIAL_NO_AUTH_ACTION_COUNT = open_requests  # a test may have asked for accounts
            BackendDict.reset()
            s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def bad_line(endpoint: str, after_bytes: int, failures: int, *, stalls: bool = False) -> Iterator[BadLine]:
    """Yield a line to the server that is cut, or stalls, after `after_bytes` of an answer, the first `failures`
    times."""
    import s3fs

    line = BadLine(endpoint, after_bytes, failures, stalls)
    with _environment({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}"}):
        s3fs.S3FileSystem.clear_instance_cache()
        try:
            yield line
        finally:
            line.close()
            s3fs.S3FileSystem.clear_instance_cache()


class BadLine:
    """Passes connections on to a server; cuts those whose answer is long, or lets them hang until it is closed."""

    def __init__(self, endpoint: str, after_bytes: int, failures: int, stalls: bool) -> None:
        host, _, port = endpoint.partition(":")
        self._server, self._after, self.failures_left, self.cuts = (host, int(port)), after_bytes, failures, 0
        self._stalls, self._closed = stalls, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answer: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 14):
                passed += len(data)
                if answer and passed > self._after and self.failures_left > 0:
                    self.failures_left -= 1
                    self.cuts += 1
                    if self._stalls:
                        self._closed.wait()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
