"""Commands about training runs: `plinth run job | timeline | goodput | profile | audit`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import RequestError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.training.config import RunConfig


@group(
    epilog=examples("plinth run job status latest", "plinth run job logs latest -n 20", "plinth run job cancel latest")
)
def job() -> None:
    """Inspect and control the job of a run. Control a local job on its own machine, and any other job from anywhere."""


@job.command(epilog=examples("plinth run job status latest", "plinth run job status latest --json | jq -r .status"))
@click.argument("run")
@shared
@json_option
def status(settings: Settings, run: str, as_json: bool) -> None:
    """Show the job of RUN: its launcher, host, state and last step."""
    _show(_facts(settings.run_config(run)), as_json)


@job.command(epilog=examples("plinth run job logs latest", "plinth run job logs latest -n 200"))
@click.argument("run")
@click.option("-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Number of log lines.")
@shared
def logs(settings: Settings, run: str, lines: int) -> None:
    """Show the last log lines of the supervisor and ranks of RUN."""
    from plinth.training.run_state import launcher_of
    from plinth.training.shared_run.shipping import newest_log

    config = settings.run_config(run)
    output.line(launcher_of(config).logs(newest_log(config.directory), lines))


@job.command(epilog=examples("plinth run job cancel latest"))
@click.argument("run")
@shared
@json_option
def cancel(settings: Settings, run: str, as_json: bool) -> None:
    """Signal the job of RUN to save and stop. The job is killed after the grace period of the recipe.

    The job is not requeued. Resume from the last committed checkpoint with `plinth run job submit RUN`.
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
    """Submit the job of RUN in the background, unless it is running or finished. A job of a scheduler must have the
    launcher settings of the recipe."""
    from plinth.operation.admission import submit as within_budget

    config = settings.run_config(run)
    require_code_of_recipe(settings, config)
    within_budget(settings.context(), config)
    _show(_facts(config), as_json)


@job.command(
    epilog=examples("plinth run job manifest latest > job.yaml", "plinth run job manifest latest | kubectl diff -f -")
)
@click.argument("run")
@shared
def manifest(settings: Settings, run: str) -> None:
    """Print the scheduler's input for RUN: a Slurm batch script, or Kubernetes manifests."""
    from plinth.launch.base import given
    from plinth.training.job import command, known_grant

    config = settings.run_config(run)
    directory, grace_s = config.directory, config.supervision.grace_s
    words = command(config, known_grant(config))
    output.line(given(config.launch, grace_s, words, directory.root, directory.log), end="")


def require_code_of_recipe(settings: Settings, config: RunConfig) -> None:
    """Check that the recipe has the launcher settings of a run's folder, because writers of the workspace could change
    those, and so run their code as this user.

    Raises:
        RequestError: the settings that decide which code the job runs differ.
    """
    from plinth.launch.parameters import code_settings

    stored = code_settings(config.launch)
    if not stored and config.trainer is None:
        return
    recipe = settings.load_recipe().training
    own = code_settings(recipe.launch)
    differing = [f"training.launch.{name}" for name, value in stored.items() if own.get(name) != value]
    differing += ["training.trainer"] if recipe.trainer != config.trainer else []
    if differing:
        raise RequestError(
            f"the job of run {config.run_id} would have other launcher settings than the recipe",
            found=f"{', '.join(differing)} in {config.directory.config}",
            expected="the recipe's settings, because they decide which code the job runs",
            remedy="`plinth run` submits the job with the recipe's settings; `-r FILE` names another recipe",
        )


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


