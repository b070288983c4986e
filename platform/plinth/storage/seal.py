"""Seals: authentication of references and step records by the workspace's own workers.

Usually, more users can write a workspace than may publish results. Workers therefore share a secret, stored with the
root of trust outside the workspace, and add an HMAC-SHA256 to their records. Content is identified by its digest and
needs no seal; only records of work and of publication do.

Without a secret nothing is sealed or checked; nothing can be released either, because there is no root of trust.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from plinth.errors import SealError
from plinth.storage.atomic import write_bytes

#: File of the secret in the trust folder: 64 hexadecimal digits, mode 600.
SECRET_FILE = "seal"


class Seal:
    """Maker and checker of seals. It never reveals the secret."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seal) and other._secret == self._secret

    def __hash__(self) -> int:
        return hash(self._secret)

    def __bool__(self) -> bool:
        """Return True if there is a secret."""
        return self._secret is not None

    def of(self, what: str, name: str, content: str) -> str | None:
        """Return the seal of one fact, or None if there is no secret.

        Args:
            what: kind of the fact; a seal for one kind is not valid for another kind.
            name: subject of the fact, such as an asset or a key.
            content: digest of the fact.
        """
        if self._secret is None:
            return None
        return hmac.new(self._secret, f"{what}\n{name}\n{content}".encode(), hashlib.sha256).hexdigest()

    def holds(self, seal: str | None, what: str, name: str, content: str) -> bool:
        """Return True if a fact can be trusted: it is sealed under this secret, or there is no secret."""
        wanted = self.of(what, name, content)
        return wanted is None or (seal is not None and hmac.compare_digest(seal, wanted))


def make(folder: Path) -> None:
    """Write a new secret unless there is one."""
    if not (folder / SECRET_FILE).exists():
        write_bytes(folder / SECRET_FILE, secrets.token_hex(32).encode(), mode=0o600)


def load(folder: Path) -> Seal:
    """Return the `Seal` of a trust folder. If the folder has no secret, this `Seal` accepts everything.

    Raises:
        SealError: the file is not a secret, or others can read it.
    """
    path = folder / SECRET_FILE
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode & 0o077
        secret = bytes.fromhex(text)
    except (FileNotFoundError, NotADirectoryError):
        return Seal(None)
    except ValueError as error:
        raise SealError(f"{path} is not a secret", expected="64 hexadecimal digits") from error
    if mode or len(secret) != 32:
        found = "others can read it" if mode else f"{len(secret)} bytes"
        expected = "32 bytes, mode 600"
        raise SealError(f"{path} cannot be used", found=found, expected=expected, remedy=f"chmod 600 {path}")
    return Seal(secret)
