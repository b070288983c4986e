"""Entries of an external transparency log: Rekor, API version 1, type hashedrekord.

An entry contains the SHA-256 of the signed bytes, the signature and the public key; the server learns nothing else. The
code of the `sigstore` package verifies an entry offline: the inclusion proof, the checkpoint that the log signed over
its root hash, and the signed entry timestamp. The log's public key is pinned on this machine, outside the workspace:

    $PLINTH_TRUST/transparency/LOG.pem    LOG is the SHA-256 of the public key (DER), which Rekor calls the log id

The content of what is anchored does not belong here (see `log_anchors`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from plinth.errors import SignatureError, TrustError
from plinth.storage.atomic import write_bytes
from plinth.trust.signers import public_key

FOLDER: Final = "transparency"
KIND: Final = "hashedrekord"
#: Seconds without any data after which a request fails, and seconds for a whole answer.
TIMEOUT_S: Final = 60
ANSWER_S: Final = 120
#: Maximum size of an answer. An entry has a few kilobytes.
MAX_BYTES: Final = 1 << 20


class Signed(NamedTuple):
    """Bytes with one signature (DER) and the PEM of the public key that verifies it."""

    data: bytes
    signature: bytes
    public: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the signed bytes."""
        return hashlib.sha256(self.data).hexdigest()


class LoggedAt(NamedTuple):
    """Place of a verified entry: the log's id, the name that the log signs with its root hash, the index in the log,
    and the time when the log accepted the entry (UTC)."""

    log: str
    name: str
    log_index: int
    at: str


def pin(trust_folder: Path, key: Path) -> str:
    """Pin the public key of a transparency log on this machine, and return the log's id.

    Raises:
        SignatureError: the file is not a public key (PEM, ECDSA on P-256).
    """
    pem = key.read_text(errors="replace")
    der = _der(pem)
    log = hashlib.sha256(der).hexdigest()
    place = trust_folder / FOLDER / f"{log}.pem"
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(place, pem.encode(), mode=0o600)
    return log


def pinned(trust_folder: Path) -> tuple[str, ...]:
    """Return the public keys (PEM) of the transparency logs that are pinned on this machine.

    Raises:
        SignatureError: no key is pinned.
    """
    found = tuple(path.read_text() for path in sorted((trust_folder / FOLDER).glob("*.pem")))
    if not found:
        raise SignatureError(
            "no public key of a transparency log is pinned on this machine",
            found=f"nothing in {trust_folder / FOLDER}",
            expected="the key of the Rekor server, received from its operator",
            remedy="pin the key with `plinth release anchor --log-key FILE`",
        )
    return found


def submit(url: str, signed: Signed) -> dict[str, Any]:
    """Submit a signature to the Rekor server at `url`, and return the entry, unverified, as JSON. If the log already
    has the entry, return the existing entry.

    Raises:
        TrustError: the address contains a password, or the server does not answer, answers too slowly or too much, or
            refuses the entry.
    """
    import requests
    from sigstore.models import TransparencyLogEntry

    if "@" in urlsplit(url).netloc:
        raise TrustError(
            "the address of the transparency log contains a user or password",
            expected="an address without them; logs and errors show it",
            remedy="put them into ~/.netrc",
        )
    place = f"{url.rstrip('/')}/api/v1/log/entries"
    how: dict[str, Any] = {"timeout": TIMEOUT_S, "allow_redirects": False, "stream": True}
    try:
        with requests.post(place, json=_proposed(signed), **how) as answer:
            status, data = answer.status_code, _content(answer)
            existing = answer.headers.get("Location", "").rpartition("/")[2]  # always on this server
        if status == requests.codes.conflict:
            with requests.get(f"{place}/{existing}", **how) as answer:
                status, data = answer.status_code, _content(answer)
        if status not in (requests.codes.ok, requests.codes.created):
            raise requests.HTTPError(f"status {status}: {data[:200].decode(errors='replace')}")
        found: dict[str, Any] = TransparencyLogEntry._from_v1_response(json.loads(data))._inner.to_dict()
    except Exception as error:  # requests, pydantic and sigstore have their own error types
        raise TrustError(
            f"the transparency log at {url} returned no entry",
            found=f"{type(error).__name__}: {error}",
            expected="a Rekor server with API version 1",
            remedy="check the address and try again; nothing was stored",
        ) from error
    return found


