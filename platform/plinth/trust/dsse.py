"""Signed statements: in-toto statements in DSSE envelopes, as files; roles and their keys.

Roots, provenance, attestations, policies, approvals and release records are stored in this form. The envelope contains
the signed bytes. A reader first verifies a threshold of a role's keys and then parses the statement from these bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import Field, field_validator

from plinth import fingerprint
from plinth.errors import SignatureError, WorkspaceError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.trust.signers import Signer, public_key

ROOT: Final = "root"
TRAINER: Final = "trainer"
EVALUATOR: Final = "evaluator"
APPROVER: Final = "approver"
PROMOTER: Final = "promoter"
POLICY: Final = "policy"
COMPLIANCE: Final = "compliance"
OWNER: Final = "owner"

#: Roles, with the statements that each signs. A key can have several roles; a process needs only the keys of its own
#: roles.
ROLES: Final[Mapping[str, str]] = {
    ROOT: "holders of the other roles",
    TRAINER: "checkpoints, model directories, their provenance, events of the run",
    EVALUATOR: "scores, contamination, memorization, bias, the proof that training can be resumed",
    APPROVER: "a person's decision on a candidate",
    PROMOTER: "releases, their history, verdicts, exports",
    POLICY: "the gates that a release must pass, and waivers",
    COMPLIANCE: "licenses and terms, personal data, taints, takedowns, documents, exports of text",
    OWNER: "launch contracts: what a run may spend, and what it must reach",
}
#: Roles that roots from before Plinth 0.4 lack. Such a root is valid, and the role has no keys until one is enrolled.
LATER: Final = frozenset({OWNER})


class RootKey(Frozen):
    """Public key and its owner: a person (name or e-mail address) or a service."""

    owner: str = Field(min_length=1)
    public: str = Field(description="Public key: PEM, ECDSA on P-256.")
    revoked_from: str | None = Field(
        None, description="Revocation time (UTC, ISO 8601). Statements signed later are invalid."
    )


class SigstoreIdentity(Frozen):
    """Subject of a Sigstore certificate (e-mail address, or URI of a workflow), and the issuer that certifies it."""

    identity: str = Field(min_length=1)
    issuer: str = Field(min_length=1)


class Role(Frozen):
    """Keys that are allowed to sign as a role, and the number of different keys that must sign."""

    keys: tuple[str, ...]
    threshold: int = Field(1, ge=1)

    @field_validator("keys")
    @classmethod
    def _are_different(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Reject a key that is listed twice, as TUF does: the number of listed keys is the number of signers."""
        if len(set(keys)) != len(keys):
            raise ValueError("a role lists one key twice")
        return keys


class Authority(Frozen):
    """Keys whose signatures a verification accepts for one role."""

    role: str
    root: str = Field(description="Name and version of the root that lists these keys.")
    keys: Mapping[str, RootKey]
    threshold: int

    def owned_by(self, owner: str) -> Authority:
        """Return this authority limited to the keys of one owner.

        Raises:
            SignatureError: the owner has no key for this role.
        """
        kept = {key_id: key for key_id, key in self.keys.items() if key.owner == owner}
        if not kept:
            raise SignatureError(
                f"{owner} has no key as {self.role}",
                found=f"keys of {', '.join(sorted({key.owner for key in self.keys.values()})) or 'no one'}",
                expected=f"a key enrolled in {self.root}",
                remedy=f"ask the holder of the root to enroll a key: `plinth keys enrol {self.role} KEY.pub --owner "
                f"{owner}`",
            )
        return self.model_copy(update={"keys": kept, "threshold": 1})


def revoked_at(key: RootKey, at: str | None) -> bool:
    """Return True if a statement signed at `at` is rejected, because the key was already revoked at this time or `at`
    is unknown."""
    return key.revoked_from is not None and (at is None or time_of(at) >= time_of(key.revoked_from))


def time_of(text: str) -> datetime:
    """Parse a time in ISO 8601 with a time zone.

    Raises:
        ValueError: the text is not ISO 8601, or has no time zone.
    """
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone, expected UTC")
    return found


