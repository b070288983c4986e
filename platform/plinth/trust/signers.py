"""Signer with one private key. The form of the source determines where the key is stored:

    file:PATH          PEM (PKCS#8, ECDSA on P-256), mode 600
    env:NAME           the same PEM in an environment variable
    command:PROGRAM …  a program that reads the bytes to sign from standard input and writes a DER signature in base64,
                       like the command lines of cloud key services
    hsm:ID?label=TOKEN                            a hardware module (PKCS#11)
    awskms:…, gcpkms:…, azurekms:…, hv:…          in securesystemslib's notation

This process never sees the private key of a `command:`, `hsm:` or cloud source.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from getpass import getpass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from plinth import processes
from plinth.errors import SignatureError
from plinth.storage.atomic import write_bytes

#: Canonical JSON of a public key; its PEM needs no escaping.
_CANONICAL = '{{"keytype":"ecdsa","keyval":{{"public":"{}"}},"scheme":"ecdsa-sha2-nistp256"}}'


@dataclass(frozen=True)
class PublicKey:
    """Public key (ECDSA on P-256) and its id: the SHA-256 of its canonical form, as in securesystemslib."""

    key_id: str
    key: Any = field(repr=False)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Return True if the signature (DER) of the SHA-256 of the data is valid."""
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
    """Return the public key in a PEM.

    Raises:
        SignatureError: the PEM is not a public key, or the key's id is not `key_id`.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        loaded = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SignatureError("this is not a public key", found=error, expected="PEM, ECDSA on P-256") from error
    if not isinstance(loaded, EllipticCurvePublicKey) or not isinstance(loaded.curve, SECP256R1):
        raise SignatureError("unsupported kind of public key", found=type(loaded).__name__, expected="ECDSA on P-256")
    written = loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    found = hashlib.sha256(_CANONICAL.format(written).encode()).hexdigest()
    if key_id not in (None, found):
        raise SignatureError("a key is listed under the id of another key", found=found, expected=key_id)
    return PublicKey(found, loaded)


def key_id_of(pem: str) -> str:
    """Return the id of a public key."""
    return public_key(pem).key_id


@dataclass(frozen=True)
class Signer:
    """Private key that can sign as one role.

    Args:
        role: role to sign as.
        owner: owner of the key in the root.
        source: location of the key, in one of the forms in the module's docstring.
        public: PEM of the public key, which the root lists.
    """

    role: str
    owner: str
    source: str
    public: str = field(repr=False)

    @property
    def key_id(self) -> str:
        return key_id_of(self.public)

    def sign(self, data: bytes) -> bytes:
        """Return a signature (DER) of the SHA-256 of `data`.

        Raises:
            SignatureError: the private key is absent, readable by others, of another type, or does not match `public`.
        """
        if self.source.partition(":")[0] not in ("file", "env"):
            return _sign_elsewhere(self.source, self.public, data)
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return bytes(private_key(self.source).sign(data, ECDSA(SHA256())))


def private_key(source: str) -> Any:
    """Return the private key of a `file:` or `env:` source.

    Raises:
        SignatureError: the key is absent, readable by others, or not an ECDSA key on P-256.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(_pem(source), None)
    except (ValueError, TypeError) as error:
        found = type(error).__name__
        raise SignatureError(f"{source} is not a private key", found=found, expected="PEM, P-256") from error
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise SignatureError(f"{source} has another key type", found=type(private).__name__, expected="ECDSA on P-256")
    return private


