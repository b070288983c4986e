"""`plinth run upgrade`: continue a run with other code, after that code has repeated the run's last steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import RequestError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared
from plinth_jobs.cli.runs import require_code_of_recipe

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.compute.progress import Meter
    from plinth.training.config import RunConfig
    from plinth.training.telemetry.timeline import TimelineReader
    from plinth.training.upgrade.record import CodeComparison

POLL_S = 0.5


@click.command(
    epilog=examples(
        "plinth run upgrade latest --to HEAD",
        "plinth run upgrade latest --to 1f3a9c2 --max-increase 0.0005",
        "plinth run upgrade latest --python /opt/plinth-new/bin/python",
    )
)
@click.argument("run")
@click.option("--to", "commit", metavar="COMMIT", help="Git commit in the work tree from which Plinth runs.")
@click.option(
    "--python",
    "interpreter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Interpreter of another environment with Plinth, for example one with other libraries.",
)
@click.option(
    "--from", "start", type=click.IntRange(min=1), metavar="STEP", help="Repeat from the checkpoint at STEP or before."
)
@click.option(
    "--max-increase",
    type=click.FloatRange(min=0),
    help="Largest accepted increase of the loss by all changes of the run's code together: the sum of the upper ends "
    "of their 95% intervals, in nats per token.  [default: 0.001]",
)
@shared
@json_option
def upgrade(
    settings: Settings,
    run: str,
    commit: str | None,
    interpreter: Path | None,
    start: int | None,
    max_increase: float | None,
    as_json: bool,
) -> int:
    """Continue RUN with other code, if that code repeats its last steps as well as the code that took them.

    The job saves and stops. The next job runs the other code on the machines of the run: it loads the checkpoint before
    the newest, repeats the steps up to the newest, and compares losses, parameters, optimizer state, batches and random
    numbers. If all are equal, or the loss is not higher by more than earlier changes of the code have left of
    `--max-increase`, the job continues, and the comparison is signed with the attempt. Fewer than eight steps must also
    differ no more than two repetitions do. Otherwise the job ends, the exit code of this command is 6, and `plinth run`
    continues with the earlier code.
    """
    from plinth.training.telemetry.timeline import TimelineReader
    from plinth.training.upgrade import environment
    from plinth_jobs.targets import find_run

    if (commit is None) == (interpreter is None):
        raise RequestError("give either --to COMMIT or --python INTERPRETER")
    ctx = settings.context()
    config = find_run(ctx, run)
    _require_compared(config)
    require_code_of_recipe(settings, config)
    with ctx.progress.meter("preparing the new code", 0):
        python = interpreter.absolute() if interpreter else environment.of_commit(commit or "")
        _require_other_code(config, environment.software(python, config), python)
    _require_span(config, start)
    seen = TimelineReader(config.directory.events)
    seen.poll()
    with ctx.progress.meter("saving and stopping the job", 0):
        first, last = _stop(ctx, config, start, max_increase)
    if not as_json:
        output.say(f"{config.run_id}: the new code repeats steps {first + 1:,} to {last:,}")
    with ctx.progress.meter(f"repeating steps {first + 1:,} to {last:,}", 0) as meter:
        environment.submitted(python, config, "--workspace", str(settings.workspace.absolute()))
        found = _verdict(config, seen, meter)
    if as_json:
        output.emit_json({"run": config.run_id, "from_step": first, "to_step": last, **found.model_dump(mode="json")})
    else:
        output.say(f"{'accepted' if found.accepted else 'refused'}: {found.in_words}")
    return 0 if found.accepted else 6


def _require_compared(config: RunConfig) -> None:
    """Raise an error if the code of this run cannot be compared."""
    from plinth.training import attempts
    from plinth.training.shared_run.shipping import is_shared

    if not attempts.known(config.directory):
        raise RequestError(
            f"run {config.run_id} has not started", expected="a run with two checkpoints", remedy="`plinth run`"
        )
    if config.trainer is not None:
        raise RequestError(
            f"run {config.run_id} has a trainer of your own, whose code Plinth does not compare",
            remedy="stop the job, install the new code and run `plinth run`",
        )
    if is_shared(config.directory):
        raise RequestError(
            f"the code of run {config.run_id} cannot be compared, because its workspace is a bucket",
            expected="a workspace in a folder that the machines of the run share",
            remedy="stop the job and run `plinth run` with the new code; the change is then not compared",
        )


def _require_other_code(config: RunConfig, found: dict[str, Any], python: Path) -> None:
    from plinth.training.upgrade.comparison import trained

    if found["trains_with"] == trained(config.directory)[-1].hosts[0].trains_with:
        raise RequestError(
            f"run {config.run_id} is trained by this code already",
            found=f"{python}: version {found['version']}, commit {found['commit'] or 'unknown'}",
            expected="other files of the package `plinth`, or other versions of torch, DeepSpeed, NumPy or Python",
        )


def _stop(ctx: Context, config: RunConfig, start: int | None, max_increase: float | None) -> tuple[int, int]:
    """Stop the job, and request the comparison. Return the steps of the checkpoints between which steps are
    repeated."""
    from plinth.training.checkpoint.checkpoint import committed
    from plinth.training.forensics.proof import span
    from plinth.training.job import cancel
    from plinth.training.upgrade.record import MAX_INCREASE, UpgradeRequest, ask

    cancel(ctx, config)
    first, commits = span(config, _start(start, committed(config.directory)))
    limit = MAX_INCREASE if max_increase is None else max_increase
    ask(config.directory, UpgradeRequest(from_step=first, max_increase=limit))
    return first, commits[-1]


def _require_span(config: RunConfig, start: int | None) -> None:
    """Raise an error, before the job is stopped, if there would be no steps to repeat. The stop commits another
    checkpoint, and may delete an older one, unless the current step is committed already."""
    from plinth.training.checkpoint.checkpoint import committed
    from plinth.training.checkpoint.selection import kept
    from plinth.training.forensics.proof import span
    from plinth.training.run_state import launcher_of
    from plinth.training.stopping import last_step

    commits, last = committed(config.directory), last_step(config)
    if last in commits:
        raise RequestError(f"run {config.run_id} has taken its last step, {last:,}", expected="steps for the new code")
    span(config, _start(start, commits), commits)
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is not None and launcher.poll(handle).alive:
        after = [*commits, commits[-1] + 1]
        after = sorted(kept(config.checkpoints, after, {}, {config.audit_step}))
        span(config, _start(start, after), after)


def _start(start: int | None, commits: Sequence[int]) -> int:
    """Return the step up to which the checkpoint to repeat from may be: before the newest one."""
    return start or max(1, max(commits, default=1) - 1)


def _verdict(config: RunConfig, seen: TimelineReader, meter: Meter) -> CodeComparison:
    """Wait until the new job has compared the code, and return the comparison. The progress names the last event.

    Raises:
        TrainingError: the job ended without a comparison, or another process has resumed the run.
    """
    from plinth.errors import TrainingError
    from plinth.training.run_state import launcher_of, result
    from plinth.training.upgrade.record import REFUSED, UPGRADED, comparison_of, requested

    run, launcher, found = config.directory, launcher_of(config), None
    while True:
        handle = launcher.find(run.root)
        alive = handle is not None and launcher.poll(handle).alive
        waits = requested(run) is not None
        for event in seen.poll():  # after the state, so the last events of an ending job are read
            meter.advance(0, str(event["event"]).replace("_", " "))
            if event["event"] in (UPGRADED, REFUSED):
                found = comparison_of(event)
        if found is not None and (found.accepted or not alive):  # a refused job ends
            return found
        if found is None and not (alive and waits):
            ended = result(config)
            reason = f"the job ended: {ended.reason if ended else 'it is gone'}"
            raise TrainingError(
                f"the code of run {config.run_id} was not compared",
                found=reason if waits else "another process resumed the run with the earlier code",
                remedy=f"see `plinth run job logs {config.run_id}`, then run the command again; `plinth run` continues "
                "with the earlier code",
            )
        time.sleep(POLL_S)
