"""`plinth recipe`, `plinth run`, `plinth up`, `plinth down`, `plinth status`, `plinth report`: recipes, the pipeline,
servers, asset states, results pages.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.compute.context import TaskShare
from plinth.compute.engine import cores
from plinth.compute.select_engine import ENGINES, Compute
from plinth.errors import IntegrityError, PlinthError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_argument, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth_jobs.pipeline import ExpectedWork, RunSummary


# `plinth recipe`, `plinth run`, `plinth up`, `plinth down`: recipes, the pipeline, servers.

@click.command(epilog=examples("plinth init mine --data /data/corpus --licence CC-BY-4.0", "plinth init mine"))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Folder of data; its files become the sources: one bucket per subfolder.",
)
@click.option(
    "--licence", metavar="SPDX", help="License of the sources; if it is not stated, their documents are dropped."
)
@click.option("--owner", default="corpus@example.org", show_default=True, help="E-mail address of the buckets' owner.")
@shared
@json_option
def init(settings: Settings, folder: Path, data: Path | None, licence: str | None, owner: str, as_json: bool) -> None:
    """Create a project in FOLDER: recipe, gate policy, CI workflow, Dagster project.

    The folder's name becomes the name of the recipe. Existing files are never replaced.
    """
    from plinth_jobs import project

    name = project.name_of(folder)
    project.require_own_package(name)
    sources, unread = project.look(data) if data else ([project.EXAMPLE], {})
    written = project.write(folder, project.files(name, sources, licence or project.UNSTATED, owner))
    if as_json:
        found = [one._asdict() for one in sources]
        output.emit_json({"name": name, "files": list(map(str, written)), "sources": found, "not_read": unread})
        return
    for path in written:
        output.say(f"wrote {path}")
    for one in sources if data else ():
        output.say(f"bucket {one.bucket}: {counted(one.files, 'file')} of kind {one.kind} in {one.path}")
    if unread:
        listed = ", ".join(f"{counted(number, 'file')} {suffix}" for suffix, number in unread.items())
        output.say(f"not in the recipe, because no reader knows them: {listed}")
    if dropped := _dropped_licence(folder / "recipe.yaml"):
        output.say(f"note: {dropped}")
    output.say("\nNext:")
    recipe_file, workspace = shlex.quote(f"{folder}/recipe.yaml"), shlex.quote(f"{folder}/workspace")
    at = f"-w {workspace} -r {recipe_file}"
    output.facts(
        {
            f"plinth recipe check {recipe_file}": "every problem of the recipe",
            f"plinth run {at} --dry-run": "what would run, and its expected cost",
            f"plinth run {at} --select '*/curated'": "curated text",
        }
    )


def _dropped_licence(path: Path) -> str:
    """Return a sentence about the license of a new recipe if the license gate drops its documents, or nothing."""
    from plinth.corpus.annotate.licence import judge
    from plinth_jobs import recipes

    corpus = recipes.load(path).corpus
    licence = next(source.licence for bucket in corpus.buckets.values() for source in bucket.sources)
    if judge(licence, tuple(sorted(corpus.permitted_licences)))[1]:
        return ""
    return f"{licence} is not in `corpus.permitted_licences`: its documents are dropped until you permit it there"


@group(
    epilog=examples("plinth recipe check demo", "plinth recipe show | less", "plinth recipe schema"),
    short_help="Check, print or describe a recipe.",
)
def recipe() -> None:
    """Check, print or describe a recipe: one YAML file that describes a run. docs/recipe.md lists every key."""


@recipe.command(epilog=examples("plinth recipe check my.yaml", "plinth recipe check my.yaml --json"))
@recipe_argument
@shared
@json_option
def check(settings: Settings, as_json: bool) -> int:
    """Check a recipe; list every problem by file, line and key.

    PATH defaults to the recipe last run in this workspace. The exit code is 2 if there are problems.
    """
    from plinth.recipe.column_checks import list_files, notes, probe_files
    from plinth.recipe.extension_checks import generated_lists
    from plinth.recipe.load import fingerprint, required
    from plinth.recipe.yaml_lines import Position, Problem, dotted
    from plinth_jobs.recipes import check as check_recipe

    path = settings.recipe_path()
    checked, problems = check_recipe(path)
    if checked is not None:
        generated = generated_lists(checked, settings.workspace / "input")
        read = list_files(checked, settings.workspace / "input")
        faults = [*generated, *probe_files(checked, settings.workspace / "input"), *read]
        problems = [Problem(Position(str(path), 1), dotted(key), what, hint) for key, what, hint in faults]
    if as_json:
        found = [
            {**asdict(problem.mark), "key": problem.key, "message": problem.message, "hint": problem.hint}
            for problem in problems
        ]
        identity = fingerprint(checked) if checked else None
        advice = notes(checked) if checked else []
        output.emit_json(
            {"path": str(path), "right": not problems, "fingerprint": identity, "problems": found, "notes": advice}
        )
        return 2 if problems else 0
    loaded = required(checked, problems, path)
    output.say(f"{path} is valid.")
    facts = {
        "name": loaded.name,
        "buckets": ", ".join(loaded.corpus.buckets),
        "annotators": ", ".join(loaded.corpus.annotate),
    }
    if loaded.mixture is not None:
        facts["tokens"] = f"{loaded.mixture.total_tokens:,}"
        facts["phases"] = ", ".join(f"{phase.name} {phase.fraction:.0%}" for phase in loaded.mixture.phases)
    output.facts({**facts, "fingerprint": fingerprint(loaded)})
    for note in notes(loaded):
        output.say(f"note: {output.plain_markup(note)}")
    return 0


@recipe.command(epilog=examples("plinth recipe show my.yaml", "plinth recipe show my.yaml --json | jq .mixture"))
@recipe_argument
@shared
@json_option
def show(settings: Settings, as_json: bool) -> None:
    """Print the complete recipe, with `extends:` resolved and defaults filled in.

    The output is itself a recipe, with the same fingerprint.
    """
    import yaml

    from plinth_jobs.recipes import resolved

    data = resolved(settings.recipe_path())
    if as_json:
        output.emit_json(data)
    else:
        output.line(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100), end="")


@recipe.command(epilog=examples("plinth recipe schema > recipe.schema.json"))
@shared
@json_option
def schema(settings: Settings, as_json: bool) -> None:
    """Print the JSON Schema of recipes, for completion and validation in editors."""
    from plinth.recipe.reference import schema as schema_of_recipes

    output.emit_json(schema_of_recipes())


@click.command(
    epilog=examples(
        "plinth run -r demo",
        "plinth run --select mixture",
        "plinth run --select 'web/*' --workers 4",
        "plinth run --engine ray --ray-address auto",
        "plinth -w s3://bucket/corpus run -r recipe.yaml --part 0/8",
        "plinth run -r demo --harvest",
    )
)
@shared
@recipe_option
@click.option(
    "-s",
    "--select",
    multiple=True,
    metavar="ASSET",
    help="Run only this asset and its inputs; `*` matches any characters, as in `*/curated`.",
)
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(1, 1024),
    help="Worker processes for corpus stages; default: one per core.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    envvar="PLINTH_ENGINE",
    default="local",
    show_default=True,
    help="Engine for corpus stages.",
)
@click.option(
    "--ray-address",
    envvar="PLINTH_RAY_ADDRESS",
    default="",
    metavar="HOST:PORT",
    help="Address of a running Ray cluster (`auto`: on this machine); default: start a local cluster.",
)
@click.option(
    "--part",
    default="",
    metavar="I/N",
    help="Run as process I of N on a shared workspace (I counts from 0). Each process first builds its own part of "
    "the corpus.",
)
@click.option(
    "--harvest",
    is_flag=True,
    help="Demo: re-collect the demo corpus; default: keep the corpus of the first run.",
)
@click.option("--dry-run", is_flag=True, help="List what would be built, why, and the expected cost; change nothing.")
@json_option
def run(
    settings: Settings,
    select: tuple[str, ...],
    workers: int | None,
    engine: str,
    ray_address: str,
    part: str,
    harvest: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run the pipeline: bring every asset of a recipe up to date, from sources to release.

    Assets that are up to date are skipped; interrupted work resumes. The number of workers and the engine affect the
    duration only, never the result.
    """
    from plinth.compute.progress import for_command

    with for_command().meter("loading", 0):  # the first import compiles bytecode
        from plinth_jobs import pipeline

    if dry_run:
        work, fresh = pipeline.dry_run(settings.workspace, settings.recipe_path(), select)
        _show_expected(work, fresh, as_json)
        return
    TaskShare.parse(part)
    compute = Compute(engine, workers or cores(), ray_address, part)

    def say(sentence: str) -> None:
        output.line(sentence, err=True)

    summary = pipeline.run(settings.workspace, settings.recipe_path(), select, compute, harvest=harvest, say=say)
    if as_json:
        output.emit_json(summary)
    else:
        _show(summary, settings.workspace)


