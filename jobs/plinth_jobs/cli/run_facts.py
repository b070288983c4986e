"""Runs and their metrics as tables: `plinth run history | show`. `plinth run timeline` draws the same as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.training.config import RunConfig
    from plinth.training.telemetry.timeline import Event

#: Fields of a step that are shown; `plinth run timeline` draws the others.
FIELDS = ("step", "time", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_s", "data_wait_s", "vetoed")


@click.command(epilog=examples("plinth run history", "plinth run history --json | jq '.[] | {run, state, loss}'"))
@shared
@json_option
def history(settings: Settings, as_json: bool) -> None:
    """List all runs of the workspace, newest first, with state, last step, loss and goodput."""
    from plinth_jobs.targets import newest_runs
    from plinth_jobs.workspace_index import run_line

    ctx = settings.context()
    runs = [run_line(ctx, path) for path in newest_runs(ctx).values()]
    if as_json:
        return output.emit_json([one.model_dump(mode="json", exclude={"href"}) for one in runs])
    output.table(
        ("run", "state", "step", "of", "loss", "goodput", "updated"),
        [
            (one.run, one.state, one.steps, one.total_steps, one.loss,
             None if one.goodput is None else f"{one.goodput:.1%}", one.updated)
            for one in runs
        ],
        right=("step", "of", "loss", "goodput"),
    )  # fmt: skip
    return None


@click.command(
    epilog=examples(
        "plinth run show latest",
        "plinth run show latest --from 1200 --to 1300       around a loss spike",
        "plinth run show latest --json | jq '.steps | max_by(.loss)'",
    )
)
@click.argument("run")
@click.option("--from", "first", type=click.IntRange(min=1), default=1, show_default=True, help="First step.")
@click.option("--to", "last", type=click.IntRange(min=1), help="Last step; default: the newest.")
@click.option("--rows", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of steps.")
@click.option("--events", type=click.IntRange(min=0), default=20, show_default=True, help="Number of last events.")
@shared
@json_option
def show(settings: Settings, run: str, first: int, last: int | None, rows: int, events: int, as_json: bool) -> None:
    """Show the figures, metrics by step and last events of RUN (`latest`, a run ID or a prefix of it).

    If there are more steps than --rows, each row is the step with the highest loss of its group, so that no spike is
    hidden.
    """
    found = _facts(settings.run_config(run), first, last, rows, events)
    if as_json:
        return output.emit_json(found)
    output.heading(f"{found['run']}: {found['state']}, step {found['step']:,} of {found['total_steps']:,}")
    output.facts(found["figures"])
    names = [name for name in FIELDS if name != "time" and any(name in step for step in found["steps"])]
    output.table(names, [[step.get(name) for name in names] for step in found["steps"]], right=names)
    for event in found["events"]:
        output.line(_line(event))
    return None


def _line(event: Event) -> str:
    """Return the time (UTC), kind and facts of an event."""
    from plinth.report.run_metrics import words

    try:
        at, text = f"{datetime.fromtimestamp(float(event['time']), UTC):%Y-%m-%d %H:%M:%S}", words(event)
    except (ArithmeticError, KeyError, OSError, TypeError, ValueError):  # others may write the file
        at, text = "unreadable", str(event)
    return f"{at}  {event['event']:<15}  {text}".rstrip()


def _facts(config: RunConfig, first: int, last: int | None, rows: int, events: int) -> dict[str, Any]:
    from plinth.operation.settlement import run_goodput
    from plinth.training.run_state import run_state
    from plinth.training.telemetry.timeline import of_history, timeline

    found = timeline(config.directory.events)
    within = [event for step, event in found.steps.items() if first <= step <= (last or step)]
    return {
        "run": config.run_id,
        "state": str(run_state(config)),
        "step": max(found.steps, default=0),
        "total_steps": config.total_steps,
        "figures": {**of_history(found).known(), "goodput": run_goodput(config).goodput},
        "steps": [{name: step[name] for name in FIELDS if name in step} for step in peaks(within, rows)],
        "events": found.events[-events:] if events else [],
    }


def peaks(steps: Sequence[Event], rows: int) -> list[Event]:
    """Return at most `rows` steps: the step with the highest loss of each group of consecutive steps."""
    size = max(1, math.ceil(len(steps) / rows))
    return [max(steps[start : start + size], key=_loss) for start in range(0, len(steps), size)]


def _loss(step: Event) -> float:
    loss = float(step.get("loss", -math.inf))  # NaN and infinity are text in the timeline
    return math.inf if math.isnan(loss) else loss
