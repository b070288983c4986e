"""`plinth scale`: an estimate of a corpus of any size, from measured speeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.operation.planning.corpus import CorpusEstimate

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
    epilog=examples("plinth scale 100TB --html 600TB --cores 4000", "plinth scale 2TB --core-hour 0.03 --json")
)
@shared
@click.argument("text", type=Bytes())
@click.option("--html", type=Bytes(), default="0", help="HTML that the text is extracted from; 0 for plain text.")
@click.option("--cores", type=click.IntRange(1), default=1000, show_default=True, help="Cores in use at once.")
@click.option("--document", type=Bytes(), default="5300", show_default=True, help="Mean length of a document.")
@click.option("--core-hour", type=click.FloatRange(0), default=0.04, show_default=True, help="Price of a core hour.")
@click.option(
    "--network", type=click.FloatRange(0, min_open=True), default=0.3, show_default=True, help="Gbit/s a core."
)
@json_option
def scale(
    settings: Settings,
    text: float,
    html: float,
    cores: int,
    document: float,
    core_hour: float,
    network: float,
    as_json: bool,
) -> None:
    """Estimate tasks, core hours, bytes, requests, money and wall clock for a corpus of TEXT bytes.

    Speeds per core are measured, a few are estimated (docs/scale.md). All else is multiplication.
    """
    from jobs.cli import output
    from plinth.operation.planning.corpus import CorpusScale, estimate

    given = CorpusScale(
        text_bytes=text,
        html_bytes=html,
        document_bytes=document,
        cores=cores,
        core_hour=core_hour,
        gigabit_s_per_core=network,
    )
    made = estimate(given)
    if as_json:
        output.emit_json(made)
    else:
        _show(made, cores)


def _show(made: CorpusEstimate, cores: int) -> None:
    from jobs.cli import output

    output.heading(f"{made.documents:,} documents in {made.parts:,} parts, {cores:,} cores")
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
