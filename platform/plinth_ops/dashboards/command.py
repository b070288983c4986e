"""`plinth ops dashboards`: Grafana's JSON of every dashboard."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plinth_jobs.cli.options import examples


@click.command(
    short_help="Write Grafana's dashboards.",
    epilog=examples("plinth ops dashboards --out dashboards"),
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write into.")
def dashboards(out: Path) -> None:
    """Write the dashboards (executive, on-call, debug, data) as JSON that Grafana imports or is provisioned with."""
    from plinth.storage.atomic import write_bytes
    from plinth_jobs.cli import output
    from plinth_ops.dashboards.table import DASHBOARDS, dashboard

    for one in DASHBOARDS:
        path = out / f"{one.name}.json"
        write_bytes(path, json.dumps(dashboard(one), indent=2).encode() + b"\n")
        output.line(str(path))
