"""Plain files of a workspace that are verified: opened without following a link, and read once.

Verify the bytes that `read` returns, and use those bytes: between two reads of a path, someone who can write the
workspace can exchange the file. A pipe gives each reader something else, and keeps one waiting that has no writer.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, Final

from plinth.errors import WorkspaceError

#: For a file that Plinth writes itself; one that is verified comes from a backup.
DELETE: Final = "find out who put it there; delete it, and run the same command again"
RESTORE: Final = "find out who put it there, and restore the file from a backup"


def opened(path: Path, *, one_name: bool = False, remedy: str = RESTORE) -> IO[bytes]:
    """A plain file, open for reading. Folders above it may be links.

    Args:
        one_name: refuse a file with a second name, which may be a secret of this user.

    Raises:
        FileNotFoundError: absent.
        WorkspaceError: a link, a pipe, a device or a folder, or it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
    except FileNotFoundError:
        raise
    except OSError as error:
        found = "a link" if error.errno == errno.ELOOP else str(error.strerror)
        raise refused(f"cannot read {path}", found, remedy) from error
    status = os.fstat(fd)
    plain = stat.S_ISREG(status.st_mode)
    if plain and not (one_name and status.st_nlink != 1):
        return os.fdopen(fd, "rb")
    os.close(fd)
    found = "a file with a second name" if plain else "a pipe, a device or a folder"
    raise refused(f"cannot read {path}", found, remedy)


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
        raise refused(f"cannot read {path}", f"more than {max_bytes:,} bytes", RESTORE)
    return data


def refused(what: str, found: str, remedy: str = DELETE) -> WorkspaceError:
    """The error for something else in the place of a plain file."""
    return WorkspaceError(what, found=found, expected="a plain file", remedy=remedy)
