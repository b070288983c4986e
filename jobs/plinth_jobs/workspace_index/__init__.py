"""The index of a workspace's pages, `reports/index.html`: today's state on one screen, runs, and links to every page.

    states     tiles: assets, release, candidates, canary, alerts, budgets, service levels
    operation_states  tiles: incidents, checks, game days, source values
    links      links to pages beside the index; lists of names
    run_lines  training runs with step, loss and goodput
    pages      every page of the workspace by kind

The pages load nothing and their links are relative: the folder can be opened, copied or served as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.report.workspace_index import IndexData, ServerLink, page
from plinth.storage import running
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.training.run_state import RunWatch
from plinth_jobs import results
from plinth_jobs.last_recipe import recall
from plinth_jobs.recipes import load
from plinth_jobs.results.page import INDEX
from plinth_jobs.workspace_index import pages, run_lines, states
from plinth_registry.server import MODELS, find_server

#: Runs with a line, newest first; each has its timeline read.
RUNS_SHOWN = 20
#: What the index shows, in the workspace, beside runs.
WATCHED = ("reports/*.html", "releases/*", "taint/*", "incidents/*", "gamedays/*", "refs/**/*.json", "*.jsonl")


def path(workspace: Workspace) -> Path:
    """Where the index lies."""
    return workspace.reports / INDEX


def write(ctx: Context, recipe: Recipe | None, watch: RunWatch | None = None) -> Path:
    """Write the index of the workspace; returns its path.

    Args:
        watch: knows the runs from an earlier look.

    Raises:
        StorageError, DiskFullError: it could not be written.
    """
    runs = (watch or RunWatch(ctx.workspace.runs)).look().newest()
    data = IndexData(
        title=_title(recipe),
        workspace=ctx.workspace.root.name,
        servers=tuple(_servers(ctx)),
        recipe=recipe.name if recipe else "",
        written=pages.utc(time.time()),
        tiles=tuple(states.tiles(ctx, recipe)),
        runs=tuple(run_lines.line(ctx, ctx.workspace.runs / run / "config.json") for run in runs[:RUNS_SHOWN]),
        older_runs=max(0, len(runs) - RUNS_SHOWN),
        groups=tuple(pages.groups(ctx)),
    )
    write_bytes(path(ctx.workspace), page(data).encode())
    return path(ctx.workspace)


def _title(recipe: Recipe | None) -> str:
    """The recipe, with its release where that has another name."""
    if recipe is None:
        return "Plinth workspace"
    named = recipe.release is not None and recipe.release.name != recipe.name
    return f"{recipe.name}, release {recipe.required_release().name}" if named else recipe.name


def _servers(ctx: Context) -> Iterator[ServerLink]:
    """Dagster and MLflow, while `plinth up` serves them."""
    served, mlflow = running.known(ctx.workspace), find_server(ctx.workspace)
    if served is not None:
        yield ServerLink(name="Dagster", url=served.dagster)
        if mlflow is not None:
            yield ServerLink(name="MLflow", url=f"{mlflow.uri.rstrip('/')}{MODELS}")


def refresh(workspace: Workspace, warn: Callable[[str], object], watch: RunWatch | None = None) -> None:
    """Write the index with the recipe that the workspace ran last, after pages of candidates that were moved; what
    cannot be written is a warning."""
    try:
        recipe = load(recall(workspace.root))
    except PlinthError:
        recipe = None
    ctx = Context(workspace)
    try:
        if recipe is not None:
            results.renew(ctx, recipe)
        write(ctx, recipe, watch)
    except PlinthError as error:
        warn(f"the index of pages was not written: {error}")


def seen(workspace: Workspace, watch: RunWatch) -> str:
    """A digest that changes when the index is to be written again; from names, sizes and times.

    Args:
        watch: of the runs; those that have ended are not looked at again.
    """
    facts, open_runs = watch.look().facts(), watch.open_runs()
    found: list[list[object]] = [["runs", *facts], ["states", *run_lines.states_of(Context(workspace), open_runs)]]
    for pattern in WATCHED:
        for watched in workspace.root.glob(pattern):
            if watched != path(workspace) and (stat := run_lines.stat_of(watched)):
                found.append([str(watched), stat.st_size, stat.st_mtime_ns])
    return fingerprint.digest(sorted(found, key=lambda one: str(one[0])))
