"""`plinth corpus scale`: an estimate of a corpus of any size, from measured speeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth_lab.planning.corpus import Amount, CorpusEstimate, RunCosts

WORKSPACE = click.Path(path_type=Path, exists=True, file_okay=False)
UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


class Bytes(click.ParamType[float]):
    """A number of bytes with a decimal unit: `100TB`, `3.5 GB`."""

    name = "bytes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)B?\s*", str(value), re.IGNORECASE)
        if not found:
            self.fail(f"{value!r} is no size; write it like 100TB or 3.5GB", param, ctx)
        return float(found[1]) * UNITS[found[2].upper()]


@click.command(
    short_help="Estimate a corpus of any size: core hours, bytes, money.",
    epilog=examples(
        "plinth corpus scale 100TB --html 600TB --cores 4000",
        "plinth corpus scale 2TB --core-hour 0.03 --json",
        "plinth corpus scale 2TB --rates trial-10GB --rates trial-30GB",
        "plinth corpus scale --check workspace --rates trial-10GB",
    )
)
@shared
@click.argument("text", type=Bytes(), required=False)
@click.option("--html", type=Bytes(), default="0", help="HTML that the text is extracted from; 0 for plain text.")
@click.option("--cores", type=click.IntRange(1), default=1000, show_default=True, help="Cores in use at once.")
@click.option("--document", type=Bytes(), default="5300", show_default=True, help="Mean length of a document.")
@click.option("--core-hour", type=click.FloatRange(0), default=0.04, show_default=True, help="US dollars a core hour.")
@click.option(
    "--network", type=click.FloatRange(0, min_open=True), default=0.3, show_default=True, help="Gbit/s a core."
)
@click.option(
    "--rates",
    type=WORKSPACE,
    multiple=True,
    help="Rates of the run in this workspace, instead of the measured ones; of several runs a line is fitted.",
)
@click.option("--check", type=WORKSPACE, help="Compare with what the run in this workspace cost.")
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
    """Estimate tasks, core hours, bytes, requests, money and wall clock for a corpus of TEXT bytes.

    Speeds per core are measured, a few are estimated (docs/scale.md), or those of runs on your machines. All else is
    multiplication. `--check` compares a finished run with what is predicted for its text.
    """
    from plinth.storage.state import State
    from plinth.storage.workspace import Workspace
    from plinth_jobs.cli import output
    from plinth_lab.planning.corpus import CorpusScale, compare, estimate, of_run

    if (text is None) == (check is None):
        raise click.UsageError("give the TEXT of a corpus, or a run to --check")
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
        _show(made, cores)


def _show(made: CorpusEstimate, cores: int) -> None:
    from plinth_jobs.cli import output

    output.heading(f"{counted(made.documents, 'document')} in {counted(made.parts, 'part')}, {counted(cores, 'core')}")
    rows = [
        [
            row.stage,
            f"{row.tasks:,}",
            f"{row.core_hours:,.0f}",
            output.size(row.read_bytes),
            output.size(row.written_bytes),
            f"{row.hours:.1f}",
        ]
        for row in made.rows
    ]
    header = ["stage", "tasks", "core hours", "read", "written", "hours"]
    output.table(header, rows, right=header[1:])
    output.facts(
        {
            "core hours": f"{made.core_hours:,.0f}",
            "wall clock": f"{made.hours:,.1f} hours",
            "read, written": f"{output.size(made.read_bytes)}, {output.size(made.written_bytes)}",
            "requests": f"{made.requests:,.0f}",
            "kept": output.size(made.stored_bytes),
            "largest task holds": output.size(made.component_bytes),
            "compute": f"{made.compute_cost:,.0f}",
            "requests cost": f"{made.request_cost:,.0f}",
            "storage a month": f"{made.storage_cost_month:,.0f}",
        }
    )
    output.say("Money is in US dollars.")


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
    output.facts({"wall clock": f"{wall}{measured.wall_s:,.0f} s measured, whatever else the machine did"})
    if run.spared:
        output.say(f"Of the items {run.spared:.0%} were done already; a run from scratch costs more.")


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