def now() -> str:
    """Return the current time: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# Statements and envelopes.

#: Types of in-toto's Statement v1.
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
#: Extension field of a statement with the trace id of the process that signed it. in-toto allows fields that are named
#: by a URI and that consumers ignore.
TRACE: Final = "urn:plinth:trace:v1"
#: Version, trace id, span id and flags (W3C Trace Context). The version is not ff, and no id consists of zeros.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: Maximum size of a signed file. The largest are exports of tokens: about 300 bytes per file.
MAX_BYTES = 64 << 20
#: Cache of identities with valid signatures, by the SHA-256 of an envelope and the keys used. A command reads the same
#: records and roots many times.
_PROVED: dict[tuple[bytes, tuple[tuple[str, str], ...]], frozenset[str]] = {}
MOST_PROVED = 4096


def statement(predicate_type: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Return an in-toto Statement v1 about subjects, each given by its name and SHA-256."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }


def trace_id() -> str:
    """Return the trace id of `$TRACEPARENT`, or an empty string if there is no valid one."""
    found = _TRACEPARENT.fullmatch(os.environ.get("TRACEPARENT", ""))
    return found[1] if found else ""


def seal(content: Mapping[str, Any], *signers: Signer) -> dict[str, Any]:
    """Return the envelope of a statement with the trace id of this process, signed by every signer, as JSON.

    Raises:
        SignatureError: a private key cannot be used.
    """
    traced = {**content, TRACE: trace} if (trace := trace_id()) else content
    payload = base64.b64encode(fingerprint.canonical(traced)).decode()
    return signed_also({"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": []}, *signers)


def signed_also(envelope: Mapping[str, Any], *signers: Signer) -> dict[str, Any]:
    """Return the envelope with additional signatures over the same bytes.

    Raises:
        SignatureError: this is not an envelope, or a private key cannot be used.
    """
    signed, _ = parts(envelope, "the envelope")
    signatures = {one["keyid"]: one for one in envelope["signatures"]}
    for signer in signers:
        key_id, made = signer.key_id, signer.sign(signed)
        signatures[key_id] = {"keyid": key_id, "sig": base64.b64encode(made).decode()}
    kept = {name: envelope[name] for name in ("payload", "payloadType")}
    return {**kept, "signatures": list(signatures.values())}


def opened(
    envelope: Any, authority: Authority, predicate_type: str, where: str, *, at: str | None = None
) -> dict[str, Any]:
    """Verify that enough keys of a role signed an envelope, and return the statement in the envelope.

    Args:
        where: name of the envelope in error messages.
        at: time of the statement, if another signed record contains it; default: the statement's own `at`. A key that
            was revoked after this time is accepted.

    Raises:
        SignatureError: this is not an envelope, it has wrong or too few signers or a revoked key, its content was
            changed, or its predicate type differs.
    """
    content = unverified(envelope, where)
    stated = at if at is not None else content.get("predicate", {}).get("at")
    known = holding(envelope, authority, where)
    valid = {key_id for key_id in known if not _revoked(authority, key_id, stated, where)}
    if len(valid) < authority.threshold:
        gone = sorted(authority.keys[key_id].owner for key_id in known - valid)
        raise SignatureError(
            f"the signature of {where} is invalid",
            found=f"{len(valid)} valid signatures" + (f"; the key of {', '.join(gone)} was revoked" if gone else ""),
            expected=f"{authority.threshold} by {authority.role} in {authority.root}",
            remedy="the file was changed, or signed with another key: have it signed again",
        )
    if content.get("predicateType") != predicate_type:
        raise SignatureError(
            f"{where} has an unexpected predicate type", found=content.get("predicateType"), expected=predicate_type
        )
    return content


def signed_by(envelope: Any, authority: Authority, where: str = "the envelope") -> tuple[str, ...]:
    """Return the owners of the role's keys that have a valid signature in the envelope, sorted, each owner once.

    Revocation is not checked.
    """
    return tuple(sorted({authority.keys[key_id].owner for key_id in holding(envelope, authority, where)}))


def write(path: Path, content: Mapping[str, Any], *signers: Signer) -> None:
    """Sign a statement and write its envelope atomically.

    Raises:
        SignatureError: a private key cannot be used.
    """
    write_bytes(path, json.dumps(seal(content, *signers), indent=1, sort_keys=True).encode())


def read(path: Path, authority: Authority, predicate_type: str, *, at: str | None = None) -> dict[str, Any]:
    """Read a statement from a file, and verify that enough keys of a role signed it.

    Raises:
        SignatureError: the file is absent, or `opened` rejects the envelope.
    """
    return opened(envelope_of(path), authority, predicate_type, str(path), at=at)


def envelope_of(path: Path) -> dict[str, Any]:
    """Read the envelope in a plain file without verifying the envelope.

    Raises:
        SignatureError: the file cannot be read (see `bytes_of`), or is not JSON.
    """
    return parsed(bytes_of(path), str(path))


def bytes_of(path: Path) -> bytes:
    """Read a file that will be verified. Use only the returned bytes afterward, because the file may change.

    Raises:
        SignatureError: the file is absent, a link, a pipe or a device, or too large.
    """
    try:
        return atomic.read(path, MAX_BYTES)
    except FileNotFoundError as error:
        raise SignatureError(f"no signed statement {path}", remedy="sign the statement before it is used") from error
    except WorkspaceError as error:
        raise SignatureError(
            f"{path} is not a plain file", found=error.found, expected="a plain file", remedy=error.remedy
        ) from error


def parsed(data: bytes, where: str) -> dict[str, Any]:
    """Parse an envelope without verifying it.

    Raises:
        SignatureError: the data is not JSON, or not an object.
    """
    try:
        content = json.loads(data, object_pairs_hook=fingerprint.unique)
    except (ValueError, RecursionError) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=error) from error
    if not isinstance(content, dict):
        raise SignatureError(f"{where} is not a DSSE envelope", found=type(content).__name__)
    return content


def unverified(envelope: Any, where: str) -> dict[str, Any]:
    """Return the unverified statement in an envelope. Use it only to find out who must have signed the envelope.

    Raises:
        SignatureError: this is not an envelope of a statement.
    """
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        kind = envelope["payloadType"]
        content = fingerprint.parsed(payload)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=repr(error)) from error
    if kind != PAYLOAD_TYPE or not isinstance(content, dict) or not isinstance(content.get("predicate", {}), dict):
        raise SignatureError(f"{where} has no statement", found=kind, expected=PAYLOAD_TYPE)
    return content


def subjects(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each subject of a statement, by subject name.

    Raises:
        SignatureError: a subject occurs twice.
    """
    found = {subject["name"]: subject["digest"]["sha256"] for subject in content["subject"]}
    if len(found) != len(content["subject"]):
        raise SignatureError("a statement has a duplicate subject", found=", ".join(sorted(found)))
    return found


