"""The digests that a text names: anything that looks like one, also inside the payload of a signed envelope.

Does not belong here: which texts are read (roots), and what becomes of a digest that nothing in the workspace has.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

#: SHA-256, which manifests are called by, or MD5, which blobs are.
_DIGEST: Final = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")
_PAYLOAD: Final = re.compile(rb'"payload"\s*:\s*"([A-Za-z0-9+/_\\-]{16,}={0,2})"')
_BLOB: Final = re.compile(rb'"md5":"([0-9a-f]{32})","sha256":"([0-9a-f]{64})"')

MD5_LENGTH: Final = 32
CHUNK_BYTES: Final = 16 * 2**20
#: Longer than any digest: what a chunk repeats of the one before it.
_OVERLAP: Final = 128


def digests(data: bytes) -> set[str]:
    """Every digest in a text and in the payloads of envelopes in it."""
    found = {one.decode() for one in _DIGEST.findall(data)}
    for payload in payloads(data):
        found |= digests(payload)
    return found


def payloads(data: bytes) -> Iterator[bytes]:
    """The signed texts of the DSSE envelopes in a text, whoever signed them."""
    for encoded in _PAYLOAD.findall(data):
        plain = encoded.replace(b"\\/", b"/").translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
        try:
            yield base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
        except binascii.Error:
            continue


def subjects(data: bytes) -> set[str]:
    """The digests of what the statements in a text are about; all of them where it holds no statement."""
    found, statements = set[str](), 0
    for payload in payloads(data):
        try:
            about = json.loads(payload)["subject"]
        except (ValueError, KeyError, TypeError):
            continue
        statements += 1
        found |= digests(json.dumps(about).encode())
    return found if statements else digests(data)


def of_file(path: Path, find: Callable[[bytes], set[str]] = digests) -> set[str]:
    """Every digest in a file; one that has vanished, or is no file, names none.

    Args:
        find: `digests` or `subjects`.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return set()
            data = stream.read(CHUNK_BYTES)
            return find(data) | _further(stream, data)
    except FileNotFoundError:
        return set()


def blobs(data: bytes) -> dict[str, str]:
    """The blobs that a manifest or record names: MD5 to SHA-256."""
    return {md5.decode(): sha256.decode() for md5, sha256 in _BLOB.findall(data)}


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer


def _further(stream: IO[bytes], before: bytes) -> set[str]:
    """Of what follows the first chunk, such as a timeline's: no envelope is as long."""
    found = set[str]()
    while data := stream.read(CHUNK_BYTES):
        found |= {one.decode() for one in _DIGEST.findall(before[-_OVERLAP:] + data)}
        before = data
    return found
