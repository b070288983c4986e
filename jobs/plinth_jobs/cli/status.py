"""`plinth status` and `plinth report`: asset states, results pages, the index of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import IntegrityError, PlinthError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context

#: Displayed names of states that differ from the values in JSON.
SHOWN_STATES = {"not made": "never materialized"}
COLOURS = {"up to date": "green", "stale": "yellow", "not made": "red", "broken": "red"}
#: Maximum number of assets of one group and state that are listed one per line. Larger sets share a line.
LISTED = 60


@click.command(
    epilog=examples(
        "plinth status",
        "plinth status --all | grep stale",
        "plinth status --json | jq -r '.[] | select(.state != \"up to date\").asset'",
    )
)
@shared
@recipe_option
@click.option("--all", "every", is_flag=True, help="List every asset on its own line.")
@json_option
def status(settings: Settings, every: bool, as_json: bool) -> None:
    """List every asset of the recipe with state, rows, size and digest.

    A stale asset was materialized from another recipe, other code or other inputs. An asset is broken if its reference
    or manifest cannot be read; the exit code is then 5. More than 60 assets of one group and state share a line.
    """
    from plinth_jobs import asset_states

    ctx, recipe = settings.context(), settings.load_recipe()
    rows = asset_states.status(ctx, recipe)
    if as_json:
        output.emit_json(rows)
        return _require_whole(rows)
    output.table(("asset", "state", "rows", "size", "digest"), _status_rows(rows, every), right=("rows", "size"))
    for row in rows:
        if row["figures"]:
            figures = (f"{name.replace('_', ' ')} {value:,.4g}" for name, value in row["figures"].items())
            output.say(f"{row['asset']}: {', '.join(figures)}")
    count = sum(row["state"] == "up to date" for row in rows)
    output.say(f"{count} of {counted(len(rows), 'asset')} {'is' if count == 1 else 'are'} up to date.")
    if others := sum(not row["own"] for row in rows):
        output.say(asset_states.elsewhere(others))
    for run in _under_way(ctx):
        output.say(run)
    return _require_whole(rows)


def _require_whole(rows: list[dict[str, Any]]) -> None:
    """Raise an error if assets are broken. The caller lists all assets first.

    Raises:
        IntegrityError: some assets are broken.
    """
    if broken := [row for row in rows if row["error"]]:
        are = "is" if len(broken) == 1 else "are"
        raise IntegrityError(
            f"{counted(len(broken), 'asset')} {are} broken; their state is unknown",
            found="; ".join(f"{row['asset']}: {row['error']}" for row in broken),
            expected="readable references and manifests",
            remedy="restore the assets from a backup, or delete refs/ASSET.json of each and rerun `plinth run`",
        )


def _under_way(ctx: Context) -> Iterator[str]:
    """Yield a line for each run that is running or lost."""
    from plinth.training import config
    from plinth.training.directory import without_result
    from plinth.training.run_state import RunState, run_state
    from plinth.training.telemetry.timeline import timeline

    for directory in without_result(ctx.workspace.runs):
        with suppress(PlinthError):  # an unreachable scheduler must not hide assets
            run = config.load(directory.config)
            state = run_state(run)
            reached = max(timeline(run.directory.events).steps, default=0)
            at = f"step {reached:,} of {run.total_steps:,}"
            if state in (RunState.QUEUED, RunState.RUNNING):
                yield f"run {run.run_id} is {state}: {at}; see `plinth run timeline {run.run_id}`"
            elif state is RunState.LOST:
                yield f"run {run.run_id} was lost at {at} (its job is gone); resume it with `plinth run`"


def _status_rows(rows: list[dict[str, Any]], every: bool) -> Iterator[tuple[object, ...] | None]:
    """Yield table rows by group: one row per asset, or one row for many assets in the same state. None draws a
    horizontal line."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        groups.setdefault(row["group"], {}).setdefault(row["state"], []).append(row)
    for number, (title, by_state) in enumerate(groups.items()):
        if number:
            yield None
        for state, alike in by_state.items():
            if len(alike) > LISTED and not every:
                yield _line(f"{title}: {counted(len(alike), 'asset')}", state, alike)
            else:
                yield from (_line(row["asset"], state, [row], row["rows"], row["digest"]) for row in alike)


def _line(
    name: str, state: str, rows: list[dict[str, Any]], count: int | None = None, digest: str | None = None
) -> tuple[object, ...]:
    known = [row["bytes"] for row in rows if row["bytes"] is not None]
    size = output.size(sum(known)) if known else None
    return (
        name,
        output.coloured(SHOWN_STATES.get(state, state), COLOURS[state]),
        count or None,
        size,
        digest[:12] if digest else None,
    )


@click.command(epilog=examples("plinth report", "plinth report --candidate 2", "plinth report --json"))
@shared
@recipe_option
@click.option(
    "--candidate",
    metavar="VERSION",
    help="Version of the candidate; default: the newest candidate, checkpoint or corpus.",
)
@json_option
def report(settings: Settings, candidate: str | None, as_json: bool) -> None:
    """Write the results page of a candidate: funnel, mixture, loss, bits per byte, gates and release.

    Before the first candidate, the page covers the newest checkpoint or corpus. Each candidate, checkpoint and corpus
    has its own page.
    """
    from plinth_jobs import results

    page = results.write(settings.context(), settings.load_recipe(), candidate)
    if as_json:
        output.emit_json({"page": str(page)})
    else:
        output.say(page.absolute().as_uri())


@click.command(epilog=examples("plinth report pages", "plinth report pages --json | jq -r .page"))
@shared
@json_option
def pages(settings: Settings, as_json: bool) -> None:
    """Write the index of the workspace: state, runs and all pages on one screen.

    `plinth run` also writes the index; `plinth up` updates and serves it. The index opens without a server.
    """
    from plinth_jobs import results, workspace_index

    ctx, recipe = settings.context(), None
    try:
        recipe = settings.load_recipe()
    except PlinthError as error:
        output.line(f"skipped the recipe: {error.what}", err=True)
    if recipe is not None:
        results.renew(ctx, recipe)
    written = workspace_index.write(ctx, recipe)
    if as_json:
        output.emit_json({"page": str(written)})
    else:
        output.say(written.absolute().as_uri())
