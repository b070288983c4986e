"""Where `plinth up` serves a workspace on this machine, for links from pages and from Dagster.

A link is written only while the process that serves lives; a page never links a file that a browser would not open.
"""

from __future__ import annotations

import os
from pathlib import Path

from plinth.errors import PlinthError
from plinth.records import Frozen
from plinth.storage import started
from plinth.storage.atomic import write_bytes
from plinth.storage.started import RunningProcess
from plinth.storage.workspace import Workspace

FILE = "addresses.json"


class Addresses(Frozen):
    """Addresses of the servers, each with a slash at its end."""

    process: RunningProcess
    dagster: str
    pages: str


def note(workspace: Workspace, dagster: str, pages: str) -> None:
    """Write down where this process serves, until it ends.

    Raises:
        WorkspaceError: as `started.folder`.
    """
    known = Addresses(process=RunningProcess.of(os.getpid()), dagster=dagster, pages=pages)
    write_bytes(started.folder(workspace) / FILE, known.model_dump_json().encode())


def known(workspace: Workspace) -> Addresses | None:
    """Where a workspace is served now; None if nothing serves it."""
    try:
        found = Addresses.model_validate_json((started.folder(workspace) / FILE).read_bytes())
    except (OSError, ValueError, PlinthError):
        return None
    return found if found.process.find() else None


def page_url(workspace: Workspace, path: Path) -> str | None:
    """The address of a page of the workspace; None if nothing serves it, or it is elsewhere."""
    served, root = known(workspace), workspace.root.resolve()
    if served is None or not path.resolve().is_relative_to(root):
        return None
    return f"{served.pages}{path.resolve().relative_to(root).as_posix()}"
