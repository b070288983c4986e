"""Runs by the names that people have for them, as their configurations.

Does not belong here: models by name (`targets`), what was started for a workspace (`running`).
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.extensions import nearest
from plinth.training import config
from plinth.training.config import RunConfig
from plinth.training.run_state import run_state

LATEST = "latest"


def find_run(ctx: Context, run: str) -> RunConfig:
    """The configuration of a run: `latest`, its id, or a unique prefix of it.

    `latest` is the run that was started last, whatever its state; standard error names it.

    Raises:
        MissingError: no run, or more than one, of that name.
    """
    known = configurations(ctx)
    if run == LATEST:
        matching = sorted(known, key=lambda name: (_started(known[name]), name))[-1:]
    else:
        matching = [run] if run in known else [name for name in known if name.startswith(run)]
    if len(matching) != 1:
        raise MissingError(
            f"no run {run!r}" if not matching else f"more than one run begins with {run!r}",
            found=", ".join(matching or sorted(known)) or "no run in this workspace",
            remedy=(known and not matching and nearest(run, [LATEST, *known]))
            or "`plinth run` makes one; name a run by its id, or `latest`",
        )
    found = config.load(known[matching[0]])
    if run == LATEST:
        print(f"latest: {found.run_id} ({run_state(found)})", file=sys.stderr)
    return found


def _started(path: Path) -> float:
    """Unix seconds of the first event of a run's timeline; of its configuration where there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError), path.with_name("events.jsonl").open("rb") as stream:
        return float(json.loads(stream.readline())["time"])
    return path.stat().st_mtime


def configurations(ctx: Context) -> dict[str, Path]:
    """The file of every run's configuration, by the run's id."""
    return {path.parent.name: path for path in ctx.workspace.runs.glob("*/config.json")}
