"""Signed statements: in-toto statements in DSSE envelopes, as files.

SLSA provenance, evidence, approvals and release records use it. The envelope holds the signed bytes; a reader
takes the statement from there, after it has verified the signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.errors import SignatureError
from plinth.storage.atomic import write_bytes
from plinth.trust.keys import KeyPair

#: Of in-toto's Statement v1.
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def statement(predicate_type: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto Statement v1 about subjects given by name and SHA-256."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }


def seal(content: Mapping[str, Any], key: KeyPair) -> dict[str, Any]:
    """The signed envelope of a statement, as JSON.

    Raises:
        SignatureError: when the private key is absent or readable by others.
    """
    from securesystemslib.dsse import Envelope

    envelope = Envelope(fingerprint.canonical(content), PAYLOAD_TYPE, {})
    envelope.sign(key.signer())
    return dict(envelope.to_dict())


def opened(envelope: Any, key: KeyPair, predicate_type: str, where: str) -> dict[str, Any]:
    """The statement in an envelope whose signature was made with `key`.

    Args:
        where: names the envelope in errors.

    Raises:
        SignatureError: not an envelope, another signer, changed content, or another predicate type.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error

    try:
        found = Envelope.from_dict(envelope)
    except (ValueError, KeyError, TypeError, AttributeError, Error) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=repr(error)) from error
    try:
        found.verify([key.verifier()], threshold=1)
    except Error as error:
        raise SignatureError(
            f"the signature of {where} does not hold",
            found=error,
            expected=f"a signature by {key.public.name}",
            remedy="the file was changed, or signed by somebody else: have it signed again",
        ) from error
    content = _statement(found.payload, where) if found.payload_type == PAYLOAD_TYPE else {}
    if content.get("predicateType") != predicate_type:
        raise SignatureError(
            f"{where} has another predicate type", found=content.get("predicateType"), expected=predicate_type
        )
    return content


def write(path: Path, content: Mapping[str, Any], key: KeyPair) -> None:
    """Sign a statement and write its envelope whole or not at all.

    Raises:
        SignatureError: when the private key is absent or readable by others.
    """
    write_bytes(path, json.dumps(seal(content, key), indent=1, sort_keys=True).encode())


def read(path: Path, key: KeyPair, predicate_type: str) -> dict[str, Any]:
    """A statement file whose signature was made with `key`.

    Raises:
        SignatureError: absent, or refused by `opened`.
    """
    try:
        envelope = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise SignatureError(f"no signed statement {path}", remedy="it must be signed before it can be used") from error
    except ValueError as error:
        raise SignatureError(f"{path} is not a DSSE envelope", found=error) from error
    return opened(envelope, key, predicate_type, str(path))


def subjects(content: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 by subject name."""
    return {subject["name"]: subject["digest"]["sha256"] for subject in content["subject"]}


def _statement(payload: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(payload)
    except ValueError as error:
        raise SignatureError(f"{where} holds no statement", found=error) from error
    if not isinstance(content, dict):
        raise SignatureError(f"{where} holds no statement", found=type(content).__name__)
    return content
