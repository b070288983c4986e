"""What belongs to a backup of a workspace, in the order in which it is copied.

Writers write content first, then what points to it: blobs, then records and manifests, then references; a record of a
signed log, then the head that names it. A backup copies the other way round: pointers first, then what they point to.
Content is only ever added, so whatever a copied pointer names was there before the pointer was, and is copied after it.
What was added meanwhile is copied without a pointer to it, which is what an interrupted writer leaves, too; but the log
of releases may be one record longer than its head and no more, so what is longer is left out. Each database is copied
in one transaction of its own; none refers to another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from plinth.errors import WorkspaceError
from plinth.storage.destination import sizes
from plinth.storage.safe_path import refused
from plinth.storage.workspace import Workspace

#: Folders that lie in the bucket of a shared workspace.
SHARED: Final = ("store", "records", "manifests", "refs", "pins", "exclusions")
#: The head of the release history; it names the newest record of every log.
HEAD: Final = "releases/head"
LOGS: Final = (
    *("releases", "taint", "feed", "consumers", "logins", "audit", "providers", "exclusions", "policies"),
    *("approvals", "attestations", "trust", "papers", "trials", "reviews", "takedown"),
    *("incidents", "check-waivers", "gamedays"),
)
#: Blobs of these assets cannot be made again: what was fetched from outside, and what training cost.
KEPT_ASSETS: Final = re.compile(r".*/sources|.*/documents|lists/.*|run|checkpoint|models/.*|initial.*")
_LEFT_OUT: Final = re.compile(
    r".*\.lock|.*/lock|.*\.tmp|runs/[^/]+/(staging|writers|profiles|handle\.json)(/.*)?|.*/server\.(json|log)"
)
#: References of an experiment's arms lie where those of the workspace lie.
_BRANCH: Final = re.compile(r"experiments/.+/refs/")
_COMMIT: Final = re.compile(r"(runs/[^/]+/checkpoints/step-\d+)\.json")


#: Folders that may be links, to another disk.
_ELSEWHERE: Final = ("runs", "models", "mlflow", "mlflow/artifacts", "dagster")


class InventoryGroup(NamedTuple):
    """Folders, or single files, that are copied together."""

    name: str
    places: tuple[str, ...]


GROUPS: Final = (
    InventoryGroup("pointers", (HEAD, "refs", "experiments", "pins")),
    InventoryGroup("logs", LOGS),
    InventoryGroup("runs", ("runs", "models", "budget", "costs", "recipe.json", "assets.jsonl")),
    InventoryGroup("records", ("manifests", "records")),
    InventoryGroup("artifacts", ("mlflow/artifacts",)),
)


def location(workspace: Workspace, path: str) -> str:
    """Where a file of a workspace lies: in its folder on this machine, or in its bucket."""
    shared = workspace.uri and (path.partition("/")[0] in SHARED or _BRANCH.match(path))
    return f"{workspace.uri}/{path}" if shared else str(workspace.root / path)


def own(workspace: Workspace, path: str) -> Path:
    """Where a file of the workspace's folder really lies.

    Raises:
        WorkspaceError: a link leads out of the workspace.
    """
    real = Path(os.path.realpath(workspace.root / path))
    if any(real.is_relative_to(os.path.realpath(workspace.root / one)) for one in ("", *_ELSEWHERE)):
        return real
    raise not_carried(path, f"a link to {real}")


def not_carried(path: str, found: str) -> WorkspaceError:
    """The error for what lies in the workspace's folder and is no file of the workspace."""
    return refused(f"{path} is not taken into a backup", found)


def files(workspace: Workspace, group: InventoryGroup) -> Iterator[str]:
    """The files of a group, by path in the workspace; what belongs to none of them is left out.

    A link to a folder of the workspace is left out: the files there have paths of their own. A commit record whose
    checkpoint is not in the list was written after its folder was looked at: left out.

    Raises:
        WorkspaceError: a link leads out of the workspace to a folder.
        StorageError: a place cannot be listed.
    """
    found: list[str] = []
    for place in group.places:
        where = location(workspace, place)
        if "://" not in where and Path(where).is_file():
            found.append(place)
        else:
            found += [f"{place}/{name}" for name in sizes(where)]
    if workspace.uri and "experiments" in group.places:
        found += [f"experiments/{name}" for name in sizes(f"{workspace.uri}/experiments")]
    known = {path.rpartition("/")[0] for path in found}
    for path in found:
        commit = _COMMIT.fullmatch(path)
        if (path == HEAD and group.name != "pointers") or _LEFT_OUT.fullmatch(path):
            continue
        if os.path.isdir(location(workspace, path)) and own(workspace, path):
            continue
        if commit is None or any(folder.startswith(commit[1]) for folder in known):
            yield path