@click.command(
    epilog=examples("plinth run timeline latest", "plinth run timeline latest --peak-tflops 989 --price 2.5")
)
@click.argument("run")
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--peak-tflops", type=click.FloatRange(min=0, min_open=True), help="Peak TFLOPS of a device, for MFU.")
@click.option(
    "--price", type=click.FloatRange(min=0), help="Price per rank-hour; default: the price in the workspace or recipe."
)
@shared
@json_option
def timeline(
    settings: Settings, run: str, target: Path | None, peak_tflops: float | None, price: float | None, as_json: bool
) -> None:
    """Write the page of RUN (`latest`, a run ID or a prefix of it) with all metrics on one time axis.

    The page shows loss, slices, gradient norm, speed, waits, memory, checkpoint age, interventions, restarts and
    mixture, and the time and cost by cause. The page is one self-contained file, and the run may still be running.
    """
    from plinth.operation import spending
    from plinth.report import run_page
    from plinth_jobs.targets import find_run

    ctx = settings.context()
    config = find_run(ctx, run)
    if price is None:
        price = spending.load(ctx.workspace).price(config.stopping.price_per_rank_hour) or None
    peak = peak_tflops * 1e12 if peak_tflops else None
    written = run_page.write(ctx, config, peak_flops=peak, price_per_rank_hour=price, target=target)
    if as_json:
        output.emit_json({"run": config.run_id, "page": str(written)})
    else:
        output.say(written)


@click.command(epilog=examples("plinth run goodput latest", "plinth run goodput latest --json | jq .rank_s"))
@click.argument("run")
@shared
@json_option
def goodput(settings: Settings, run: str, as_json: bool) -> None:
    """Account for every rank-second of RUN (`latest`, a run ID or a prefix of it) and of each attempt.

    The percentages are fractions of all rank-seconds, including queueing, and add up to 100.0. Goodput is a fraction of
    allocated rank-seconds only.
    """
    from plinth.operation import settlement as operation

    config = settings.run_config(run)
    ledger = operation.run_goodput(config)
    shares = ledger.percentages()
    if as_json:
        output.emit_json(
            {
                "run": config.run_id,
                "goodput": ledger.goodput,
                "total_rank_s": ledger.total_rank_s,
                "held_rank_s": ledger.held_rank_s,
                "lost_steps": ledger.lost_steps,
                "rank_s": ledger.rank_s,
                "percent": shares,
                "attempts": [one.model_dump(mode="json") for one in ledger.attempts],
            }
        )
        return
    level = (
        f"goodput {100 * ledger.goodput:.1f}% of {ledger.held_rank_s:,.1f} allocated rank-seconds (this share is the "
        "service level)"
    )
    queued = f"; {shares.get('goodput', 0):.1f}% including queueing" if "queue" in shares else ""
    output.line(f"{config.run_id}: {level}{queued}")
    for cause, share in shares.items():
        output.line(f"  {cause:<18}{ledger.rank_s[cause]:>14,.1f} rank-s{share:>7.1f}%")
    output.line(f"  {'total':<18}{ledger.total_rank_s:>14,.1f} rank-s{sum(shares.values()):>7.1f}%")


def _steps(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r}; expected a step or a range of steps, for example 100 or 100-103")
    first = int(found[1])
    return first, int(found[2] or first)


