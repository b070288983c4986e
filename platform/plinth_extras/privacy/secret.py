"""The key of a private run: it decides which sequences a step takes, and the noise.

    <trust folder>/privacy/<run_id>.key     32 random bytes, its owner's alone; no recipe seed and not in the workspace

Whoever has it can compute the noise again and take it off, so it must be kept from everybody who must not learn about
the text; the run's configuration holds its SHA-256 only. A resume and the audit need it. Once it is destroyed, the run
can be neither audited nor listed by step, and nobody can undo the noise.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from plinth.errors import SignatureError
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace

BYTES = 32


def path_of(workspace: Workspace, run_id: str) -> Path:
    """Where this machine keeps the key of a run."""
    return workspace.trust_folder / "privacy" / f"{run_id}.key"


def make(workspace: Workspace, run_id: str) -> str:
    """The commitment to a run's key, which is drawn where there is none yet."""
    path = path_of(workspace, run_id)
    with atomic.locked(path.with_suffix(".lock")):
        if not path.exists():
            write_bytes(path, secrets.token_bytes(BYTES), mode=0o600)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(workspace: Workspace, run_id: str, committed: str) -> bytes:
    """The key that the run was begun with.

    Raises:
        SignatureError: it is not on this machine, or another one is.
    """
    path = path_of(workspace, run_id)
    found = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(found).hexdigest() != committed:
        raise SignatureError(
            f"the privacy key of run {run_id} is not on this machine",
            found=f"another one in {path}" if found else f"no {path}",
            expected=f"{BYTES} bytes with SHA-256 {committed[:12]}…",
            remedy="copy it, in secret, from the machine that began the run; with another key the guarantee is void",
        )
    return found


def noise_seed(key: bytes, step: int, name: str) -> int:
    """The seed of the noise on a parameter's gradient in a step, of 63 bits."""
    return int.from_bytes(hmac.digest(key, f"noise/{step}/{name}".encode(), hashlib.sha256)[:8]) >> 1
