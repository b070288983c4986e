"""Files of this machine that are excluded from every source, list and folder of weights, whatever a recipe contains.

    keys          folders of trust, and key files of roles elsewhere
    Plinth's own  private folders and caches
    credentials   credentials of other programs in the home directory
    the system's  `/proc`, `/sys` and mounted secrets: views of other processes

A file is compared by its path, with links resolved, and by device and inode: a hard link to a key is that key. A file
with several links elsewhere is an ordinary file. `PLINTH_SOURCES` lists the only folders that local sources may be in,
in addition to `input/` of the workspace. No link leads out of `input/`: others may write to the workspace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from plinth import private
from plinth.errors import SourceError
from plinth.storage.workspace import CACHE_VARIABLE, TRUST_VARIABLE, cache_folder, trust_home

#: Variable with the folders that local sources may be in, separated as in PATH.
VARIABLE: Final = "PLINTH_SOURCES"
#: Prefix of a variable, followed by a role in capitals: file of that role's private key (`trust.signers`).
KEY_VARIABLE: Final = "PLINTH_KEY_"
#: Credential locations of other programs, below the home directory.
CREDENTIALS: Final = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".ray", ".netrc", ".pgpass", ".git-credentials",
    ".config/gcloud", ".config/gh", ".config/rclone", ".cache/huggingface/token", ".cache/huggingface/stored_tokens",
)  # fmt: skip
SYSTEM: Final = ("/proc", "/sys", "/run/secrets", "/var/run/secrets")
#: Seconds for which a process caches the locations of keys and credentials.
REMEMBERED_S: Final = 5


class LocalPlace(NamedTuple):
    """Location on this machine with links resolved, and the folder below which no part of it may be a link."""

    path: str
    anchor: str


class OffLimits:
    """Files and folders that are off limits at this time.

    Args:
        secrets: folders and files that are also compared by inode.
        others: folders that are compared by path only.
    """

    def __init__(self, secrets: Iterable[Path], others: Iterable[Path]) -> None:
        self._secrets = tuple(secrets)
        self._prefixes = tuple({_below(os.path.realpath(one)) for one in (*self._secrets, *others)})

    def has(self, path: str, links: int = 1) -> bool:
        """Return True if a path without links is off limits, or is a hard link to a file that is.

        Args:
            links: number of the file's hard links.
        """
        if _below(path).startswith(self._prefixes):
            return True
        with suppress(OSError):
            return links > 1 and self.has_inode(os.stat(path))
        return False

    def has_inode(self, status: os.stat_result) -> bool:
        """Return True if a file is one of the secrets under any name."""
        return (status.st_dev, status.st_ino) in self._inodes

    @cached_property
    def _inodes(self) -> frozenset[tuple[int, int]]:
        return frozenset((status.st_dev, status.st_ino) for place in self._secrets for status in _files(place))


def current() -> OffLimits:
    """Return the places that are off limits, from the environment and the file system. The result is cached for a few
    seconds."""
    names = (TRUST_VARIABLE, private.VARIABLE, CACHE_VARIABLE, "XDG_CONFIG_HOME", "HOME")
    keys = sorted(value for name, value in os.environ.items() if name.startswith(KEY_VARIABLE))
    given = tuple(os.environ.get(name, "") for name in names)
    return _known(int(time.monotonic() // REMEMBERED_S), tuple(keys), given)


def place(location: str, base: Path | str) -> LocalPlace:
    """Return the real path of a local location, with links resolved.

    Args:
        location: an absolute path.
        base: folder or URI that relative locations are relative to.

    Raises:
        SourceError: the location is off limits, leaves `base` through a link, or is not in `PLINTH_SOURCES`.
    """
    found = os.path.realpath(location or "/")
    if current().has(found):
        raise refused(location, found)
    named = [_below(os.path.realpath(one)) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]
    home = _home(location, base)
    if home and _below(found).startswith(_below(home)):
        return LocalPlace(found, os.path.dirname(home))
    if (home or named) and not _below(found).startswith(tuple(named)):
        raise SourceError(
            f"{location} is outside the folders allowed for sources",
            found=f"a link to {found}" if home else found,
            expected=f"a place in {home or os.environ[VARIABLE]}",
            remedy=f"set the target as an absolute `path`; if {VARIABLE} is set, it must include the folder",
        )
    return LocalPlace(found, found)


def require(path: str, status: os.stat_result) -> None:
    """Refuse an open file that is off limits.

    Args:
        path: path under which it was opened.
        status: status of the open file.

    Raises:
        SourceError: the file is off limits.
    """
    limits = current()
    if limits.has(path) or (status.st_nlink > 1 and limits.has_inode(status)):
        raise refused(path, "a file that is off limits")


def refused(location: str, found: str) -> SourceError:
    """Return the error for a location that is off limits."""
    return SourceError(
        f"{location} is off limits",
        found=found,
        expected="documents, not keys, credentials, Plinth's private folders or caches, or system views",
        remedy="set another `path` in the recipe",
    )


def _home(location: str, base: Path | str) -> str:
    """Return the real path of `base` if a location is written as a path below it; otherwise an empty string.

    If `base` itself is a link, this link is not resolved.
    """
    if "://" in str(base):
        return ""
    own = os.path.abspath(base)
    real = os.path.join(os.path.realpath(os.path.dirname(own)), os.path.basename(own))
    return real if _below(os.path.abspath(location)).startswith((_below(own), _below(real))) else ""


def _below(folder: str) -> str:
    """Return a folder's path with one trailing slash: the prefix of all paths below it."""
    return f"{folder.rstrip('/')}/"


@lru_cache(maxsize=2)
def _known(tick: int, keys: tuple[str, ...], environment: tuple[str, ...]) -> OffLimits:
    secrets, others = [private.root()], [Path(one) for one in SYSTEM]
    folders = [Path(given)] if (given := os.environ.get(TRUST_VARIABLE)) else []
    with suppress(RuntimeError):  # no home directory
        folders.append(trust_home())
        others += [cache_folder(), Path.home() / ".cache" / "plinth"]
        secrets += [Path.home() / name for name in CREDENTIALS]
    notes = (note for folder in folders for note in folder.rglob("*.source"))
    named = [*keys, *(note.read_text(errors="replace").strip() for note in notes)]
    elsewhere = [Path(one.removeprefix("file:")) for one in named if one.startswith("file:")]
    return OffLimits([*secrets, *folders, *elsewhere], others)


def _files(place: Path) -> Iterator[os.stat_result]:
    """Yield the status of the files at a place; links there are followed."""
    paths = [place] if place.is_file() else [Path(at, name) for at, _, names in os.walk(place) for name in names]
    for path in paths:
        with suppress(OSError):
            yield path.stat()
