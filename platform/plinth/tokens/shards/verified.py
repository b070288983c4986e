"""Compare the digest of a shard once: per file, not per read, and not again by every rank that opens it.

A stamp beside the store identifies the file that was compared (inode, length, times of change). Later processes find
the stamp; a file that was touched since is read again. `Store.verify` trusts no stamp: it also finds a change on the
disk that leaves the inode alone.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from plinth.errors import IntegrityError
from plinth.records import Blob
from plinth.storage import locks
from plinth.storage.store import CHUNK_BYTES, Store


def verify_once(store: Store, blob: Blob) -> bool:
    """Compare a blob's SHA-256 unless this very file was compared before; returns whether it was read now.

    Raises:
        MissingError, IntegrityError: it is absent, torn or changed.
    """
    path = store.open_path(blob)
    stamp = store.root / "verified" / blob.md5[:2] / blob.md5[2:]
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stream = stamp.open("a+")
    except OSError:  # a read-only store has no stamps
        compare(path, blob)
        return True
    with stream:
        locks.lock(stream.fileno())  # ranks that come at once wait for the first
        stream.seek(0)
        if stream.read() == _identity(path):
            return False
        compare(path, blob)
        stream.truncate(0)
        with suppress(OSError):
            stream.write(_identity(path))
    return True


def compare(path: Path, blob: Blob) -> None:
    """Read a file and compare its SHA-256.

    Raises:
        IntegrityError: it has changed.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != blob.sha256:
        raise IntegrityError(
            f"{path} has changed since it was written",
            found=f"SHA-256 {digest.hexdigest()}",
            expected=f"SHA-256 {blob.sha256}",
            remedy="delete the file and run the same command again, or restore it from a remote",
        )


def _identity(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
