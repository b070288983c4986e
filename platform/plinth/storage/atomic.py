"""Files of this machine: untrusted names and files, read without following a link out of their folder; atomic writes
(temporary name, flush to disk, rename); locks between processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

from plinth import private
from plinth.errors import DiskFullError, IntegrityError, PlinthError, StorageError, WorkspaceError

# Untrusted names and files: paths that stay below their folder, plain files only.

# Paths from untrusted names: file lists, manifests, archives, listings of a bucket.
#
#     relative   a name that stays below any folder or prefix
#     join       the path of such a name below a local folder, without a link out of it

#: Names that need no further check.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
#: A drive of Windows, or a scheme.
_DRIVE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
#: Backslashes separate on other systems; control characters end a name or command a terminal.
_FORBIDDEN = re.compile(r"[\\\x00-\x1f\x7f]")


def relative(
    name: str, listed_in: str, *, reserved: Collection[str] = (), error: type[PlinthError] = IntegrityError
) -> PurePosixPath:
    """Return a name as a relative path that stays below its folder.

    Args:
        listed_in: the list that contains the name, for the message.
        reserved: names that the list must not use.
        error: exception type to raise.

    Raises:
        IntegrityError, or `error`: the name is absolute, empty or reserved, or it has `..`, an empty part, a backslash,
            a drive or a control character.
    """
    fault = None if _PLAIN.fullmatch(name) else _fault(name)
    if name in reserved:
        fault = "the name is reserved by the format"
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
    """Return the path of a name below `base`, which need not exist; arguments as in `relative`.

    Raises:
        IntegrityError, or `error`: the name is refused by `relative`, or a link on the way leads out of `base`.
    """
    path = base / relative(name, listed_in, reserved=reserved, error=error)
    if not path.resolve().is_relative_to(base.resolve()):
        raise _refused(name, listed_in, f"a link leads out of {base}", error)
    return path


def _fault(name: str) -> str | None:
    if _FORBIDDEN.search(name):
        return "the name has a backslash or a control character"
    if name.startswith("/") or _DRIVE.match(name):
        return "the name is absolute"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "the name has `..`, or an empty part"
    return None


def _refused(name: str, listed_in: str, fault: str, error: type[PlinthError]) -> PlinthError:
    return error(
        f"{listed_in} names {name!r}, which is outside of its directory or not allowed",
        found=fault,
        expected="a relative path without `..`, below its folder",
        remedy="do not trust the author of that list; nothing was read or written there",
    )


# Plain files of a workspace that are verified: opened without following a link, and read once.
#
# Verify and use the same bytes, those that `read` returns, because between two reads other writers can replace
# the file. A pipe gives each reader different bytes, and blocks a reader while it has no writer.

#: Remedies: for a file that Plinth writes itself, and for a verified file.
DELETE: Final = "find out who created it, delete it, and run the same command again"
RESTORE: Final = "find out who created it, and restore the file from a backup"


def opened(path: Path, *, one_name: bool = False, remedy: str = RESTORE) -> IO[bytes]:
    """Open a plain file for reading. Folders above it may be links.

    Args:
        one_name: True refuses a file with a second hard link, because the file may be a secret of this user.

    Raises:
        FileNotFoundError: the file does not exist.
        WorkspaceError: the path is a link, a pipe, a device or a folder, or it cannot be opened.
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
    found = "a file with a second hard link" if plain else "a pipe, a device or a folder"
    raise refused(f"cannot read {path}", found, remedy)


def read(path: Path, max_bytes: int) -> bytes:
    """Return the content of a plain file, read once.

    Raises:
        FileNotFoundError: the file does not exist.
        WorkspaceError: the path is not a plain file, cannot be opened, or the file is larger than `max_bytes`.
    """
    with opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(min(size, max_bytes) + 1)  # a reader allocates the requested size
    if len(data) > max_bytes:
        raise refused(f"cannot read {path}", f"more than {max_bytes:,} bytes", RESTORE)
    return data


def refused(what: str, found: str, remedy: str = DELETE) -> WorkspaceError:
    """Return the error for a path that is not a plain file."""
    return WorkspaceError(what, found=found, expected="a plain file", remedy=remedy)


# Atomic files (temporary name, flush to disk, rename), and locks between processes.


@contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Convert operating system errors at `path` into storage errors that name the path."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                f"no space left while writing {path}",
                found=error.strerror,
                expected="space for the whole file; no partial file was kept",
                remedy="free space or choose another --workspace, then run the same command again",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise WorkspaceError(
                f"cannot write {path}",
                found=error.strerror,
                expected="a writable directory",
                remedy="fix the permissions of the folder, or choose another --workspace",
            ) from error
        if error.errno in (errno.ELOOP, errno.ENXIO):
            found = "a link" if error.errno == errno.ELOOP else "a pipe or a device"
            raise refused(f"cannot write {path}", found) from error
        raise StorageError(f"cannot write {path}", found=error) from error


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a binary file that appears at `path` if the block succeeds, and is removed if it fails.

    Args:
        mode: permissions; by default for the current user only (`private.mask`).

    Raises:
        DiskFullError, WorkspaceError, StorageError: the file cannot be written.
    """
    with named_failures(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with named_failures(path):
            with os.fdopen(fd, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o666 & ~private.mask() if mode is None else mode)
            temporary.replace(path)
            sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_plain(path: Path, flags: int) -> int:
    """Open a file to write in place; create it and its folder if needed. Return its descriptor.

    Links are not followed, because a link that someone else put there could lead to a file of this user. Pipes and
    devices are refused.

    Args:
        flags: `os.O_RDWR`, or `os.O_WRONLY | os.O_APPEND`.

    Raises:
        DiskFullError, WorkspaceError, StorageError: the file cannot be opened, or it is not a plain file.
    """
    with named_failures(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise refused(f"cannot write {path}", "a pipe or a device")


def append_to(path: Path) -> IO[bytes]:
    """Open a log for appending; links, pipes and devices are refused, as in `open_plain`."""
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND), "ab")


def require_no_link(*folders: Path) -> None:
    """Refuse to delete in folders that are links, because they lead to other files.

    Raises:
        WorkspaceError: a folder is a link.
    """
    for folder in folders:
        if folder.is_symlink():
            raise WorkspaceError(
                f"nothing is deleted through the link {folder}",
                found=f"a link to {os.path.realpath(folder)}",
                expected="a folder",
                remedy="find out who created it, delete the link, and run the same command again",
            )


def write_bytes(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a whole file atomically."""
    with replacing(path, mode=mode) as stream:
        stream.write(data)


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Locks between processes: flock(2) on an open file. All locks go through this module, except
# `plinth_text.compiled.build`, a lower layer.
#
# A lock belongs to the open file, so a dead process holds none, and a child that inherits the descriptor holds the lock
# as well, until the last holder has ended. Locks are advisory and work on every machine with access to the file.
#
#     locked     a block under the lock; waits
#     take       the descriptor of a lock that outlives the block; waits (`try_take` with a timeout)
#     share      as `take`, in shared mode
#     lock       the lock of an open file
#     held       True if any process holds the lock; an exclusive lock that lives as long as its process is a lease
#     owner      the text written by the holder

POLL_S = 0.1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Run a block while this thread holds the lock of a file; other threads and processes wait."""
    fd = take(path)
    try:
        yield
    finally:
        os.close(fd)


def take(path: Path, *, owner: str = "") -> int:
    """Wait for the lock of a file. Return the descriptor, which holds the lock until all its copies are closed.

    Args:
        owner: text to write into the file; the function `owner` returns it.

    Raises:
        DiskFullError, WorkspaceError, StorageError: the file cannot be opened or written.
    """
    fd = _open(path)
    lock(fd)
    _sign(fd, owner)
    return fd


def try_take(path: Path, *, owner: str = "", wait_s: float = 0.0) -> int | None:
    """Take the lock of a file and return its descriptor, or None if another process still holds the lock after `wait_s`
    seconds."""
    fd, until = _open(path), time.monotonic() + wait_s
    while not lock(fd, wait=False):
        if time.monotonic() >= until:
            os.close(fd)
            return None
        time.sleep(POLL_S)
    _sign(fd, owner)
    return fd


def share(path: Path) -> int:
    """Wait until no process holds the lock exclusively, and share it. Return the descriptor, which holds the lock.

    Raises:
        DiskFullError, WorkspaceError, StorageError: the file cannot be opened.
    """
    fd = _open(path)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def lock(fd: int, *, wait: bool = True) -> bool:
    """Lock an open file; return True if the lock was taken. With `wait`, the result is always True."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def held(path: Path) -> bool:
    """Return True if any process holds the lock of a file. Concurrent calls do not affect each other."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def owner(path: Path) -> str:
    """Return the text written by the last process that took the lock, or an empty string if it wrote none."""
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _open(path: Path) -> int:
    return open_plain(path, os.O_RDWR)


def _sign(fd: int, owner: str) -> None:
    if owner:
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode(), 0)