def holding(envelope: Any, authority: Authority, where: str) -> set[str]:
    """Return the ids of the role's keys that have a valid signature in the envelope. Revocation is not checked.

    Raises:
        SignatureError: this is not an envelope.
    """
    keys = tuple(sorted((key_id, key.public) for key_id, key in authority.keys.items()))
    try:
        known = hashlib.sha256(json.dumps(envelope, sort_keys=True).encode()).digest(), keys
    except (ValueError, TypeError, RecursionError) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=repr(error)) from error
    if known not in _PROVED:
        if len(_PROVED) >= MOST_PROVED:
            _PROVED.clear()
        _PROVED[known] = _proved(envelope, dict(keys), where)
    return set(_PROVED[known])


def _proved(envelope: Any, keys: Mapping[str, str], where: str) -> frozenset[str]:
    """Return the ids of the public keys that have a valid signature in the envelope."""
    signed, signatures = parts(envelope, where)
    return frozenset(
        key_id
        for key_id, signature in signatures.items()
        if key_id in keys and public_key(keys[key_id], key_id).verifies(signature, signed)
    )


def parts(envelope: Mapping[str, Any], where: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the signed bytes (DSSE's pre-authentication encoding) and the signatures by key id.

    Raises:
        SignatureError: this is not an envelope, or one key has two signatures.
    """
    try:
        kind, payload = envelope["payloadType"].encode(), base64.b64decode(envelope["payload"], validate=True)
        found = [(one["keyid"], base64.b64decode(one["sig"], validate=True)) for one in envelope["signatures"]]
        signatures = dict(found)
        if len(signatures) != len(found):
            raise ValueError("one key has two signatures")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=repr(error)) from error
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload), signatures


def _revoked(authority: Authority, key_id: str, at: Any, where: str) -> bool:
    try:
        return revoked_at(authority.keys[key_id], at)
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{where} has no valid time", found=repr(at), expected="UTC, ISO 8601") from error