@click.command(
    epilog=examples(
        "plinth up",
        "plinth up -r demo --dagster-port 3100 --pages-port 3101",
        "plinth up --full -r demo",
    )
)
@shared
@recipe_option
@click.option("--dagster-port", type=click.IntRange(1, 65535), default=3000, show_default=True)
@click.option("--pages-port", type=click.IntRange(1, 65535), default=3001, show_default=True)
@click.option(
    "--origin",
    multiple=True,
    envvar="PLINTH_ORIGINS",
    metavar="URL",
    help="Public address of Dagster behind a proxy, such as https://dagster.example.org:8443.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Trial of a full installation: PostgreSQL, S3, TLS and logins on this machine; nothing is kept.",
)
def up(settings: Settings, dagster_port: int, pages_port: int, origin: tuple[str, ...], full: bool) -> int:
    """Serve Dagster, MLflow, the workspace pages and metrics on loopback until Ctrl-C; print the addresses.

    Schedules and sensors are active for new source files, approvals and failures. A server that exits is restarted, and
    `plinth doctor` reports the restart. Dagster accepts requests only for its loopback address and --origin. --full
    creates a workspace in a bucket and PostgreSQL databases for the duration of the command, with logins over TLS.
    """
    if full:
        from plinth_jobs import installation

        return installation.up(settings.recipe_path(), dagster_port, pages_port)
    from plinth_jobs.servers import up as serve

    return serve(settings.workspace, settings.recipe_path(), dagster_port, pages_port, origin)


