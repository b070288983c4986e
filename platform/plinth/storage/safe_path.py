"""Paths from names that others have written: file lists, manifests, archives, listings of a bucket.

    relative   a name that stays below whatever folder or prefix it is put in
    join       the path of such a name below a folder of this machine, where no link leads out of it

Does not belong here: URIs of sources, which a recipe names (uris).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from plinth.errors import IntegrityError, PlinthError

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
