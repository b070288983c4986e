"""Folders of this machine that no other user can write to, for files that are loaded without verification.

Private folders are in `PLINTH_PRIVATE`, or in `~/.cache/plinth/private`, and never in the source tree. If there is no
writable home folder, a new folder with mode 0700 is used by this process and its child processes.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from plinth_text.errors import PrivateFolderError

#: Names the folder that has the private folders of this machine.
VARIABLE = "PLINTH_PRIVATE"
#: Folder of this package and its siblings.
SOURCE = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """Return a private folder by name. It is created on first use.

    Raises:
        PrivateFolderError: the folder is a link, has another owner, is accessible to others, is inside the source tree,
            or cannot be created.
    """
    return _checked(root(), name)


def required(path: Path) -> Path:
    """Return the folder at `path`, which the user has configured. It is created if it does not exist.

    Raises:
        PrivateFolderError: the folder is a link, has another owner, is accessible to others, is inside the source tree,
            or cannot be created.
    """
    return _private(path.absolute())


def root() -> Path:
    """Return the folder that contains all private folders, without checking it."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    with suppress(OSError, RuntimeError):  # no home, or one that is read only
        home = Path.home() / ".cache" / "plinth" / "private"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix="plinth-private-")
    return Path(os.environ[VARIABLE])


def _checked(top: Path, name: str) -> Path:
    _private(top)
    return _private(top / name)


@lru_cache(maxsize=64)
def _private(path: Path) -> Path:
    if path.resolve().is_relative_to(SOURCE):
        raise _unsafe(path, "it is inside the source tree")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise _unsafe(path, str(error)) from error
    if not stat.S_ISDIR(found.st_mode):
        raise _unsafe(path, "a link or a file")
    if found.st_uid != os.geteuid():
        raise _unsafe(path, f"it belongs to user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _unsafe(path, f"mode {stat.S_IMODE(found.st_mode):04o}")
    return path


def _unsafe(path: Path, found: str) -> PrivateFolderError:
    return PrivateFolderError(
        f"{path} is not a private folder",
        found=found,
        expected=f"a folder of user {os.geteuid()} with mode 0700, outside the workspace and the source code",
        remedy=f"delete the folder, which is then created again, or set another folder in {VARIABLE}",
    )
