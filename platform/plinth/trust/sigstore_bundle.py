"""Offline verification of a Sigstore bundle: signer identity, issuer, and logged time.

Plinth signs with keys and creates no bundles. A pipeline without a Plinth key can sign the statement of an export with
a Sigstore client. The root of trust lists the accepted identities of a role. The verifier reads the trusted authorities
and logs from a file, `trusted_root.json`, as published by Sigstore.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.trust.dsse import PAYLOAD_TYPE, SigstoreIdentity
from plinth.trust.root import Root


class SigstoreProof(Frozen):
    """Signer and role of a verified bundle. `at` is the time in the log (UTC), or None if only another authority
    confirms the time."""

    role: str
    identity: str
    issuer: str
    at: str | None
    root: str


def verify(bundle: Path, trusted_root: Path, root: Root, role: str) -> tuple[SigstoreProof, bytes]:
    """Verify a bundle, and return its signer and the signed statement (JSON).

    Args:
        bundle: Sigstore bundle with a DSSE envelope, a certificate and a log entry.
        trusted_root: file with the trusted authorities and logs; nothing is downloaded.
        root: root that lists the accepted identities.

    Raises:
        SignatureError: the root lists no identity for that role, or the bundle is invalid in any way.
    """
    known = root.identities.get(role, ())
    if not known:
        raise SignatureError(
            f"{root.title} has no Sigstore identity as {role}",
            expected="an identity and its issuer",
            remedy=f"ask the holder of the root to add an identity: `plinth keys identity {role} IDENTITY --issuer "
            "URL`",
        )
    try:
        signer, payload, entry = _verified(bundle, trusted_root, known)
    except Exception as error:  # four libraries parse its content, each with its own error types
        raise SignatureError(
            f"the Sigstore bundle {bundle} is invalid",
            found=f"{type(error).__name__}: {error}",
            expected=" or ".join(f"{each.identity} of {each.issuer}" for each in known),
            remedy="have the statement signed again by a pipeline with an identity in the root",
        ) from error
    seconds = entry.get("integratedTime") if "inclusionPromise" in entry else None
    at = datetime.fromtimestamp(int(seconds), UTC).isoformat() if seconds else None
    return SigstoreProof(role=role, identity=signer.identity, issuer=signer.issuer, at=at, root=root.title), payload


class _AnyOf:
    """Sigstore policy that accepts a certificate with one of several identities, and records the identity that
    matched."""

    def __init__(self, known: Iterable[SigstoreIdentity]) -> None:
        self.known, self.met = tuple(known), list[SigstoreIdentity]()

    def verify(self, certificate: Any) -> None:
        from sigstore.errors import VerificationError
        from sigstore.verify.policy import Identity

        reasons = []
        for each in self.known:
            try:
                Identity(identity=each.identity, issuer=each.issuer).verify(certificate)
            except VerificationError as error:
                reasons.append(str(error))
            else:
                self.met.append(each)
        if not self.met:
            raise VerificationError("; ".join(reasons))


def _verified(
    bundle: Path, trusted_root: Path, known: Iterable[SigstoreIdentity]
) -> tuple[SigstoreIdentity, bytes, dict[str, Any]]:
    from sigstore.models import Bundle, TrustedRoot
    from sigstore.verify import Verifier

    found, policy = Bundle.from_json(bundle.read_bytes()), _AnyOf(known)
    kind, payload = Verifier(trusted_root=TrustedRoot.from_file(str(trusted_root))).verify_dsse(found, policy)
    if kind != PAYLOAD_TYPE:
        raise ValueError(f"payload of type {kind}, expected {PAYLOAD_TYPE}")
    return policy.met[0], payload, json.loads(found.to_json())["verificationMaterial"]["tlogEntries"][0]
