"""Cost estimates for a training run and for a corpus, before they start.

    plan           a training run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
    fleet          all parallel layouts of a run on a fleet, ranked by time
    corpus         core hours, bytes and money for a corpus of any size, from measured rates or the rates of finished
                   runs

This package also defines the commands `plinth run plan` and `plinth corpus scale`, which import the other modules when
they run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth_lab.planning.corpus import Amount, CorpusEstimate, RunCosts
    from plinth_lab.planning.fleet import Fleet
    from plinth_lab.planning.plan import TrainingPlan
    from plinth_lab.scaling.predict import Purchase

_TIMES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class LargeNumber(click.ParamType[float]):
    """Parser for a number above 0 with an optional unit, such as `2M`, `1.5T` or `3e9`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)([KMBT]?)", str(value).upper().replace("E", "e"))
        amount = float(found[1]) * _TIMES[found[2]] if found else 0.0
        if not 0 < amount < float("inf"):
            self.fail(f"{value!r} is not a positive number; expected a number such as 2M, 1.5T or 3e9", param, ctx)
        return amount


def bought(
    dollars: float,
    fleet: Fleet,
    *,
    spot: bool,
    tokens: float | None,
    inference_tokens: float,
    unique_tokens: float | None,
    runs: Path | None,
) -> Purchase:
    """Return the model with the lowest loss that a budget in dollars buys on a fleet.

    Raises:
        RequestError: the budget buys no model (`purchase`), or the table of runs is invalid.
    """
    from plinth_lab.scaling import fitted_to
    from plinth_lab.scaling.fit import DRAWS
    from plinth_lab.scaling.law import DataReuse
    from plinth_lab.scaling.predict import purchase

    fitted = fitted_to(runs, DRAWS) if runs else None
    reuse = DataReuse(unique_tokens=unique_tokens) if unique_tokens else None
    return purchase(
        dollars, fleet.size, fleet.device.device, spot=spot, tokens=tokens, inference_tokens=inference_tokens,
        reuse=reuse, fitted=fitted,
    )  # fmt: skip


def show_purchase(found: Purchase, name: str, runs: Path | None) -> None:
    """Print the purchase of a model for a budget, as facts and a table."""
    from plinth.launch.devices import PRICES
    from plinth_jobs.cli import output
    from plinth_lab.scaling.fit import FAR

    output.heading(f"{found.dollars:,.0f} dollars on {found.devices} {name}")
    output.facts(
        {
            "device hours": f"{found.device_hours:,.0f} at {found.price_hour:.2f}",
            "wall clock": output.duration(found.seconds),
        }
    )
    rows = []
    for one in found.models:
        loss = f"{one.best.loss:.3f}"
        if one.loss is not None:
            loss = f"{one.loss.value:.4f} ({one.loss.level:.0%}: {one.loss.low:.4f} to {one.loss.high:.4f})"
        per = f"{one.best.tokens:.3g} ({one.best.tokens_per_parameter:.3g} a parameter)"
        times = one.preset_parameters / one.best.params
        near = f"{one.preset} ({one.preset_parameters:.3g})" if 0.5 <= times <= 2 else "none within a factor of 2"
        rows.append((f"{one.utilisation:.0%}", f"{one.flops:.3g}", f"{one.best.params:.3g}", per, loss, near))
    output.table(("utilization", "FLOPs", "parameters", "tokens", "loss", "nearest preset"), rows)
    output.heading("Uncertainty")
    lines = [
        "utilization: range of published runs, including pipeline bubble and communication; one row for each end "
        "of the range"
    ]
    lines.append(PRICES)
    if runs is None:
        lines.append("law: published constants (Besiroglu et al. 2404.10102) from other text and another tokenizer, so "
                     "your loss will differ; --runs TABLE fits the law to your own runs")  # fmt: skip
    elif times := max(one.extrapolation or 0.0 for one in found.models):
        far = ", FAR outside the range of the runs: intervals are not valid" if times > FAR else ""
        lines.append(f"law: fitted to {runs}; this budget is {times:.3g} x the largest budget in the table{far}")
    for line in lines:
        output.say(f"  - {line}")