def _content(answer: Any) -> bytes:
    """Return the content of an answer.

    Raises:
        ValueError: the content is too large, or takes too long.
    """
    data, until = b"", time.monotonic() + ANSWER_S
    # `read1` returns received bytes; `iter_content` waits until a piece is whole, however slowly it arrives
    while piece := answer.raw.read1(1 << 16, decode_content=True):
        data += piece
        if len(data) > MAX_BYTES or time.monotonic() > until:
            raise ValueError(f"more than {MAX_BYTES:,} bytes, or {ANSWER_S} seconds")
    return data


def verify(entry: Any, keys: tuple[str, ...], signed: Signed, where: str) -> LoggedAt:
    """Verify offline that an entry is in a log with one of the pinned keys, and that it is about these signed bytes.

    Raises:
        SignatureError: the inclusion proof, the checkpoint or the signed entry timestamp is invalid, the log's key is
            not pinned, or the entry is about another signature.
    """
    try:
        found = _verified(entry, keys)
        body = json.loads(found.canonicalized_body)
        hashed, signature = body["spec"]["data"]["hash"], body["spec"]["signature"]
        about = (body["kind"], hashed["algorithm"], hashed["value"])
        name = found.inclusion_proof.checkpoint.envelope.partition("\n")[0]
        content = base64.b64decode(signature["content"], validate=True)
        pem = base64.b64decode(signature["publicKey"]["content"], validate=True).decode()
    except Exception as error:  # sigstore, pydantic and cryptography have their own error types
        raise SignatureError(
            f"the transparency log entry in {where} is invalid",
            found=f"{type(error).__name__}: {error}",
            expected="an inclusion proof, a checkpoint and a timestamp signed with a pinned key",
            remedy="restore the file from a backup, pin the right key with `plinth release anchor --log-key FILE`, or "
            "remove the file and anchor the head again",
        ) from error
    expected = (KIND, "sha256", signed.sha256), signed.signature, signed.public.split()
    if (about, content, pem.split()) != expected:
        raise SignatureError(
            f"the transparency log entry in {where} is about another signature",
            found=" ".join(map(str, about)),
            expected=f"{KIND} sha256 {signed.sha256}, with the signature in that file",
            remedy="remove the file and anchor the head again",
        )
    at = datetime.fromtimestamp(found.integrated_time, UTC).isoformat()
    return LoggedAt(found.log_id.key_id.hex(), name, found.log_index, at)


def _verified(entry: Any, keys: tuple[str, ...]) -> Any:
    """Return sigstore's record of an entry after verifying it. Its timestamp is required, which sigstore leaves
    optional."""
    from sigstore._internal.trust import Keyring, RekorKeyring
    from sigstore.models import TransparencyLogEntry
    from sigstore_models.common.v1 import PublicKey, PublicKeyDetails
    from sigstore_models.rekor.v1 import TransparencyLogEntry as Record

    kind = PublicKeyDetails.PKIX_ECDSA_P256_SHA_256
    held = [PublicKey(raw_bytes=base64.b64encode(_der(pem)), key_details=kind) for pem in keys]
    found, ring = TransparencyLogEntry(Record.from_json(json.dumps(entry))), RekorKeyring(Keyring(held))
    found._verify(ring)
    found._verify_set(ring)
    return found._inner


def _proposed(signed: Signed) -> Mapping[str, Any]:
    import rekor_types as rekor
    from rekor_types import hashedrekord as schema

    proposed = rekor.Hashedrekord(
        spec=schema.HashedrekordV001Schema(
            data=schema.Data(hash=schema.Hash(algorithm=schema.Algorithm.SHA256, value=signed.sha256)),
            signature=schema.Signature(
                content=base64.b64encode(signed.signature).decode(),
                public_key=schema.PublicKey(content=base64.b64encode(signed.public.encode()).decode()),
            ),
        )
    )
    found: Mapping[str, Any] = proposed.model_dump(mode="json", by_alias=True)
    return found


def _der(pem: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    found: bytes = public_key(pem).key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found
