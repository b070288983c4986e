"""`plinth run checkpoint list | verify | average`: the committed checkpoints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.training.directory import RunDirectory

#: Degrees of a layout that are shown when they are not 1.
_DEGREES = ("tensor", "pipeline", "sequence")

CHANGED = 1


@group(epilog=examples("plinth run checkpoint list latest", "plinth run checkpoint verify latest"))
def checkpoint() -> None:
    """The checkpoints of a run. Each resumes on any layout of ranks that the recipe accepts."""


@checkpoint.command(
    "list", epilog=examples("plinth run checkpoint list latest", "plinth run checkpoint list latest --json")
)
@click.argument("run")
@shared
@json_option
def list_(settings: Settings, run: str, as_json: bool) -> None:
    """List the committed checkpoints of RUN: step, tokens, the layout that wrote each, and bytes."""
    from plinth.training.checkpoint import checkpoint as files
    from plinth_jobs.cli import output

    directory = settings.run_config(run).directory
    rows = [_row(directory, step) for step in files.committed(directory)]
    if as_json:
        output.emit_json(rows)
        return
    columns = ("step", "tokens", "written by", "precision", "GB", "remote")
    table = [
        (
            row["step"],
            f"{row['tokens']:,}",
            in_words(row["layout"]),
            row["precision"],
            f"{row['bytes'] / 1e9:.3f}",
            "yes" if row["uploaded"] else "",
        )
        for row in rows
    ]
    output.table(columns, table, right=("step", "tokens", "GB"))


@checkpoint.command(
    epilog=examples("plinth run checkpoint verify latest", "plinth run checkpoint verify latest 5000 --json")
)
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1), required=False)
@shared
@json_option
def verify(settings: Settings, run: str, step: int | None, as_json: bool) -> None:
    """Compare every byte of the checkpoints of RUN, or of STEP, with its record. Exit code 1 when any differs."""
    from plinth.errors import CheckpointError
    from plinth.training.checkpoint import checkpoint as files
    from plinth_jobs.cli import output

    directory, rows = settings.run_config(run).directory, []
    for number in files.committed(directory) if step is None else [step]:
        try:
            files.verify(directory, number)
        except CheckpointError as error:
            rows.append({"step": number, "intact": False, "reason": error.what})
        else:
            rows.append({"step": number, "intact": True, "reason": ""})
    if as_json:
        output.emit_json(rows)
    else:
        for row in rows:
            output.say(f"step {row['step']}: " + ("intact" if row["intact"] else f"refused: {row['reason']}"))
    if not all(row["intact"] for row in rows):
        raise click.exceptions.Exit(CHANGED)


@checkpoint.command(
    epilog=examples(
        "plinth run checkpoint average latest --steps 900,950,1000",
        "plinth run checkpoint average latest --steps 900,1000 --weights 1,3 --json",
        "plinth run checkpoint average latest --steps 1000 --ema",
    )
)
@click.argument("run")
@click.option("--steps", required=True, help="The checkpoints, as `900,950,1000`.")
@click.option("--weights", default="", help="A number above 0 for each; left out: all alike.")
@click.option("--ema", is_flag=True, help="The mean of weights that each keeps (training.optimizer.ema_decay).")
@shared
@json_option
def average(settings: Settings, run: str, steps: str, weights: str, ema: bool, as_json: bool) -> None:
    """Average committed checkpoints of RUN in FP32, as a checkpoint of its own, named by its digest.

    Commands that take a model take the digest. Every parent is verified first, and named by digest in the result, which
    is signed as trainer. training.checkpoints.average in a recipe evaluates and releases such a mean.
    """
    from plinth.training.averaging import average as averaged
    from plinth.training.checkpoint.mean_record import in_words as mean_in_words
    from plinth_jobs.cli import output
    from plinth_jobs.runs import find_run

    ctx = settings.context()
    config, chosen = find_run(ctx, run), _numbers(steps, int, "--steps")
    shares = _numbers(weights, float, "--weights") or [1.0] * len(chosen)
    made = averaged(ctx, config, chosen, shares, ema=ema)
    parents = {name: digest for name, digest in made.inputs.items() if name.startswith("checkpoint/")}
    if as_json:
        output.emit_json({"digest": made.digest, "parents": parents, **made.params})
        return
    output.say(f"checkpoint {made.digest}: {mean_in_words(made)}")
    output.table(("parent", "digest"), list(parents.items()))


def _numbers(text: str, kind: Any, option: str) -> list[Any]:
    try:
        return [kind(one) for one in text.split(",") if one]
    except ValueError as error:
        raise click.BadParameter(f"{error}; expected numbers between commas", param_hint=option) from error


def in_words(layout: dict[str, int]) -> str:
    """A layout in words: `4 ranks, ZeRO 1, tensor 2`."""
    ranks = layout["ranks"]
    divided = [f"{name} {layout[name]}" for name in _DEGREES if layout[name] > 1]
    return ", ".join([counted(ranks, "rank"), f"ZeRO {layout['zero_stage']}", *divided])


def _row(directory: RunDirectory, step: int) -> dict[str, Any]:
    from plinth.training.checkpoint import checkpoint as files

    state = files.read_state(directory, step)
    return {
        **{name: state[name] for name in ("step", "tokens", "layout", "precision", "parameters_sha256")},
        "bytes": files.stated_bytes(directory, step),
        "uploaded": files.is_uploaded(directory, step),
    }
