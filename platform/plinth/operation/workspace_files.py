"""Files of a workspace: settings in YAML, edited by users, and `assets.jsonl`, the log of arrivals, checks and
publications.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import RequestError
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.training.telemetry.timeline import Event, Timeline, read_events

# Settings of a workspace in a YAML file that users edit. Without the file, the defaults apply.

S = TypeVar("S", bound=Frozen)


def read_settings(path: Path, kind: type[S], lacks: str, docs: str) -> S:
    """Return the settings in a file, or the defaults if there is none.

    Args:
        kind: model of the settings.
        lacks: error text, after the path, for a file that cannot be used.
        docs: the page that describes the settings.

    Raises:
        RequestError: the file cannot be used.
    """
    try:
        return kind.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return kind()
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as cause:
        raise RequestError(
            f"{path} {lacks}", found=str(cause), expected=", ".join(kind.model_fields), remedy=f"see {docs}"
        ) from cause


# `assets.jsonl` of a workspace: arrivals of source files, checks of suites, publications of assets.
#
#     arrived    new files of a bucket's sources (asset: the bucket; at: Unix seconds of the newest)
#     checked    a suite of an asset (asset, passed, evaluated, failures)
#     published  an asset (asset, digest)
#
# References and manifests contain no time, since their identity is their content, but service levels need times. Arms
# of experiments and processes that share a run's tasks log nothing: their publications are not consumed in the
# workspace, or repeat others. The log belongs to this machine: in a shared workspace each machine logs its own events.

#: Kinds of events.
ARRIVED: Final = "arrived"
CHECKED: Final = "checked"
PUBLISHED: Final = "published"


def path(workspace: Workspace) -> Path:
    """Return the path of a workspace's `assets.jsonl`."""
    return workspace.root / "assets.jsonl"


def append(ctx: Context, event: str, asset: str, **fields: Any) -> None:
    """Append an event of an asset to `assets.jsonl`.

    Raises:
        DiskFullError, WorkspaceError, StorageError: the log cannot be written.
    """
    if ctx.share is None and not ctx.workspace.experiment:
        Timeline(path(ctx.workspace)).append(event, asset=asset, **fields)


def read(workspace: Workspace, until: float) -> Iterator[Event]:
    """Yield the events in `assets.jsonl` up to a time (Unix seconds), in order.

    Raises:
        IntegrityError: a line within the file is not an event.
    """
    return (event for event in read_events(path(workspace)) if float(event["time"]) <= until)