@click.command(
    "plan",
    short_help="Estimate a training run: parameters, FLOPs, time, memory.",
    epilog=examples(
        "plinth run plan -r demo",
        "plinth run plan --tokens-per-second 47000 --precision bf16 --device h200",
        "plinth run plan -r demo --devices 64xH100 --precision bf16",
        "plinth run plan -r demo --devices 2xcpu",
        "plinth run plan --devices 512xH100 --budget 2M --tokens 1T --runs ladder.csv",
    ),
)
@shared
@recipe_option
@click.option(
    "--tokens-per-second",
    type=click.FloatRange(min=0, min_open=True),
    show_default="as recorded",
    help="Tokens per second over all ranks, to estimate wall-clock time.",
)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="Precision to assume if the recipe has `auto`.")
@click.option("--device", metavar="NAME", help="Device for the memory check: h100, a100-40, or a name in your table.")
@click.option(
    "--device-table", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file with your devices."
)
@click.option("--devices", metavar="NxNAME", help="Rank all parallel layouts on this fleet, such as 512xH100.")
@click.option("--spot", is_flag=True, help="Use spot prices.")
@click.option("--stall", type=click.FloatRange(min=0, min_open=True), show_default="as recorded, else 1",
              help="Seconds that training pauses to save a checkpoint, to compute the save interval.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Number of layouts to show.")
@click.option("--budget", type=LargeNumber(), metavar="DOLLARS", help="Find the best model that this amount of "
              "money trains on --devices, without a recipe.")  # fmt: skip
