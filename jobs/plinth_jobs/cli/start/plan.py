"""`plinth run plan`: an estimate of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared
from plinth_jobs.cli.start.purchases import LargeNumber

if TYPE_CHECKING:
    from plinth.operation.planning.plan import TrainingPlan
    from plinth.recipe.recipe import Recipe


@click.command(
    epilog=examples(
        "plinth run plan -r demo", "plinth run plan --tokens-per-second 47000 --precision bf16 --device h200",
        "plinth run plan -r demo --devices 64xH100 --precision bf16",
        "plinth run plan -r demo --devices 2xcpu",
        "plinth run plan --devices 512xH100 --budget 2M --tokens 1T --runs ladder.csv",
    )
)
@shared
@recipe_option
@click.option(
    "--tokens-per-second", type=click.FloatRange(min=0, min_open=True), show_default="as recorded",
    help="Speed of all ranks, for the wall clock.",
)
@click.option(
    "--precision", type=click.Choice(["fp32", "bf16"]), help="Precision of the machine, where the recipe has `auto`."
)
@click.option("--device", metavar="NAME", help="Device to check the memory against: h100, a100-40, one of your table.")
@click.option(
    "--device-table", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML of devices of your own."
)
@click.option("--devices", metavar="NxNAME", help="Rank every division of the run over so many: 512xH100.")
@click.option("--spot", is_flag=True, help="At the price of devices that may be taken away.")
@click.option("--stall", type=click.FloatRange(min=0, min_open=True), show_default="as recorded, else 1",
              help="Seconds that a save holds training up, for the interval between saves.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Divisions to show.")
@click.option("--budget", type=LargeNumber(), metavar="DOLLARS", help="What the best model is that so much money buys "
              "on --devices; needs no recipe.")  # fmt: skip
@click.option("--tokens", type=LargeNumber(), help="With --budget: train on so many, 1T; by default the law says.")
@click.option("--inference-tokens", type=LargeNumber(), help="With --budget: tokens to read and write later.")
@click.option("--unique-tokens", type=LargeNumber(), help="With --budget: text that there is; more is repetition.")
@click.option("--runs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="With --budget: your own ladder, as of `plinth experiment scaling fit`.")  # fmt: skip
@click.option("--document-tokens", type=click.IntRange(min=1), help="Mean length of documents, for causal FLOPs.")
@json_option
def plan(
    settings: Settings,
    tokens_per_second: float | None,
    precision: Literal["fp32", "bf16"] | None,
    device: str | None,
    device_table: Path | None,
    devices: str | None,
    spot: bool,
    stall: float | None,
    top: int,
    budget: float | None,
    tokens: float | None,
    inference_tokens: float | None,
    unique_tokens: float | None,
    runs: Path | None,
    document_tokens: int | None,
    as_json: bool,
) -> None:
    """Estimate parameters, tokens, steps, FLOPs, wall clock and memory per device of a recipe's run.

    Every assumption is printed below the numbers. The wall clock is at the speed that like runs of this workspace
    reached on the same kind of device, or at --tokens-per-second. With --budget: the best model that the money buys,
    and how sure that is.
    """
    from plinth.launch import devices as known
    from plinth.operation.planning.plan import plan as make
    from plinth_jobs.cli import output
    from plinth_jobs.cli.start import divisions, purchases

    table = known.read(device_table)
    fleet = None if devices is None else divisions.fleet_of(devices, table, settings.workspace, precision)
    if budget is not None:
        if fleet is None or fleet.device.machine:
            raise click.UsageError("--budget needs --devices that have a price, such as 512xH100")
        found = purchases.made(
            budget, fleet, spot=spot, tokens=tokens, inference_tokens=inference_tokens or 0.0,
            unique_tokens=unique_tokens, runs=runs,
        )  # fmt: skip
        output.emit_json(found) if as_json else purchases.show(found, fleet.device.name, runs)
        return
    if fleet is not None:
        device, table = fleet.device.name, {**table, fleet.device.name: fleet.device.device}
        precision = precision or ("fp32" if fleet.device.machine else "bf16")  # which every device of the table has
    recipe = settings.load_recipe()
    made = make(
        recipe, tokens_per_second=tokens_per_second, vocab_size=_vocabulary(settings, recipe), precision=precision,
        device=device, table=table, document_tokens=document_tokens,
    )  # fmt: skip
    if fleet is not None:
        over = divisions.ranked(made, recipe, fleet, settings.workspace, stall)
        output.emit_json(divisions.as_record(over)) if as_json else divisions.show(over, spot, top)
        return
    recorded, broken = divisions.recorded_runs(settings.workspace)
    if tokens_per_second is None:
        made = divisions.at_recorded_speed(made, recipe, made.device, recorded)
    if as_json:
        output.emit_json(made)
    else:
        _show(made)
        divisions.show_errors(recorded, broken)


def _vocabulary(settings: Settings, recipe: Recipe) -> int | None:
    """Size of the vocabulary that a recipe keeps from the weights it begins from."""
    if (model := recipe.kept_vocabulary) is None:
        return None
    from plinth_assets.initial import vocabulary

    return vocabulary(settings.context(), model)


def _wall_clock(made: TrainingPlan) -> str:
    from plinth_jobs.cli import output

    if made.wall_clock_s is None:
        return "not known: no run of such a model on this device is recorded (--tokens-per-second states a speed)"
    return f"{output.duration(made.wall_clock_s)} at {made.tokens_per_second:,.0f} tokens/s ({made.speed_source})"


def _show(made: TrainingPlan) -> None:
    from plinth_jobs.cli import output

    size = "" if made.tokens == made.steps * made.global_batch_tokens else "up to "
    output.heading(f"{made.recipe}: {counted(made.steps, 'step')} of {size}{made.global_batch_tokens:,} tokens")
    output.facts(
        {
            "parameters": f"{made.parameters:,} ({made.parameters_without_embeddings:,} without embeddings)",
            "tokens": f"{made.tokens:,} ({made.tokens_per_parameter:.3g} per parameter)",
            "FLOPs": f"{made.flops_exact:.3g} as PaLM's, {made.flops_causal:.3g} causal, {made.flops_hardware:.3g} by "
            f"hardware, {made.flops_6nd:.3g} as 6 N D",
            "wall clock": _wall_clock(made),
            "ranks": f"{made.ranks} ({made.division}; ZeRO {made.zero_stage}, {made.precision})",
            "gradients": made.gradients.text(),
        }
    )
    output.heading("Parameters" + (f" of preset {made.preset}" if made.preset else ""))
    places = made.parameters_by_place.model_dump().items()
    output.facts({name.replace("_", " "): f"{n:,} ({n / made.parameters:.1%})" for name, n in places})
    output.heading("Memory per device")
    parts = {name: output.size(value) for name, value in made.memory_per_device.model_dump().items()}
    output.facts({**parts, "total": output.size(made.memory_per_device.total)})
    stages = (f"ZeRO {stage} {output.size(total)}" for stage, total in made.memory_by_zero_stage.items())
    output.say(f"  by stage: {', '.join(stages)}")
    if made.device_bytes is not None:
        word = "fits" if made.fits else "does NOT fit"
        output.say(f"  {word} on {made.device} ({output.size(made.device_bytes)}, of which nine tenths are counted on)")
    output.heading("Assumptions")
    for line in made.assumptions:
        output.say(f"  - {line}")
