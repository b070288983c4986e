"""One private key, wherever it is kept. What it signs is the same.

    file:PATH          PEM (PKCS#8, ECDSA on P-256), mode 600
    env:NAME           the same PEM in an environment variable
    command:PROGRAM …  a program that reads the bytes to sign on standard input and writes a DER signature in base64:
                       the form of every cloud's command line for its key service
    hsm:ID?label=TOKEN                            a hardware module (PKCS#11)
    awskms:…, gcpkms:…, azurekms:…, hv:…          as securesystemslib names them

The last three kinds are `foreign`'s.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from plinth.errors import SignatureError
from plinth.storage.atomic import write_bytes
from plinth.trust import foreign

#: Canonical JSON of a public key; its PEM has nothing to escape.
_CANONICAL = '{{"keytype":"ecdsa","keyval":{{"public":"{}"}},"scheme":"ecdsa-sha2-nistp256"}}'


@dataclass(frozen=True)
class PublicKey:
    """A public key (ECDSA on P-256), and its identity: SHA-256 of its canonical form, as securesystemslib gives it."""

    key_id: str
    key: Any = field(repr=False)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """True if the signature (DER) over the SHA-256 of the data holds."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            self.key.verify(signature, data, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=256)
def public_key(pem: str, key_id: str | None = None) -> PublicKey:
    """The public key of a PEM.

    Raises:
        SignatureError: not a public key, or not the one with that identity.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        loaded = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SignatureError("this is not a public key", found=error, expected="PEM, ECDSA on P-256") from error
    if not isinstance(loaded, EllipticCurvePublicKey) or not isinstance(loaded.curve, SECP256R1):
        raise SignatureError("a public key is of another kind", found=type(loaded).__name__, expected="ECDSA on P-256")
    written = loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    found = hashlib.sha256(_CANONICAL.format(written).encode()).hexdigest()
    if key_id not in (None, found):
        raise SignatureError("a key is listed under another key's identity", found=found, expected=key_id)
    return PublicKey(found, loaded)


def key_id_of(pem: str) -> str:
    """Identity of a public key."""
    return public_key(pem).key_id


@dataclass(frozen=True)
class Signer:
    """A private key that can sign as one role.

    Args:
        role: as which it signs.
        owner: whom the root names for it.
        source: where it is kept, as in the module's table.
        public: PEM of its public half, which the root lists.
    """

    role: str
    owner: str
    source: str
    public: str = field(repr=False)

    @property
    def key_id(self) -> str:
        return key_id_of(self.public)

    def sign(self, data: bytes) -> bytes:
        """A signature (DER) over the SHA-256 of bytes.

        Raises:
            SignatureError: the private key is absent, readable by others, of another kind, or not this one.
        """
        if self.source.partition(":")[0] not in ("file", "env"):
            return foreign.sign(self.source, self.public, data)
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return bytes(private_key(self.source).sign(data, ECDSA(SHA256())))


def private_key(source: str) -> Any:
    """The private key of a `file:` or `env:` source.

    Raises:
        SignatureError: absent, readable by others, or not an ECDSA key on P-256.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(_pem(source), None)
    except (ValueError, TypeError) as error:
        found = type(error).__name__
        raise SignatureError(f"{source} is not a private key", found=found, expected="PEM, P-256") from error
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise SignatureError(f"{source} is of another kind", found=type(private).__name__, expected="ECDSA on P-256")
    return private


def public_pem(private: Any) -> str:
    """PEM of the public half of a private key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return str(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def make_private_key(path: Path) -> str:
    """Write a new private key with mode 600; returns the PEM of its public half.

    Raises:
        SignatureError: the file is there already.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if path.exists():
        raise SignatureError(f"there is a key at {path}", remedy="name another file; keys are never written over")
    fresh = ec.generate_private_key(ec.SECP256R1())
    write_bytes(path, fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    return public_pem(fresh)


def public_of(source: str) -> str:
    """PEM of the public half of a private key, wherever it is kept.

    Raises:
        SignatureError: it cannot be used, or its source does not tell its public half.
    """
    if source.partition(":")[0] in ("file", "env"):
        return public_pem(private_key(source))
    return foreign.public_of(source)


def match(source: str, role: str, keys: Iterable[tuple[str, str]]) -> Signer:
    """The signer of a source whose public half the root lists for a role.

    Args:
        keys: owner and public PEM of every key of the role.

    Raises:
        SignatureError: the private key cannot be used, or its public half is not among them.
    """
    candidates = list(keys)
    if source.partition(":")[0] in ("file", "env"):
        own = public_pem(private_key(source))
        candidates = [(owner, pem) for owner, pem in candidates if key_id_of(pem) == key_id_of(own)]
    else:
        candidates = [(owner, pem) for owner, pem in candidates if _signs_for(source, pem)]
    if not candidates:
        raise SignatureError(
            f"the key at {source} may not sign as {role}",
            found="a key that the root does not list for this role",
            expected=f"a key enrolled as {role}",
            remedy=f"the holder of the root enrols it: `plinth keys enrol {role} KEY.pub --owner NAME`",
        )
    owner, pem = candidates[0]
    return Signer(role=role, owner=owner, source=source, public=pem)


def _signs_for(source: str, pem: str) -> bool:
    """Whether a key that is kept elsewhere is the private half of this one: it signs a fixed text."""
    text = b"plinth: which key is this?"
    return public_key(pem).verifies(Signer("", "", source, pem).sign(text), text)


def _pem(source: str) -> bytes:
    scheme, _, rest = source.partition(":")
    if scheme == "env":
        if not os.environ.get(rest):
            raise SignatureError(f"no private key in the environment variable {rest}", expected="PEM, P-256")
        return os.environ[rest].encode()
    return foreign.read_private(Path(rest), "private key", "sign where it is kept, and bring the signed statement here")
