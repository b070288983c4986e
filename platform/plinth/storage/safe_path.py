"""Names and files that others have written: paths that stay below their folder, files that are no link or pipe."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO, Final

from plinth.errors import IntegrityError, PlinthError, WorkspaceError

# Paths from names that others have written: file lists, manifests, archives, listings of a bucket.
#
#     relative   a name that stays below whatever folder or prefix it is put in
#     join       the path of such a name below a folder of this machine, where no link leads out of it

#: Names that need no closer look.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
#: A drive of Windows, or a scheme.
_DRIVE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
#: Backslashes separate on other systems; control characters end a name or command a terminal.
_FORBIDDEN = re.compile(r"[\\\x00-\x1f\x7f]")


def relative(
    name: str, listed_in: str, *, reserved: Collection[str] = (), error: type[PlinthError] = IntegrityError
) -> PurePosixPath:
    """A name as a relative path that stays below its folder.

    Args:
        listed_in: the list that has the name, for the message.
        reserved: names that the list may not use.
        error: to raise.

    Raises:
        IntegrityError, or `error`: absolute, empty, with `..` or a part that is empty, with a backslash, a drive or a
            control character, or reserved.
    """
    fault = None if _PLAIN.fullmatch(name) else _fault(name)
    if name in reserved:
        fault = "it is the name of a file of the format"
    if fault is not None:
        raise _refused(name, listed_in, fault, error)
    return PurePosixPath(name)


def join(
    base: Path,
    name: str,
    listed_in: str,
    *,
    reserved: Collection[str] = (),
    error: type[PlinthError] = IntegrityError,
) -> Path:
    """The path of a name below `base`, whether or not it exists; arguments as `relative`.

    Raises:
        IntegrityError, or `error`: as `relative`, or a link on the way leads out of `base`.
    """
    path = base / relative(name, listed_in, reserved=reserved, error=error)
    if not path.resolve().is_relative_to(base.resolve()):
        raise _refused(name, listed_in, f"a link leads out of {base}", error)
    return path


def _fault(name: str) -> str | None:
    if _FORBIDDEN.search(name):
        return "it has a backslash or a control character"
    if name.startswith("/") or _DRIVE.match(name):
        return "it is absolute"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "it has `..`, or a part without a name"
    return None


def _refused(name: str, listed_in: str, fault: str, error: type[PlinthError]) -> PlinthError:
    return error(
        f"{listed_in} names {name!r}, which leaves its directory or may not be used",
        found=fault,
        expected="a relative path without `..`, below the folder it belongs to",
        remedy="whoever wrote that list is not to be trusted: nothing was read or written there",
    )


# Plain files of a workspace that are verified: opened without following a link, and read once.
#
# Verify the bytes that `read` returns, and use those bytes: between two reads of a path, someone who can write the
# workspace can exchange the file. A pipe gives each reader something else, and keeps one waiting that has no writer.

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