@click.option("--tokens", type=LargeNumber(), help="With --budget: training tokens (default: scaling law's optimum).")
@click.option("--inference-tokens", type=LargeNumber(), help="With --budget: number of tokens for later inference.")
@click.option("--unique-tokens", type=LargeNumber(), help="With --budget: number of unique training tokens.")
@click.option("--runs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="With --budget: table of your own runs, as for `scaling fit`.")  # fmt: skip
@click.option("--document-tokens", type=click.IntRange(min=1), help="Mean length of documents, to count causal FLOPs.")
@json_option
def plan_command(
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
    """Estimate parameters, tokens, steps, FLOPs, wall-clock time and memory per device for a recipe's run.

    Every assumption is printed below the numbers. The wall-clock time uses the speed of similar runs in this workspace
    on the same kind of device, or --tokens-per-second. With --budget, the command estimates the best model for the
    money, with the uncertainty of the estimate.
    """
    from plinth.launch import devices as known
    from plinth_jobs.cli import output
    from plinth_lab.planning import fleet as fleets
    from plinth_lab.planning.plan import plan as make

    table = known.read(device_table)
    fleet = None if devices is None else fleets.fleet_of(devices, table, settings.workspace, precision)
    if budget is not None:
        if fleet is None or fleet.device.machine:
            raise click.UsageError("--budget needs --devices with a price, such as 512xH100")
        found = bought(
            budget, fleet, spot=spot, tokens=tokens, inference_tokens=inference_tokens or 0.0,
            unique_tokens=unique_tokens, runs=runs,
        )  # fmt: skip
        output.emit_json(found) if as_json else show_purchase(found, fleet.device.name, runs)
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
        over = fleets.ranked(made, recipe, fleet, settings.workspace, stall)
        output.emit_json(fleets.as_record(over)) if as_json else fleets.show(over, spot, top)
        return
    recorded, broken = fleets.recorded_runs(settings.workspace)
    if tokens_per_second is None:
        made = fleets.at_recorded_speed(made, recipe, made.device, recorded)
    if as_json:
        output.emit_json(made)
    else:
        _show(made)
        fleets.show_errors(recorded, broken)


def _vocabulary(settings: Settings, recipe: Recipe) -> int | None:
    """Return the vocabulary size of the initial weights, or None if the recipe does not keep their tokenizer."""
    if (model := recipe.kept_vocabulary) is None:
        return None
    from plinth_assets.initial import vocabulary

    return vocabulary(settings.context(), model)


def _wall_clock(made: TrainingPlan) -> str:
    from plinth_jobs.cli import output

    if made.wall_clock_s is None:
        return "not known: no similar run on this device is recorded (state a speed with --tokens-per-second)"
    return f"{output.duration(made.wall_clock_s)} at {made.tokens_per_second:,.0f} tokens/s ({made.speed_source})"


def _show(made: TrainingPlan) -> None:
    from plinth_jobs.cli import output

    size = "" if made.tokens == made.steps * made.global_batch_tokens else "up to "
    output.heading(f"{made.recipe}: {counted(made.steps, 'step')} of {size}{made.global_batch_tokens:,} tokens")
    output.facts(
        {
            "parameters": f"{made.parameters:,} ({made.parameters_without_embeddings:,} without embeddings)",
            **(
                {} if made.active_parameters == made.parameters else {"active": f"{made.active_parameters:,} per token"}
            ),
            "tokens": f"{made.tokens:,} ({made.tokens_per_parameter:.3g} per parameter)",
            "FLOPs": f"{made.flops_exact:.3g} by PaLM's formula, {made.flops_causal:.3g} causal, "
            f"{made.flops_hardware:.3g} on the hardware, {made.flops_6nd:.3g} as 6 N D",
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
        output.say(f"  {word} on {made.device} ({output.size(made.device_bytes)}; the estimate uses 90%)")
    output.heading("Assumptions")
    for line in made.assumptions:
        output.say(f"  - {line}")


WORKSPACE = click.Path(path_type=Path, exists=True, file_okay=False)
UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


class Bytes(click.ParamType[float]):
    """Parser for a number of bytes with a decimal unit, such as `100TB` or `3.5 GB`."""

    name = "bytes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)B?\s*", str(value), re.IGNORECASE)
        if not found:
            self.fail(f"{value!r} is not a size; expected a size such as 100TB or 3.5GB", param, ctx)
        return float(found[1]) * UNITS[found[2].upper()]


@click.command(
    short_help="Estimate a corpus of any size: core hours, bytes, money.",
    epilog=examples(
        "plinth corpus scale 100TB --html 600TB --cores 4000",
        "plinth corpus scale 2TB --core-hour 0.03 --json",
        "plinth corpus scale 2TB --rates trial-10GB --rates trial-30GB",
        "plinth corpus scale --check workspace --rates trial-10GB",
    ),
)
@shared
@click.argument("text", type=Bytes(), required=False)
@click.option("--html", type=Bytes(), default="0", help="Size of the HTML source; 0 for plain text.")
@click.option("--cores", type=click.IntRange(1), default=1000, show_default=True, help="Number of concurrent cores.")
@click.option("--document", type=Bytes(), default="5300", show_default=True, help="Mean document length.")
@click.option("--core-hour", type=click.FloatRange(0), default=0.04, show_default=True, help="Dollars per core-hour.")
@click.option(
    "--network",
    type=click.FloatRange(0, min_open=True),
    default=0.3,
    show_default=True,
    help="Network bandwidth in Gbit/s per core.",
)
@click.option(
    "--rates",
    type=WORKSPACE,
    multiple=True,
    help="Use the rates of the run in this workspace. Repeatable: several runs are fitted by a line.",
)
@click.option("--check", type=WORKSPACE, help="Compare the estimate with the cost of the run in this workspace.")
@json_option
def scale(
    settings: Settings,
    text: float | None,
    html: float,
    cores: int,
    document: float,
    core_hour: float,
    network: float,
    rates: tuple[Path, ...],
    check: Path | None,
    as_json: bool,
) -> None:
    """Estimate tasks, core hours, bytes, requests, money and wall-clock time for a corpus of TEXT bytes.

    Most speeds per core are measured, and a few are estimated (docs/scale.md). With --rates, the speeds come from runs
    on your machines. `--check` compares a finished run with the prediction for its text.
    """
    from plinth.storage.state import State
    from plinth.storage.workspace import Workspace
    from plinth_jobs.cli import output
    from plinth_lab.planning.corpus import CorpusScale, compare, estimate, of_run

    if (text is None) == (check is None):
        raise click.UsageError("expected TEXT or --check")
    runs = [of_run(State(Workspace(path))) for path in rates]
    if text is None or check is not None:
        assert check is not None
        run = of_run(State(Workspace(check)))
        _show_check(run, compare(run, runs), as_json)
        return
    given = CorpusScale(
        text_bytes=text,
        html_bytes=html,
        document_bytes=document,
        cores=cores,
        core_hour=core_hour,
        gigabit_s_per_core=network,
    )
    made = estimate(given, runs)
    if as_json:
        output.emit_json(made)
    else:
        _show_scale(made, cores)


def _show_scale(made: CorpusEstimate, cores: int) -> None:
    from plinth_jobs.cli import output

    output.heading(f"{counted(made.documents, 'document')} in {counted(made.parts, 'part')}, {counted(cores, 'core')}")
    rows = [
        [
            row.stage,
            row.speed,
            f"{row.tasks:,}",
            f"{row.core_hours:,.0f}",
            output.size(row.read_bytes),
            output.size(row.written_bytes),
            f"{row.hours:.1f}",
        ]
        for row in made.rows
    ]
    header = ["stage", "a core", "tasks", "core hours", "read", "written", "hours"]
    output.table(header, rows, right=header[1:])
    output.facts(
        {
            "core hours": f"{made.core_hours:,.0f}",
            "wall clock": f"{made.hours:,.1f} hours",
            "read, written": f"{output.size(made.read_bytes)}, {output.size(made.written_bytes)}",
            "requests": f"{made.requests:,.0f}",
            "kept": output.size(made.stored_bytes),
            "largest task holds": output.size(made.largest_task_bytes),
            "compute": f"{made.compute_cost:,.0f}",
            "requests cost": f"{made.request_cost:,.0f}",
            "storage a month": f"{made.storage_cost_month:,.0f}",
        }
    )
    output.say("Costs are in US dollars.")


def _show_check(run: RunCosts, found: Mapping[str, tuple[Amount | None, Amount]], as_json: bool) -> None:
    from plinth_jobs.cli import output
    from plinth_lab.planning.corpus import sum_amounts

    if as_json:
        stages = {stage: {"predicted": a and a._asdict(), "measured": b._asdict()} for stage, (a, b) in found.items()}
        output.emit_json({"text_bytes": run.text_bytes, "parts": run.parts, "spared": run.spared, "stages": stages})
        return
    documents = f"{counted(run.documents, 'document')} in {counted(run.parts, 'part')}"
    output.heading(f"{output.size(run.text_bytes)} of text, {documents}")
    rows = [[stage, *_compared(predicted, measured)] for stage, (predicted, measured) in found.items()]
    predicted = sum_amounts(one for one, _ in found.values() if one)
    measured = sum_amounts(one for _, one in found.values())
    header = ["stage", "CPU s", "measured", "ratio", "operations", "measured ", "ratio "]
    output.table(header, [*rows, ["in all", *_compared(predicted, measured)]], right=header[1:])
    wall = f"{predicted.wall_s:,.0f} s predicted, " if predicted.wall_s else ""
    output.facts({"wall clock": f"{wall}{measured.wall_s:,.0f} s measured, including other work of the machine"})
    if run.spared:
        output.say(f"{run.spared:.0%} of the items came from the step cache; a run without the cache costs more.")


def _compared(predicted: Amount | None, measured: Amount) -> list[str]:
    cells = []
    for name in ("cpu_s", "operations"):
        digits = ".1f" if name == "cpu_s" else ".0f"
        was = getattr(measured, name)
        if predicted is None:
            cells += ["not counted", f"{was:,{digits}}", ""]
            continue
        said = getattr(predicted, name)
        cells += [f"{said:,{digits}}", f"{was:,{digits}}", f"{said / was:.2f}" if was else ""]
    return cells
