"""Metrics in the Prometheus text format.

    table       names, labels and meaning of all metrics
    exporter    collects each part at its own interval; serves or writes the text
    parts       parts of a workspace (runs, disk, alarms, orchestrator, corpus, budget); parts that read much data
                run in a separate process
    signed      service levels, releases and canaries: the code of that process

Also here: the command `plinth ops metrics`, which loads the other modules when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth_ops.metrics.exporter import Exporter

#: Default port, also used by `plinth up` (`plinth_jobs.servers`).
PORT = 9464


@group(
    short_help="Serve metrics to Prometheus, or write them to a file.",
    epilog=examples("plinth ops metrics list", "plinth ops metrics serve"),
)
def metrics() -> None:
    """List metrics, serve them to Prometheus, or write them to a file for node_exporter's textfile collector."""


@metrics.command("list", epilog=examples("plinth ops metrics list", "plinth ops metrics list --json"))
@json_option
def list_(as_json: bool) -> None:
    """List every metric with its labels, meaning and source."""
    from plinth_jobs.cli import output
    from plinth_ops.metrics.table import METRICS

    if as_json:
        output.emit_json([one.model_dump() for one in METRICS.values()])
        return
    rows = [(one.name, ", ".join(one.labels), one.meaning, one.source) for one in METRICS.values()]
    output.table(("metric", "labels", "meaning", "source"), rows)


@metrics.command(epilog=examples("plinth ops metrics serve", "plinth ops metrics serve --host 0.0.0.0 --port 9464"))
@shared
@recipe_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option("--with-parent", is_flag=True, hidden=True, help="Exit when the parent process exits.")
def serve(settings: Settings, host: str, port: int, with_parent: bool) -> None:
    """Serve the metrics of a workspace until Ctrl-C. `plinth up` also serves the metrics.

    There is no authentication: on any address except loopback, everyone who can connect can read run names and metrics.
    Other machines must scrape the IP address or the host name that is set by --host.
    """
    import os
    import signal
    import threading

    from plinth.errors import RequestError
    from plinth_jobs.cli import output
    from plinth_ops.metrics import exporter

    stop, parent = threading.Event(), os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    found = _exporter(settings)
    if not with_parent:
        output.line(f"http://{host}:{port}/metrics")
    try:
        exporter.serve(found, host, port, lambda: stop.is_set() or (with_parent and os.getppid() != parent), stop.wait)
    except OSError as error:
        raise RequestError(f"cannot serve on {host}:{port}", found=error, remedy="choose another --port") from error


@metrics.command(epilog=examples("plinth ops metrics write /var/lib/node_exporter/textfile/plinth.prom"))
@shared
@recipe_option
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def write(settings: Settings, file: Path) -> None:
    """Write the current metrics to a file for node_exporter's textfile collector.

    Use this command for batch jobs and on machines without a server. If `training.sinks.prometheus` is set, a run
    writes a file of the run's metrics.
    """
    from plinth_jobs.cli import output
    from plinth_ops.metrics import exporter

    exporter.write(_exporter(settings), file)
    output.line(str(file))


def _exporter(settings: Settings) -> Exporter:
    """Return the exporter of a workspace. If there is no recipe, the exporter has no canary metrics."""
    from plinth_ops.metrics.parts import exporter

    return exporter(settings.context(waits=True), settings.recipe)
