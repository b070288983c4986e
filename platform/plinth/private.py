"""Folders of this machine that nobody else can write: what is trusted or unpickled without a look lies there.

They lie below `PLINTH_PRIVATE`, or else `~/.cache/plinth/private`; never in a workspace, nor among the source. Without
a home that can be written, a new folder of mode 0700 serves this process and those that it starts.

What Plinth writes elsewhere is its user's alone as well (0600, folders 0700), unless `PLINTH_UMASK` says otherwise:
`007` where the members of a group share a workspace.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from plinth.errors import WorkspaceError

#: Names the folder that has the private folders of this machine.
VARIABLE = "PLINTH_PRIVATE"
SOURCE = Path(__file__).resolve().parent
#: The mask of permissions of what is written, in octal digits.
MASK_VARIABLE = "PLINTH_UMASK"
MASK = "077"


def folder(name: str) -> Path:
    """A private folder by name, made when it is first needed.

    Raises:
        WorkspaceError: it is a link, of another owner, open to others, or among the source; or it cannot be made.
    """
    return _checked(root(), name)


def required(path: Path) -> Path:
    """A folder that somebody has named, made if there is none.

    Raises:
        WorkspaceError: as `folder`.
    """
    return _private(path.absolute())


def for_torch() -> None:
    """Keep what torch compiles, and unpickles or loads when it starts again, in private folders of its processes."""
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        os.environ.setdefault(variable, str(folder(variable.rpartition("_")[0].lower().replace("_", "-"))))


def root() -> Path:
    """The folder that has them all; not made, not checked."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    with suppress(OSError, RuntimeError):  # no home, or one that is read only
        home = Path.home() / ".cache" / "plinth" / "private"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix="plinth-private-")
    return Path(os.environ[VARIABLE])


def mask() -> int:
    """The permissions that files and folders lack.

    Raises:
        WorkspaceError: the environment names no mask.
    """
    given = os.environ.get(MASK_VARIABLE) or MASK
    if len(given) > 4 or set(given) - set("01234567"):
        raise WorkspaceError(f"{MASK_VARIABLE} is no mask", found=given, expected="octal digits, such as 077 or 007")
    return int(given, 8)


def apply_mask() -> None:
    """Give the mask to this process and those that it starts: for the beginning of a program."""
    os.umask(mask())


def _checked(top: Path, name: str) -> Path:
    _private(top)
    return _private(top / name)


@lru_cache(maxsize=64)
def _private(path: Path) -> Path:
    if path.resolve().is_relative_to(SOURCE):
        raise _unsafe(path, "it lies among the source")
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


def _unsafe(path: Path, found: str) -> WorkspaceError:
    return WorkspaceError(
        f"{path} is not a private folder",
        found=found,
        expected=f"a folder of user {os.geteuid()} with mode 0700, outside workspace and source",
        remedy=f"delete it, so that it is made again; or name another by {VARIABLE}",
    )
