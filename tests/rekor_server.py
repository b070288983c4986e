"""A Rekor server of a test's own: API version 1, entries of type hashedrekord, a Merkle tree that grows (RFC 6962).

It is not Rekor, which needs a database of its own. It answers as Rekor's API does: it refuses a signature that does not
verify, refuses an entry that it has and says where, and returns an inclusion proof, a signed checkpoint and a signed
entry timestamp.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from tests.sigstore_instance import b64, fresh, identity_of, signed

Answer = dict[str, Any]


class LocalRekor:
    """The log. `change` edits an answer before it is sent, as a faulty or hostile server would."""

    def __init__(self) -> None:
        self.key, self.bodies, self.requests = fresh(), [b"an earlier entry", b"another one"], list[str]()
        self.change: Callable[[Answer], Answer] = lambda answer: answer

    def write_key(self, path: Path) -> Path:
        path.write_bytes(self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return path

    def add(self, proposed: dict[str, Any]) -> tuple[int, int]:
        """The status, and the index of the entry."""
        spec = proposed["spec"]
        public: Any = load_pem_public_key(base64.b64decode(spec["signature"]["publicKey"]["content"]))
        hashed, signature = bytes.fromhex(spec["data"]["hash"]["value"]), spec["signature"]["content"]
        try:
            public.verify(base64.b64decode(signature), hashed, ECDSA(Prehashed(SHA256())))
        except InvalidSignature:
            return 400, 0
        body = json.dumps(proposed, sort_keys=True, separators=(",", ":")).encode()
        if body in self.bodies:
            return 409, self.bodies.index(body)
        self.bodies.append(body)
        return 201, len(self.bodies) - 1

    def entry(self, index: int) -> Answer:
        body, leaves = self.bodies[index], [hashlib.sha256(b"\0" + each).digest() for each in self.bodies]
        log, root = identity_of(self.key), root_of(leaves)
        note = f"rekor.invalid - 1\n{len(leaves)}\n{b64(root)}\n"
        mark = b64(log[:4] + signed(self.key, note.encode()))
        stated = {"body": b64(body), "integratedTime": int(time.time()), "logID": log.hex(), "logIndex": 1000 + index}
        promise = signed(self.key, json.dumps(stated, sort_keys=True, separators=(",", ":")).encode())
        proof = {
            "logIndex": index, "treeSize": len(leaves), "rootHash": root.hex(),
            "hashes": [each.hex() for each in path_of(index, leaves)],
            "checkpoint": f"{note}\n\u2014 rekor.invalid {mark}\n",
        }  # fmt: skip
        verification = {"inclusionProof": proof, "signedEntryTimestamp": b64(promise)}
        return {f"{index:064x}": {**stated, "verification": verification}}


def root_of(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = _half(len(leaves))
    return hashlib.sha256(b"\1" + root_of(leaves[:half]) + root_of(leaves[half:])).digest()


def path_of(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    half = _half(len(leaves))
    if index < half:
        return [*path_of(index, leaves[:half]), root_of(leaves[half:])]
    return [*path_of(index - half, leaves[half:]), root_of(leaves[:half])]


def _half(count: int) -> int:
    """The largest power of two below a count."""
    return 1 << (count - 1).bit_length() - 1


@contextmanager
def rekor_server() -> Iterator[tuple[LocalRekor, str]]:
    """The log and its address, for as long as the block."""
    log = LocalRekor()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            log.requests.append(data.decode())
            status, index = log.add(json.loads(data))
            if status == 201:
                return self._send(201, log.change(log.entry(index)))
            return self._send(status, {"code": status, "message": "refused"}, f"/api/v1/log/entries/{index:064x}")

        def do_GET(self) -> None:
            self._send(200, log.change(log.entry(int(self.path.rpartition("/")[2], 16))))

        def _send(self, status: int, answer: Any, location: str = "") -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield log, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
