"""Alerts: one table, from which the Prometheus rules and Alertmanager routes are generated.

    table       alert definitions; rejects an alert that cannot fire in time or has no runbook
    conditions  alert conditions in PromQL
    prometheus  rule file, Alertmanager configuration, silences for planned stops

Also here: the command `plinth ops alerts`, which loads the other modules when it runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth_ops.alerts.table import Alert

out_option = click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Output file (default: stdout)."
)
url_option = click.option(
    "--url", default="http://127.0.0.1:9093", show_default=True, envvar="PLINTH_ALERTMANAGER", help="Alertmanager URL."
)
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


@group(
    short_help="Write alert rules and routes; silence a run during a planned stop.",
    epilog=examples("plinth ops alerts list", "plinth ops alerts rules --out rules.yaml"),
)
def alerts() -> None:
    """List alerts, write Prometheus rules and Alertmanager routes, and silence a run during a planned stop."""


@alerts.command("list", epilog=examples("plinth ops alerts list", "plinth ops alerts list --json"))
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List every alert with severity, owner, response target and runbook, based on the workspace's objectives."""
    from plinth_jobs.cli import output

    found = _table(settings)
    if as_json:
        output.emit_json([{**one.model_dump(), "expression": one.condition.expression} for one in found])
        return
    rows = [
        (one.name, ", ".join(one.labels.values()) or None, one.severity, one.owner, output.duration(one.promised_s),
         f"docs/runbooks/{one.runbook}.md")
        for one in found
    ]  # fmt: skip
    output.table(("alert", "labels", "severity", "owner", "target", "runbook"), rows)


@alerts.command(epilog=examples("plinth ops alerts rules --out rules.yaml && promtool check rules rules.yaml"))
@shared
@click.option("--runbooks", default="docs/runbooks", show_default=True, help="URL or path of the runbook folder.")
@out_option
def rules(settings: Settings, runbooks: str, out: Path | None) -> None:
    """Write the Prometheus rule file. If an alert can never fire under the objectives, exit with code 6."""
    from plinth_ops.alerts import prometheus

    _emit(prometheus.written(prometheus.rules(_table(settings), runbooks.rstrip("/"))), out)


@alerts.command(
    epilog=examples(
        "plinth ops alerts routes --webhook http://127.0.0.1:8080/ --out alertmanager.yaml",
        "plinth ops alerts routes --out alertmanager.yaml && amtool check-config alertmanager.yaml",
    )
)
@shared
@click.option(
    "--webhook", default="", help="Send all alerts to this webhook address (default: the routes in `alerting.yaml`)."
)
@out_option
def routes(settings: Settings, webhook: str, out: Path | None) -> None:
    """Write the Alertmanager configuration: routes by owner and severity, grouping by run, and escalation."""
    from plinth_ops.alerts import prometheus
    from plinth_ops.alerts.prometheus import written

    routing = prometheus.Routing(default=webhook) if webhook else prometheus.routing(settings.context().workspace)
    _emit(written(prometheus.configuration(_table(settings), routing)), out)


@alerts.command(
    epilog=examples(
        "plinth ops alerts silence RUN --for 2h --by kim --reason 'planned move to another division'",
        "plinth ops alerts silences",
    )
)
@click.argument("run")
@click.option("--for", "length", default="2h", show_default=True, metavar="TIME", help="Duration: 30m, 2h, 1d.")
@click.option("--by", required=True, help="Person responsible for the silence.")
@click.option("--reason", required=True)
@url_option
def silence(run: str, length: str, by: str, reason: str, url: str) -> None:
    """Silence notifications about a run during a planned stop. Alerts still fire and are shown as silenced."""
    from plinth_jobs.cli import output
    from plinth_ops.alerts import prometheus

    output.line(prometheus.silence(url, run, _seconds(length), by, reason))


@alerts.command(epilog=examples("plinth ops alerts silences", "plinth ops alerts silences --json"))
@url_option
@json_option
def silences(url: str, as_json: bool) -> None:
    """List active and pending silences, with the person responsible for each."""
    from plinth_jobs.cli import output
    from plinth_ops.alerts import prometheus

    found = prometheus.silences(url)
    if as_json:
        output.emit_json(found)
        return
    rows = [
        (one["id"], ", ".join(f"{each['name']}={each['value']}" for each in one["matchers"]), one["endsAt"],
         one["createdBy"], one["comment"])
        for one in found
    ]  # fmt: skip
    output.table(("silence", "matches", "until", "by", "reason"), rows)


@alerts.command("end-silence", epilog=examples("plinth ops alerts end-silence ID"))
@click.argument("number", metavar="ID")
@url_option
def end_silence(number: str, url: str) -> None:
    """End a silence before it expires."""
    from plinth_ops.alerts import prometheus

    prometheus.end_silence(url, number)


def _table(settings: Settings) -> tuple[Alert, ...]:
    """Return the validated alert table for the objectives of a workspace."""
    from plinth.storage.workspace import Workspace
    from plinth_ops.alerts import table
    from plinth_ops.service_levels import objectives

    found = table.alerts(objectives.load(Workspace(settings.workspace)))
    folder = Path(__file__).resolve().parents[3] / "docs" / "runbooks"  # a wheel has no runbooks
    table.require_sound(found, table.pages(folder) if folder.is_dir() else {one.runbook for one in found})
    return found


def _emit(text: str, out: Path | None) -> None:
    from plinth.storage.atomic import write_bytes
    from plinth_jobs.cli import output

    if out is None:
        output.line(text, end="")
    else:
        write_bytes(out, text.encode())
        output.line(str(out))


def _seconds(length: str) -> float:
    from plinth.errors import RequestError

    found = re.fullmatch(r"(\d+)([mhd])", length)
    if found is None:
        raise RequestError(f"{length!r} is not a duration", expected="a number with the unit m, h or d, such as 2h")
    return int(found[1]) * _UNITS[found[2]]
