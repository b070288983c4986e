"""Small files of every format, and the damage that is done to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.sources.parameters import Source, Terms
from plinth.corpus.sources.record import RawRecord, Reject, read
from plinth.storage.files import SourceFile

MAX_BYTES = 1 << 20
ReadAll = Callable[..., list[RawRecord | Reject]]
MakeRecord = Callable[..., bytes]


def make_source(kind: str, **fields: Any) -> Source:
    terms = Terms(train=True, redistribute=True, commercial=True)
    facts = {"path": ".", "licence": "MIT", "terms": terms, "domain": "example.org", "snapshot": "2026-46", **fields}
    return Source(kind=kind, **facts)


@pytest.fixture
def read_file(tmp_path: Path) -> ReadAll:
    """Write bytes under a name and read them back as records of a kind."""

    def run(
        kind: str, name: str, data: bytes, *, licence: str = "MIT", max_bytes: int = MAX_BYTES, **fields: Any
    ) -> list[RawRecord | Reject]:
        path = tmp_path / name
        path.write_bytes(data)
        file = SourceFile(uri=str(path), name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        return list(read(file, make_source(kind, **fields), licence, max_bytes))

    return run


@pytest.fixture
def warc_record() -> MakeRecord:
    """One WARC response record; arguments make it worse."""

    def build(
        name: str,
        body: bytes = b"<p>hello</p>",
        *,
        length: int | None = None,
        mime: str = "text/html",
        status: int = 200,
        kind: str = "response",
        headers: bytes = b"",
        version: str = "WARC/1.1",
        line: bytes = b"\r\n",
    ) -> bytes:
        http = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\n%s\r\n" % (status, mime.encode(), headers) + body
        head = (
            f"{version}\r\nWARC-Type: {kind}\r\nWARC-Target-URI: https://example.org/{name}\r\n"
            f"WARC-Date: 2026-01-02T03:04:05Z\r\nWARC-Record-ID: <urn:uuid:{name}>\r\n"
            f"Content-Type: application/http; msgtype=response\r\nContent-Length: {length or len(http)}\r\n\r\n"
        )
        return head.encode().replace(b"\r\n", line) + http + 2 * line

    return build