def public_pem(private: Any) -> str:
    """Return the PEM of the public key that belongs to a private key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return str(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def make_private_key(path: Path) -> str:
    """Write a new private key with file mode 600, and return the PEM of its public key.

    Raises:
        SignatureError: the file exists.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if path.exists():
        raise SignatureError(f"{path} already exists", remedy="use another file; keys are never overwritten")
    fresh = ec.generate_private_key(ec.SECP256R1())
    write_bytes(path, fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    return public_pem(fresh)


def public_of(source: str) -> str:
    """Return the PEM of the public key that belongs to a private key in any source.

    Raises:
        SignatureError: the key cannot be used, or its source does not provide the public key.
    """
    if source.partition(":")[0] in ("file", "env"):
        return public_pem(private_key(source))
    return _public_elsewhere(source)


def match(source: str, role: str, keys: Iterable[tuple[str, str]]) -> Signer:
    """Return the signer for the private key at a source, if the root lists the public key for the role.

    Args:
        keys: owner and public PEM of every key of the role.

    Raises:
        SignatureError: the private key cannot be used, or its public key is not listed.
    """
    candidates = list(keys)
    if source.partition(":")[0] in ("file", "env"):
        own = public_pem(private_key(source))
        candidates = [(owner, pem) for owner, pem in candidates if key_id_of(pem) == key_id_of(own)]
    else:
        candidates = [(owner, pem) for owner, pem in candidates if _signs_for(source, pem)]
    if not candidates:
        raise SignatureError(
            f"the key at {source} is not allowed to sign as {role}",
            found="a key that the root does not list for this role",
            expected=f"a key enrolled as {role}",
            remedy=f"ask the holder of the root to enroll the key: `plinth keys enrol {role} KEY.pub --owner NAME`",
        )
    owner, pem = candidates[0]
    return Signer(role=role, owner=owner, source=source, public=pem)


def _signs_for(source: str, pem: str) -> bool:
    """Return True if the key at an external source is the private key of `pem`. The function tests it by signing a
    fixed text."""
    text = b"plinth: which key is this?"
    return public_key(pem).verifies(Signer("", "", source, pem).sign(text), text)


def _pem(source: str) -> bytes:
    scheme, _, rest = source.partition(":")
    if scheme == "env":
        if not os.environ.get(rest):
            raise SignatureError(f"no private key in the environment variable {rest}", expected="PEM, P-256")
        return os.environ[rest].encode()
    return _read_private(Path(rest), "private key", "sign where the key is, and copy the statement here")


# Private keys outside of this process: behind a command, in a hardware module, or in a cloud key service.
#
# The library of a hardware module (PKCS#11) is set by the environment variable PYKCS11LIB; a key in it is
# `hsm:ID?label=TOKEN`. Its PIN comes from the variable PLINTH_PIN, the file in PLINTH_PIN_FILE, or a prompt at the
# terminal, in that order.

COMMAND_LIMIT_S = 60.0
PIN_VARIABLE, PIN_FILE_VARIABLE = "PLINTH_PIN", "PLINTH_PIN_FILE"
#: Keys and PINs that a hardware module refused. Modules lock after a few wrong PINs, so no PIN is tried twice.
_REFUSED: set[tuple[str, str]] = set()


def _sign_elsewhere(source: str, public: str, data: bytes) -> bytes:
    """Return a signature (DER) of the SHA-256 of `data`, made with a key outside of this process.

    Args:
        source: `command:…`, or a URI of securesystemslib.
        public: PEM of the public key.

    Raises:
        SignatureError: securesystemslib does not support the service, its library is missing, or the module or program
            fails, is absent, or has no such key.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "command":
        return _run(rest, data)
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import Signer, SSlibKey  # type: ignore[attr-defined]

    try:
        key = SSlibKey.from_crypto(load_pem_public_key(public.encode()))
        found = Signer.from_priv_key_uri(source, key, lambda _: _usable_pin(source))
    except Exception as error:  # each service's library has its own error types
        known = "file:, env:, command:, hsm:, awskms:"
        raise SignatureError(f"no signer for {scheme}:", found=error, expected=known) from error
    return bytes.fromhex(_signed(source, found, data))


def _public_elsewhere(source: str) -> str:
    """Return the PEM of the public key that belongs to a key in a hardware module.

    Raises:
        SignatureError: there is no such key, or the source does not provide its public key.
    """
    scheme, _, rest = source.partition(":")
    if scheme != "hsm":
        raise SignatureError(
            f"the public key of {source} cannot be read",
            expected="hsm:ID?label=TOKEN",
            remedy="get the public key from the service, and write the source into keys/ROLE/OWNER.source",
        )
    from securesystemslib.signer import HSMSigner  # type: ignore[attr-defined]

    number, _, query = rest.partition("?")
    try:
        label = parse_qs(query, strict_parsing=True)["label"][0] if query else None
        _, key = HSMSigner.import_(int(number) if number else None, label, lambda _: _usable_pin(source))
    except SignatureError:
        raise
    except Exception as error:
        raise _refusal(source, error) from error
    return str(key.keyval["public"])


def _read_private(path: Path, what: str, expected: str) -> bytes:
    """Read a file that only its owner can read.

    Raises:
        SignatureError: the file is absent, or others can read it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise SignatureError(
                f"others can read the {what} {path}",
                found=f"mode {mode:o}",
                expected="mode 600",
                remedy=f"if the key was not copied, run `chmod 600 {path}`; otherwise revoke the key and enroll a new "
                "key",
            )
        return path.read_bytes()
    except OSError as error:
        raise SignatureError(f"no {what} {path}", found=error.strerror, remedy=expected) from error


def pin(asked: str) -> str:
    """Return the PIN of a hardware module.

    Args:
        asked: name of the key, shown in the prompt.

    Raises:
        SignatureError: no environment variable with the PIN is set and there is no terminal, or others can read the PIN
            file.
    """
    if given := os.environ.get(PIN_VARIABLE):
        return given
    if file := os.environ.get(PIN_FILE_VARIABLE):
        return _read_private(Path(file), "file of a PIN", f"set another in {PIN_FILE_VARIABLE}").decode().strip()
    if not sys.stdin.isatty():
        raise SignatureError(f"no PIN for {asked}", expected=f"{PIN_VARIABLE}, {PIN_FILE_VARIABLE} or a terminal")
    return _answer(asked)


@lru_cache(maxsize=16)
def _answer(asked: str) -> str:
    return getpass(f"PIN for {asked!a}: ")


def _usable_pin(source: str) -> str:
    found = pin(source)
    if (source, found) in _REFUSED:
        raise SignatureError(f"the PIN for {source} was rejected before", remedy="correct the PIN and start again")
    return found


def _signed(source: str, found: Any, payload: bytes) -> str:
    try:
        return str(found.sign(payload).signature)
    except SignatureError:
        raise
    except Exception as error:  # as above
        raise _refusal(source, error) from error


def _refusal(source: str, error: Exception) -> SignatureError:
    if type(error).__name__ in ("PinIncorrect", "PinLenRange", "PinInvalid"):
        _REFUSED.add((source, pin(source)))
    found = f"{type(error).__name__} {error}".strip()
    return SignatureError(f"the key {source} cannot be used", found=found, expected="a token with this key and its PIN")


def _run(command: str, payload: bytes) -> bytes:
    try:
        words = shlex.split(command)
        done = processes.run(
            words, *processes.ALL, input=payload, capture_output=True, timeout=COMMAND_LIMIT_S, check=True
        )
        return base64.b64decode(done.stdout.strip(), validate=True)
    except subprocess.CalledProcessError as error:
        found: object = f"status {error.returncode}: {error.stderr[-300:].decode(errors='replace')}"
    except (OSError, ValueError, binascii.Error, subprocess.TimeoutExpired) as error:
        found = error
    raise SignatureError(
        f"the signing command failed: {command}", found=found, expected="a DER signature in base64 on standard output"
    )
