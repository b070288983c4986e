"""Notes in a workspace that name a file to load: they count only where this user wrote them.

Other users may write the workspace, and a recipe reads files and starts jobs as its user. So each note has a twin in
this user's private folder; a note that differs from it is refused, and named again by the user once.

    write    a note and its twin
    read     a note that has such a twin
    folder   the private folder of a workspace
    passes   True if one of some files is in the workspace, where others may have edited it

Does not belong here: what a note says (`last_recipe`, `experiments`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from plinth import private
from plinth.errors import RequestError
from plinth.storage.atomic import write_bytes

FOLDER = "notes"


def folder(workspace: Path) -> Path:
    """The private folder of this user for a workspace, by its resolved path."""
    return private.folder(FOLDER) / hashlib.sha256(os.fsencode(workspace.resolve())).hexdigest()[:32]


def write(workspace: Path, name: str, data: bytes) -> None:
    """Write a note and its twin.

    Raises:
        WorkspaceError: a folder cannot be written.
    """
    write_bytes(folder(workspace) / name, data)
    write_bytes(workspace / name, data)


def read(workspace: Path, name: str, remedy: str) -> bytes | None:
    """A note, or None where the workspace has none.

    Raises:
        RequestError: this user did not write it.
    """
    try:
        data = (workspace / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        own = (folder(workspace) / name).read_bytes()
    except FileNotFoundError:
        own = b""
    if data != own:
        raise RequestError(
            f"{workspace / name} was not written by this user on this machine",
            found="a change since this user's last run" if own else "no run of this user",
            expected=f"the note in {folder(workspace)}",
            remedy=remedy,
        )
    return data


def passes(workspace: Path, files: Iterable[Path]) -> bool:
    """True if one of the files is in the workspace, or is reached through it."""
    root = workspace.resolve()
    steps = {step for path in files for step in (path.absolute(), *path.absolute().parents)}
    places = {place for step in steps for place in (step.parent.resolve() / step.name, step.resolve())}
    return any(place.is_relative_to(root) for place in places)