def _ranks(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", value.strip()):
        raise click.BadParameter(f"{value!r}; expected rank numbers, for example 0,8")
    return tuple(sorted({int(rank) for rank in value.split(",")}))


@click.command(
    epilog=examples("plinth run profile latest --steps 100-103", "plinth run profile latest --steps 500 --ranks 0,8")
)
@click.argument("run")
@click.option("--steps", required=True, callback=_steps, metavar="FIRST-LAST", help="Future steps to trace.")
@click.option("--ranks", default="0", show_default=True, callback=_ranks, metavar="R,…", help="Ranks to trace.")
@shared
@json_option
def profile(settings: Settings, run: str, steps: tuple[int, int], ranks: tuple[int, ...], as_json: bool) -> None:
    """Request a `torch.profiler` trace of future steps of RUN (`latest`, a run ID or a prefix of it).

    Each rank notices the request at most one second and one step after it is made. Each rank writes one file for
    https://ui.perfetto.dev. The timeline event `profiled` reports that the files are complete. A stopped run writes the
    trace when it is resumed and reaches these steps.
    """
    from plinth.training.job import reached
    from plinth.training.shared_run.shipping import require_free
    from plinth.training.telemetry import profiler

    config = settings.run_config(run)
    require_free(config.directory)  # ranks on other machines do not see the request
    request = profiler.submit(config, reached(config), *steps, ranks)
    files = [str(request.trace(config.directory, rank)) for rank in ranks]
    if as_json:
        output.emit_json({"run": config.run_id, "request": request.number, "steps": list(steps), "files": files})
        return
    output.say(f"{config.run_id} will trace steps {steps[0]} to {steps[1]}:")
    for file in files:
        output.say(file)


@group(epilog=examples("plinth run audit resume latest", "plinth run audit resume latest --from 100"))
def audit() -> None:
    """Check that a resumed run equals the uninterrupted run."""


@audit.command(
    epilog=examples("plinth run audit resume latest", "plinth run audit resume latest --from 100 --json | jq .equal")
)
@click.argument("run")
@click.option("--from", "start", type=click.IntRange(min=1), metavar="STEP", help="Replay from the checkpoint at STEP.")
@shared
@json_option
def resume(settings: Settings, run: str, start: int | None, as_json: bool) -> int:
    """Replay RUN from a committed checkpoint to its newest checkpoint, and compare every step and commit.

    The replay is compared in loss, gradient norm, learning rate, batches, skipped steps and interventions, and in
    parameters, optimizer state, random generators, monitor and guard. The evidence replaces resume.json, which the gate
    reads; earlier evidence stays in the run's audits/ folder. If anything differs, the exit code is 6, and the same
    steps are replayed once more to measure the nondeterminism of this hardware. For a run of your own trainer, Plinth
    replays sampled steps, and the exit code is 6 if they do not prove its order and data.
    """
    from plinth.training.forensics.order_proof import SampledStep, order_proof
    from plinth.training.forensics.proof import audit as run_audit

    config = settings.run_config(run)
    found = run_audit(config, start)
    order = None if config.trainer is None else order_proof(found)
    if as_json:
        output.emit_json(found)
    elif order is not None:
        output.heading(f"{config.run_id}: {order.in_words}")
        steps = [SampledStep.model_validate(row) for row in found["samples"]]
        rows = [
            (one.step, f"{one.reported:.6f}", f"{one.difference:.2g}", f"{min(one.shuffled_differences):.2g}")
            for one in steps
        ]
        output.table(("step", "loss", "difference", "nearest shuffled batch"), rows, right=("step", "loss"))
    else:
        _show_audit(config.run_id, found)
    return 0 if found["bit_exact"] or (order is not None and order.holds()) else 6


def _show_audit(run: str, found: dict[str, Any]) -> None:
    from plinth.training.forensics.proof import PARAMETERS, examined

    original = found["commits"][-1]["parts"][PARAMETERS]["original"]
    measured = examined(found, step=found["to_step"], parameters_sha256=original).tolerance
    verdict = "bit-exact" if found["bit_exact"] else "NOT bit-exact"
    output.heading(f"{run}: steps {found['from_step'] + 1} to {found['to_step']} replayed, {verdict}")
    largest = found["max_abs_difference"]
    output.facts(
        {
            "steps compared": found["compared_steps"],
            "skipped steps": len(found["skipped_steps"]["replayed"]),
            "ranks": f"{found['ranks']}, ZeRO-{found['zero_stage']}",
            **{f"equal {name}": equal for name, equal in found["equal"].items()},
            **{f"largest difference, {name}": value for name, value in largest.items()},
        }
    )
    if measured is not None:
        within = "; ".join(measured.faults) or "within the tolerance measured by two replays"
        output.heading(f"measured on {measured.hardware[0]}: {within}")
        bounds = [(name, f"{one.difference:.3g}", f"{one.bound:.3g}") for name, one in measured.bounds.items()]
        output.table(("quantity", "relative difference", "bound"), bounds, right=("relative difference", "bound"))
    rows = [
        (commit["step"], part, "yes" if value["equal"] else "no", json.dumps(value.get("replayed", ""))[:40])
        for commit in found["commits"]
        for part, value in commit["parts"].items()
    ]
    output.table(("checkpoint", "part", "equal", "replayed"), rows, right=("checkpoint",))