@click.command(epilog=examples("plinth down"))
@shared
@json_option
def down(settings: Settings, as_json: bool) -> None:
    """Stop the servers that Plinth started for a workspace on this machine: Dagster and MLflow.

    Training runs continue; stop a run with `plinth run job cancel`. Servers restart when they are needed.
    """
    from plinth_jobs import supervised

    stopped = supervised.down(settings.context().workspace)
    if as_json:
        output.emit_json([each._asdict() for each in stopped])
    elif stopped:
        output.facts({f"stopped {each.name}": f"process {each.pid}, {output.size(each.bytes)}" for each in stopped})
    else:
        output.say("No servers are running.")


#: Displayed names of release actions that differ from the values in JSON.
ACTIONS = {
    "canary": "promoted to canary",
    "champion": "promoted to champion",
    "rollback": "rolled back",
    "returned": "canary rolled back",
}


def _show(summary: RunSummary, workspace: Path) -> None:
    made = f"materialized {counted(len(summary.done), 'asset')}" if summary.done else "nothing to do"
    output.heading(f"{made}, {len(summary.fresh)} up to date ({output.duration(summary.seconds)})")
    for bucket, account in summary.accounts.items():
        output.line(f"{bucket}: {account.line}")
    if summary.release:
        output.facts({name.replace("_", " "): ACTIONS.get(value, value) if name == "last_action" else value
                      for name, value in summary.release.items()})  # fmt: skip
    if summary.page:
        output.facts({"results": summary.page.absolute().as_uri()})
    for line in summary.warnings:
        output.line(f"warning: {line}")
    place = _uri(workspace) or str(workspace)
    at = "" if workspace == Path("workspace") or "PLINTH_WORKSPACE" in os.environ else f" -w {place}"
    output.say("\nNext:")
    output.facts({f"plinth {command}{at}{rest}": words for command, rest, words in _next(summary)})


def _uri(workspace: Path) -> str:
    from plinth.storage.workspace import Workspace

    return Workspace(workspace).uri


def _show_expected(work: list[ExpectedWork], fresh: int, as_json: bool) -> None:
    """Print what a run would do, one asset per line, and the totals."""
    if as_json:
        output.emit_json({"up_to_date": fresh, "stale": [one._asdict() for one in work]})
        return
    rows = [
        [one.asset, one.reason, _hours(one.cpu_hours), _hours(one.rank_hours), _dollars(one.cost_usd)] for one in work
    ]
    if rows:
        numbers = ["CPU hours", "rank-hours", "USD"]
        output.table(["asset", "reason", *numbers], rows, right=numbers)
    unknown = sum(one.cost_usd is None for one in work)
    known = "" if not unknown else "unknown" if unknown == len(work) else "at least "
    totals = {
        "CPU hours": _hours(sum(one.cpu_hours or 0.0 for one in work)),
        "rank-hours": _hours(sum(one.rank_hours or 0.0 for one in work)),
        "USD": _dollars(sum(one.cost_usd or 0.0 for one in work)),
    }
    output.facts(
        {
            "to materialize": counted(len(work), "asset"),
            "up to date": counted(fresh, "asset"),
            **{name: known if known == "unknown" else known + total for name, total in totals.items()},
            **({"no estimate": f"{counted(unknown, 'asset')} without an earlier materialization"} if unknown else {}),
        }
    )


def _hours(hours: float | None) -> str:
    return "" if hours is None else "0" if hours == 0 else "< 0.01" if hours < 0.005 else f"{hours:,.2f}"


def _dollars(amount: float | None) -> str:
    from plinth_assets.framework.present import money

    return "" if amount is None else money(amount)


def _next(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Return suggested next commands, each with a description of its effect."""
    made = {*summary.done, *summary.fresh}
    commands = [("status", "", "the state of every asset")]
    if "funnel" in made:
        commands.append(("corpus funnel", "", "documents through every stage"))
    if "run" in made:
        commands.append(("run batch", " latest 1", "the documents of a training step"))
    if summary.release.get("alias") == "champion":
        commands.append(("verify", " champion", "every link back to the sources"))
    if "waiting" in summary.release:
        commands.append(("approve", "", "pending candidates, with every gate"))
    return [*commands, ("up", "", "Dagster and MLflow in a browser")]


# `plinth status`, `plinth report` and `plinth report pages`: asset states, results pages, the index of pages.

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
