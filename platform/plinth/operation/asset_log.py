"""`assets.jsonl` of a workspace: when source files arrived, suites were checked, assets were published.

    arrived    new files of a bucket's sources (asset: the bucket; at: Unix seconds of the newest)
    checked    a suite of an asset (asset, passed, evaluated, failures)
    published  an asset (asset, digest)

References and manifests bear no time, since identity is content; service levels need one. Arms of experiments and the
processes that share a run's tasks log nothing: they publish what no consumer of the workspace reads, or the same again.
The log is of this machine: of a shared workspace each machine logs what it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth.training.telemetry.timeline import Event, Timeline, read_events

#: Kinds of events.
ARRIVED: Final = "arrived"
CHECKED: Final = "checked"
PUBLISHED: Final = "published"


def path(workspace: Workspace) -> Path:
    """The file."""
    return workspace.root / "assets.jsonl"


def append(ctx: Context, event: str, asset: str, **fields: Any) -> None:
    """Log what happened to an asset.

    Raises:
        DiskFullError, WorkspaceError, StorageError: as the operating system refuses.
    """
    if ctx.share is None and not ctx.workspace.experiment:
        Timeline(path(ctx.workspace)).append(event, asset=asset, **fields)


def read(workspace: Workspace, until: float) -> Iterator[Event]:
    """Events up to a time (Unix seconds), in order.

    Raises:
        IntegrityError: a line within the file is not an event.
    """
    return (event for event in read_events(path(workspace)) if float(event["time"]) <= until)
