"""Signing keys: one per role and one per approver, made on first use in the workspace's `keys/`.

    trainer             signs model directories, provenance and evidence
    promoter            signs release records; without its signature nothing is a release
    approvers/NAME      signs one person's approvals

A key is ECDSA on P-256, as OpenSSF model signing and DSSE both accept it: `NAME.key` (PKCS#8, mode
600) beside `NAME.pub`. A person who keeps the private key elsewhere installs only the public one.
"""

from __future__ import annotations

import stat
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plinth.errors import SignatureError
from plinth.storage import locks
from plinth.storage.atomic import named_failures, write_bytes
from plinth.storage.workspace import Workspace

TRAINER = "trainer"
PROMOTER = "promoter"


@dataclass(frozen=True)
class KeyPair:
    """Where the two halves of a key lie; either may be absent."""

    private: Path
    public: Path

    def ensure(self) -> KeyPair:
        """Make the pair when neither half exists.

        Raises:
            SignatureError: when only the public half is here, or others can read the private half.
        """
        with named_failures(self.private):
            self.private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locks.locked(self.private.parent / ".lock"):
            if not self.public.exists():
                self._generate()
        return self.checked()

    def checked(self) -> KeyPair:
        """This key, when its private half is here and is private.

        Raises:
            SignatureError: when it is absent or others can read it.
        """
        try:
            mode = stat.S_IMODE(self.private.stat().st_mode)
        except FileNotFoundError as error:
            raise SignatureError(
                f"no private key {self.private}",
                found="only a public key" if self.public.exists() else "no key",
                remedy="sign where the private key is kept, and bring the signed statement here",
            ) from error
        if mode & 0o077:
            raise SignatureError(
                f"others can read the private key {self.private}",
                found=f"mode {mode:o}",
                expected="mode 600",
                remedy=f"if nobody has copied it: chmod 600 {self.private}; otherwise make a new one",
            )
        return self

    def signer(self) -> Any:
        """securesystemslib's `CryptoSigner` with the private half.

        Raises:
            SignatureError: absent, readable by others, or not an ECDSA key.
        """
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]

        self.checked()
        try:
            private = load_pem_private_key(self.private.read_bytes(), None)
        except (ValueError, TypeError) as error:
            raise SignatureError(f"{self.private} is not a private key", found=error, expected="PEM, P-256") from error
        if not isinstance(private, EllipticCurvePrivateKey):
            raise SignatureError(f"{self.private} is of another kind", found=type(private).__name__, expected="ECDSA")
        return CryptoSigner(private)

    def verifier(self) -> Any:
        """securesystemslib's `SSlibKey` with the public half.

        Raises:
            SignatureError: absent or not a key.
        """
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

        try:
            return SSlibKey.from_crypto(load_pem_public_key(self.public.read_bytes()))
        except FileNotFoundError as error:
            raise SignatureError(
                f"no public key {self.public}",
                expected="the key of whoever signed",
                remedy="install the signer's public key there, after you have checked whose it is",
            ) from error
        except ValueError as error:
            raise SignatureError(f"{self.public} is not a public key", found=error, expected="PEM, P-256") from error

    def _generate(self) -> None:
        """Make the halves that are missing; a crash between the two writes is mended by the next call."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            PublicFormat,
            load_pem_private_key,
        )

        if not self.private.exists():
            fresh = ec.generate_private_key(ec.SECP256R1())
            pem = fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_bytes(self.private, pem, mode=0o600)
        self.checked()
        private = load_pem_private_key(self.private.read_bytes(), None)
        write_bytes(self.public, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def trainer(workspace: Workspace) -> KeyPair:
    """The key that signs models."""
    return _key(workspace.keys, TRAINER)


def promoter(workspace: Workspace) -> KeyPair:
    """The key that signs releases."""
    return _key(workspace.keys, PROMOTER)


def approver(workspace: Workspace, person: str) -> KeyPair:
    """The key of one person, by name or e-mail address.

    Raises:
        SignatureError: for an empty name.
    """
    return _key(workspace.keys / "approvers", file_name(person))


def file_name(person: str) -> str:
    """A person's name as a file name; different people never share one.

    Raises:
        SignatureError: for an empty name, one that starts with a dot, or one that is no text.
    """
    try:
        name = urllib.parse.quote(person.strip(), safe="@+ ")
    except UnicodeEncodeError:
        name = ""
    if not name or name.startswith("."):
        raise SignatureError("an approval needs the name of a person", found=repr(person))
    return name


def _key(folder: Path, name: str) -> KeyPair:
    return KeyPair(private=folder / f"{name}.key", public=folder / f"{name}.pub")
