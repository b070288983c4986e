"""Private keys that this process never sees: behind a command, in a hardware module, in a cloud's key service.

A hardware module (PKCS#11) is the library that the environment variable PYKCS11LIB names; a key in it is
`hsm:ID?label=TOKEN`. Its PIN comes from the variable PLINTH_PIN, the file that PLINTH_PIN_FILE names, or a question at
the terminal: in that order, and from nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import stat
import subprocess
import sys
from functools import lru_cache
from getpass import getpass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from plinth import processes
from plinth.errors import SignatureError

COMMAND_LIMIT_S = 60.0
PIN_VARIABLE, PIN_FILE_VARIABLE = "PLINTH_PIN", "PLINTH_PIN_FILE"
#: Keys and PINs that a module refused. Modules lock after a few wrong ones, so that none is tried twice.
_REFUSED: set[tuple[str, str]] = set()


def sign(source: str, public: str, data: bytes) -> bytes:
    """A signature (DER) over the SHA-256 of bytes, by a key that is no PEM.

    Args:
        source: `command:…`, or a URI that securesystemslib knows.
        public: PEM of the key's public half.

    Raises:
        SignatureError: securesystemslib knows no such service, its library is missing, or the module or the program
            refuses, is absent, or has no such key.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "command":
        return _run(rest, data)
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import Signer, SSlibKey  # type: ignore[attr-defined]

    try:
        key = SSlibKey.from_crypto(load_pem_public_key(public.encode()))
        found = Signer.from_priv_key_uri(source, key, lambda _: _usable_pin(source))
    except Exception as error:  # each service's library has errors of its own
        raise _no_signer(source, error) from error
    return bytes.fromhex(_signed(source, found, data))


def public_of(source: str) -> str:
    """PEM of the public half of a key in a hardware module.

    Raises:
        SignatureError: no such key, or a source that does not tell its public half.
    """
    scheme, _, rest = source.partition(":")
    if scheme != "hsm":
        raise SignatureError(
            f"the public half of {source} cannot be read",
            expected="hsm:ID?label=TOKEN",
            remedy="the service gives it; write the source into keys/ROLE/OWNER.source",
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


def read_private(path: Path, what: str, expected: str) -> bytes:
    """A file that only its owner can read.

    Raises:
        SignatureError: absent, or others can read it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise SignatureError(
                f"others can read the {what} {path}",
                found=f"mode {mode:o}",
                expected="mode 600",
                remedy=f"if nobody has copied it: chmod 600 {path}; otherwise revoke it and enrol a new one",
            )
        return path.read_bytes()
    except OSError as error:
        raise SignatureError(f"no {what} {path}", found=error.strerror, remedy=expected) from error


def pin(asked: str) -> str:
    """The PIN of a hardware module.

    Args:
        asked: the key, as a question at the terminal names it.

    Raises:
        SignatureError: neither variable is set and there is nobody to ask, or others can read the file.
    """
    if given := os.environ.get(PIN_VARIABLE):
        return given
    if file := os.environ.get(PIN_FILE_VARIABLE):
        return read_private(Path(file), "file of a PIN", f"name another by {PIN_FILE_VARIABLE}").decode().strip()
    if not sys.stdin.isatty():
        raise SignatureError(f"no PIN for {asked}", expected=f"{PIN_VARIABLE}, {PIN_FILE_VARIABLE} or a terminal")
    return _answer(asked)


@lru_cache(maxsize=16)
def _answer(asked: str) -> str:
    return getpass(f"PIN for {asked!a}: ")


def _usable_pin(source: str) -> str:
    found = pin(source)
    if (source, found) in _REFUSED:
        raise SignatureError(f"the PIN for {source} was refused before", remedy="mend it and start again")
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


def _no_signer(source: str, error: Exception) -> SignatureError:
    known = "file:, env:, command:, hsm:, awskms:"
    return SignatureError(f"no signer for {source.partition(':')[0]}:", found=error, expected=known)


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
