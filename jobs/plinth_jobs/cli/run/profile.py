"""`plinth run profile`: a trace of chosen steps of a run that is under way."""

from __future__ import annotations

import re

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared


def _steps(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r}; expected a step or a range, for example 100 or 100-103")
    first = int(found[1])
    return first, int(found[2] or first)


def _ranks(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", value.strip()):
        raise click.BadParameter(f"{value!r}; expected ranks, for example 0,8")
    return tuple(sorted({int(rank) for rank in value.split(",")}))


@click.command(
    epilog=examples("plinth run profile latest --steps 100-103", "plinth run profile latest --steps 500 --ranks 0,8")
)
@click.argument("run")
@click.option("--steps", required=True, callback=_steps, metavar="FIRST-LAST", help="Steps that are still to come.")
@click.option("--ranks", default="0", show_default=True, callback=_ranks, metavar="R,…", help="Ranks that record.")
@shared
@json_option
def profile(settings: Settings, run: str, steps: tuple[int, int], ranks: tuple[int, ...], as_json: bool) -> None:
    """Ask RUN (`latest`, a run id or a prefix of it) for a `torch.profiler` trace of steps it has not taken yet.

    The ranks learn of it within a second and a step, without waiting for anything. Each named rank writes one file,
    which https://ui.perfetto.dev opens; an event `profiled` of the timeline says that they are there. A run that is not
    up records when it comes to these steps.
    """
    from plinth.training import amendments
    from plinth.training.telemetry import profiler
    from plinth_jobs.cli import output

    config = settings.run_config(run)
    request = profiler.submit(config, amendments.reached(config), *steps, ranks)
    files = [str(request.trace(config.directory, rank)) for rank in ranks]
    if as_json:
        output.emit_json({"run": config.run_id, "request": request.number, "steps": list(steps), "files": files})
        return
    output.say(f"{config.run_id} will trace steps {steps[0]} to {steps[1]}:")
    for file in files:
        output.say(file)
