"""`plinth run`, `plinth up`, `plinth down`: the pipeline and the servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.compute.context import TaskShare
from plinth.compute.engine import cores
from plinth.compute.select_engine import ENGINES, Compute
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth_jobs.pipeline import ExpectedWork, RunSummary


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
