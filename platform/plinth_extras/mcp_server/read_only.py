"""A process that cannot write to a workspace: a second barrier behind the table of read-only commands."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events of Python that change files, with the positions of the changed paths in their arguments.
_CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.utime": (0,),
}  # fmt: skip


def forbid_writes(folder: Path) -> None:
    """Let every later attempt of this process to write below a folder fail with PermissionError, until it ends.

    Commands tolerate it where a write is optional: without it, the index of `plinth release impact` is not saved. Code
    in C, such as SQLite, is not covered.
    """
    root = os.path.realpath(folder)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & _WRITES:
            changed: tuple[int, ...] = (0,)
        else:
            changed = _CHANGES.get(event, ())
        for path in (arguments[place] for place in changed):
            if isinstance(path, str | bytes | os.PathLike) and not (event == "os.mkdir" and os.path.isdir(path)):
                real = os.path.realpath(os.fsdecode(path))
                if real == root or real.startswith(f"{root}{os.sep}"):
                    raise PermissionError(errno.EROFS, "the MCP server does not write to the workspace", real)

    sys.addaudithook(check)
