"""Runs by the names that people have for them, as their configurations.

Does not belong here: models by name (`targets`), what was started for a workspace (`running`).
"""

from __future__ import annotations

from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.extensions import nearest
from plinth.training import config
from plinth.training.config import RunConfig


def find_run(ctx: Context, run: str) -> RunConfig:
    """The configuration of a run: `latest`, its id, or a unique prefix of it.

    Raises:
        MissingError: no run, or more than one, of that name.
    """
    known = configurations(ctx)
    if run == "latest":
        published = ctx.refs.published("run")
        latest = str(published.stats["run_id"]) if published else ""
        matching = [latest] if latest in known else sorted(known, key=lambda name: known[name].stat().st_mtime)[-1:]
    else:
        matching = [run] if run in known else [name for name in known if name.startswith(run)]
    if len(matching) != 1:
        raise MissingError(
            f"no run {run!r}" if not matching else f"more than one run begins with {run!r}",
            found=", ".join(matching or sorted(known)) or "no run in this workspace",
            remedy=(known and not matching and nearest(run, ["latest", *known]))
            or "`plinth run` makes one; name a run by its id, or `latest`",
        )
    return config.load(known[matching[0]])


def configurations(ctx: Context) -> dict[str, Path]:
    """The file of every run's configuration, by the run's id."""
    return {path.parent.name: path for path in ctx.workspace.runs.glob("*/config.json")}
