"""Compare the digest of a shard once: per file, not per read, and not again by every rank that opens it.

A stamp beside the store identifies the file that was compared (inode, length, times of change). Later processes find
the stamp; a file that was touched since is read again. `Store.verify` trusts no stamp: it also finds a change on the
disk that leaves the inode alone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from plinth.records import Blob
from plinth.storage import locks
from plinth.storage.store import Store, require_unchanged


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
        require_unchanged(path, blob)
        return True
    with stream:
        locks.lock(stream.fileno())  # ranks that come at once wait for the first
        stream.seek(0)
        if stream.read() == _identity(path):
            return False
        require_unchanged(path, blob)
        stream.truncate(0)
        with suppress(OSError):
            stream.write(_identity(path))
    return True


def _identity(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
