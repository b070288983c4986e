"""A process that cannot write to a workspace: a second barrier behind the table of read-only commands.

Python's audit events show the changes of files by Python code, except those of `os.mkfifo`, `os.mknod` and of files
opened relative to an open folder. They do not show changes by native libraries (such as pyarrow's own writers and
SQLite's `ATTACH`) and by child processes. Only read access of the process's account stops these.

The events do not show the requests of all HTTP clients either, so requests to buckets are refused in botocore, on which
boto3 and s3fs are built.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from plinth.errors import WorkspaceError
from plinth.storage.workspace import Workspace

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events of Python that change files, with the positions of the changed paths in their arguments.
_CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.utime": (0,), "os.chown": (0,), "os.setxattr": (0,),
    "os.removexattr": (0,),
}  # fmt: skip
#: Positions of the folders, as descriptors or -1, that these paths are relative to.
_FOLDERS = {
    "os.mkdir": (2,), "os.rename": (2, 3), "os.remove": (1,), "os.rmdir": (1,), "os.link": (3,), "os.symlink": (2,),
    "os.chmod": (2,), "os.utime": (3,), "os.chown": (3,),
}  # fmt: skip


#: Folders of a shared workspace that only cache its bucket on this machine. Reading writes there.
CACHES = ("store", "manifests", "tmp")


def forbid_writes(workspace: Workspace) -> None:
    """Let every later attempt of this process to write to a workspace fail, until the process ends."""
    if workspace.uri:
        _forbid_requests()
    _forbid_files(workspace.root, CACHES if workspace.uri else ())


def _forbid_requests() -> None:
    """Refuse every request that changes a bucket. Clients that exist already are not covered."""
    from botocore import handlers

    def check(model: Any, params: Any, **_: Any) -> None:
        if model.http["method"] not in ("GET", "HEAD"):
            raise WorkspaceError(
                "the MCP server does not write to buckets",
                found=f"{model.name} {params['url_path']}",
                expected="requests that read",
            )

    handlers.BUILTIN_HANDLERS.append(("before-call.s3", check))  # every session registers these handlers


def _forbid_files(folder: Path, except_in: Iterable[str]) -> None:
    """Refuse every change of a file below a folder, except in some of its folders.

    An attempt raises PermissionError, or sqlite3.OperationalError for a database that is not opened with `mode=ro`.
    Commands tolerate both where they only save a cache, such as the index of `plinth release impact`.
    """
    root = os.path.realpath(folder)
    allowed = tuple(f"{root}{os.sep}{name}{os.sep}" for name in except_in)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        for path in _changed(event, arguments):
            real = os.path.realpath(os.fsdecode(path))
            if real == root or (real.startswith(f"{root}{os.sep}") and not f"{real}{os.sep}".startswith(allowed)):
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
    folders = [arguments[place] for place in _FOLDERS.get(event, ())] or [-1] * len(places)
    for place, folder in zip(places, folders, strict=True):
        path = arguments[place]
        if isinstance(path, int):
            path = f"/proc/self/fd/{path}"
        elif isinstance(path, str | bytes | os.PathLike) and folder != -1:
            path = os.path.join(f"/proc/self/fd/{folder}", os.fsdecode(path))
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
