"""Plain files of a workspace that are verified: opened without following a link, and read once.

Verify the bytes that `read` returns, and use those bytes: between two reads of a path, someone who can write the
workspace can exchange the file. A pipe gives each reader something else, and keeps one waiting that has no writer.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from plinth.errors import WorkspaceError


def opened(path: Path) -> IO[bytes]:
    """A plain file, open for reading. Folders above it may be links.

    Raises:
        FileNotFoundError: absent.
        WorkspaceError: a link, a pipe, a device or a folder, or it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(path, "a link" if error.errno == errno.ELOOP else str(error.strerror)) from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise _refused(path, "a pipe, a device or a folder")


def read(path: Path, max_bytes: int) -> bytes:
    """The content of a plain file, read once.

    Raises:
        FileNotFoundError: absent.
        WorkspaceError: as `opened`; or it is larger than `max_bytes`.
    """
    with opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(min(size, max_bytes) + 1)  # a reader allocates what it is asked for
    if len(data) > max_bytes:
        raise _refused(path, f"more than {max_bytes:,} bytes")
    return data


def _refused(path: Path, found: str) -> WorkspaceError:
    return WorkspaceError(
        f"cannot read {path}",
        found=found,
        expected="a plain file",
        remedy="find out who put it there, and restore the file from a backup",
    )
