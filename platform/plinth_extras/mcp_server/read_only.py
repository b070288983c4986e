"""A process that cannot write to a workspace: a second barrier behind the table of read-only commands."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events of Python that change files, with the positions of the changed paths in their arguments.
_CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.utime": (0,),
}  # fmt: skip


def forbid_writes(folder: Path) -> None:
    """Let every later attempt of this process to write below a folder fail, until the process ends.

    An attempt raises PermissionError, or sqlite3.OperationalError for a database that is not opened with `mode=ro`.
    Commands tolerate both where they only save a cache, such as the index of `plinth release impact`.
    """
    root = os.path.realpath(folder)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        for path in _changed(event, arguments):
            real = os.path.realpath(os.fsdecode(path))
            if real == root or real.startswith(f"{root}{os.sep}"):
                if event == "sqlite3.connect":
                    raise sqlite3.OperationalError(f"the MCP server does not write to the database {real}")
                raise PermissionError(errno.EROFS, "the MCP server does not write to the workspace", real)

    sys.addaudithook(check)


def _changed(event: str, arguments: tuple[Any, ...]) -> Iterator[str | bytes | os.PathLike[str]]:
    """Yield the paths that an audit event is about to change."""
    if event == "open" and arguments[2] & _WRITES:
        places: tuple[int, ...] = (0,)
    elif event == "sqlite3.connect":
        yield from _database(arguments[0])
        return
    else:
        places = _CHANGES.get(event, ())
    for path in (arguments[place] for place in places):
        if isinstance(path, str | bytes | os.PathLike) and not (event == "os.mkdir" and os.path.isdir(path)):
            yield path


def _database(name: Any) -> Iterator[str]:
    """Yield the path of a database that may be written."""
    text = os.fsdecode(name)
    address = urlsplit(text)
    if text in ("", ":memory:"):
        return
    if address.scheme != "file":
        yield text
    elif "mode=ro" not in address.query.split("&"):
        yield unquote(address.path)
