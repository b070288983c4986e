"""`plinth run job`: the job of a run. The same commands for every launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.training.config import RunConfig


@group(
    epilog=examples("plinth run job status latest", "plinth run job logs latest -n 20", "plinth run job cancel latest")
)
def job() -> None:
    """Inspect and control the job of a run, from any machine that reads the workspace; a local job from its own."""


@job.command(epilog=examples("plinth run job status latest", "plinth run job status latest --json | jq -r .status"))
@click.argument("run")
@shared
@json_option
def status(settings: Settings, run: str, as_json: bool) -> None:
    """Show the job of RUN: launcher, host, state and last step."""
    _show(_facts(settings.run_config(run)), as_json)


@job.command(epilog=examples("plinth run job logs latest", "plinth run job logs latest -n 200"))
@click.argument("run")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Number of lines, from the end."
)
@shared
def logs(settings: Settings, run: str, lines: int) -> None:
    """Show the last log lines of the supervisor and ranks of RUN."""
    from plinth.training.run_state import launcher_of
    from plinth_jobs.cli import output

    config = settings.run_config(run)
    output.line(launcher_of(config).logs(config.directory.log, lines))


@job.command(epilog=examples("plinth run job cancel latest"))
@click.argument("run")
@shared
@json_option
def cancel(settings: Settings, run: str, as_json: bool) -> None:
    """Signal the job of RUN to save and stop; kill it after the grace period of the recipe.

    It is not requeued. `plinth run job submit RUN` continues from the last committed checkpoint.
    """
    from plinth.training.job import cancel as stop

    config = settings.run_config(run)
    stop(settings.context(), config)
    _show(_facts(config), as_json)


@job.command(epilog=examples("plinth run job submit latest"))
@click.argument("run")
@shared
@json_option
def submit(settings: Settings, run: str, as_json: bool) -> None:
    """Submit the job of RUN, detached, unless it is alive or has finished."""
    from plinth.operation.spending.admission import submit as within_budget

    config = settings.run_config(run)
    within_budget(settings.context(), config)
    _show(_facts(config), as_json)


@job.command(
    epilog=examples("plinth run job manifest latest > job.yaml", "plinth run job manifest latest | kubectl diff -f -")
)
@click.argument("run")
@shared
def manifest(settings: Settings, run: str) -> None:
    """Print the scheduler's input for RUN: a Slurm batch script, or Kubernetes manifests."""
    from plinth.launch.choose import given
    from plinth.training.job import command
    from plinth_jobs.cli import output

    config = settings.run_config(run)
    directory, grace_s = config.directory, config.supervision.grace_s
    output.line(given(config.launch, grace_s, command(config), directory.root, directory.log), end="")


def _facts(config: RunConfig) -> dict[str, Any]:
    from plinth.training.checkpoint.checkpoint import committed
    from plinth.training.run_state import launcher_of, result, run_state
    from plinth.training.telemetry.timeline import timeline

    launcher, run = launcher_of(config), config.directory
    handle = launcher.find(run.root)
    ended = result(config)
    return {
        "run": config.run_id,
        "launcher": handle.launcher if handle else config.launch.kind,
        "job": handle.id if handle else "",
        "host": handle.host if handle else "",
        "state": str(run_state(config)),
        "status": str(launcher.poll(handle)) if handle else "never submitted",
        "ranks": config.ranks,
        "nodes": config.launch.nodes,
        "step": max(timeline(run.events).steps, default=0),
        "steps": config.total_steps,
        "committed": max(committed(run), default=0),
        "ended": ended.status if ended else "",
        "reason": ended.reason if ended else "",
        "log": str(run.log),
    }


def _show(facts: dict[str, Any], as_json: bool) -> None:
    from plinth_jobs.cli import output

    if as_json:
        output.emit_json(facts)
        return
    output.heading(f"{facts['run']}: {facts['state']}")
    output.facts(
        {
            "launcher": f"{facts['launcher']}, job {facts['job']} on {facts['host']}"
            if facts["job"]
            else facts["launcher"],
            "ranks": f"{facts['ranks']} on {counted(facts['nodes'], 'node')}",
            "step": f"{facts['step']:,} of {facts['steps']:,}, committed {facts['committed']:,}",
            **({"ended": f"{facts['ended']} {facts['reason']}".rstrip()} if facts["ended"] else {}),
            "log": facts["log"],
        }
    )
