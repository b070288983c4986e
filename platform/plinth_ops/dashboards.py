"""`plinth ops dashboards`: Grafana dashboards (executive, on-call, debug, data), generated from a table of panels.

The JSON has schema 38 (Grafana 10 and later), with two panels per row. Queries read only metrics in
`plinth_ops.metrics.table`. `$run` is the selected run. `$__rate_interval` is not used, because each query sets a fixed
window.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click

from plinth_jobs.cli import output
from plinth_jobs.cli.options import examples

#: Grafana's names of units.
Unit = Literal["short", "s", "bytes", "percentunit", "dateTimeFromNow", "watt", "celsius", "percent", "flops", "none"]


@dataclass(frozen=True, kw_only=True)
class DashboardPanel:
    """Panel of a dashboard.

    Attributes:
        queries: pairs of a PromQL query and its legend.
        kind: `stat` shows the last value, `table` shows all last values, `timeseries` shows a curve.
        description: explanation for a first-time reader.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: Unit = "short"
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Grafana dashboard. If `by_run` is set, the dashboard shows the selected run."""

    name: str
    title: str
    panels: tuple[DashboardPanel, ...]
    by_run: bool = False


def _panel(title: str, query: str, legend: str = "", unit: Unit = "short", description: str = "") -> DashboardPanel:
    return DashboardPanel(title=title, queries=((query, legend),), unit=unit, description=description)


def _stat(title: str, query: str, unit: Unit = "short", description: str = "") -> DashboardPanel:
    return DashboardPanel(title=title, queries=((query, ""),), unit=unit, kind="stat", description=description)


def _table(title: str, query: str, unit: Unit = "short", description: str = "") -> DashboardPanel:
    return DashboardPanel(title=title, queries=((query, ""),), unit=unit, kind="table", description=description)


_GOOD = 'plinth_goodput_rank_seconds{cause="goodput"}'

EXECUTIVE: Final = Dashboard(
    name="executive",
    title="Plinth: activity and cost",
    panels=(
        _stat("Active runs", "sum(plinth_run_active)"),
        _stat("Failed runs", "sum(plinth_run_failed)", description="Runs that failed and were not resubmitted."),
        _stat("Training ranks", "sum(plinth_run_ranks and on (run) plinth_run_active == 1) or vector(0)"),
        _stat(
            "Goodput",
            f"sum({_GOOD}) / sum(plinth_held_rank_seconds)",
            "percentunit",
            "Share of the rank-seconds allocated in the last day that advanced a run.",
        ),
        _panel("Progress", "plinth_step / plinth_steps_planned", "{{run}}", "percentunit"),
        _panel("Error budgets spent", "plinth_error_budget_spent_ratio", "{{indicator}}", "percentunit",
               "At 100%, the objective is missed for its time window."),
        _panel("Rank-seconds by cause", "sum by (cause) (plinth_goodput_rank_seconds) > 0", "{{cause}}", "s"),
        _table("Budgets used", "plinth_budget_used / plinth_budget_limit", "percentunit"),
        _table("Spent, by team and experiment", "plinth_spent"),
        _table("Reserved, by team and experiment", "plinth_reserved"),
        _table("Release versions", "plinth_release_version"),
        _table("Release movements", "plinth_release_movements_total"),
    ),
)  # fmt: skip

ON_CALL: Final = Dashboard(
    name="on-call",
    title="Plinth: on call",
    panels=(
        _table("Firing alerts", 'ALERTS{alertstate="firing"}', description="Runbooks: docs/runbooks."),
        _table("Failed runs", "plinth_run_failed == 1 or plinth_run_failed", description="1 if the run failed."),
        _panel("Time since the last event", "time() - plinth_last_event_timestamp_seconds", "{{run}}", "s"),
        _panel("Age of the last checkpoint", "(time() - plinth_checkpoint_timestamp_seconds) and on (run) "
               "plinth_run_active == 1", "{{run}}", "s"),
        _panel("Bad share of the last hour", f"1 - sum(delta({_GOOD}[1h])) / sum(delta(plinth_held_rank_seconds[1h]))",
               "", "percentunit", "Share of rank-seconds without progress, which the burn-rate alerts evaluate."),
        _panel("Restarts", 'plinth_events_total{kind="restart"}', "{{run}}"),
        _table("Last time of each event", "topk(50, plinth_event_timestamp_seconds) * 1000", "dateTimeFromNow"),
        _panel("Free disk", "plinth_workspace_free_ratio", "workspace", "percentunit"),
        _panel("Exporter parts", "plinth_collector_up", "{{part}}", description="0 if the collection fails."),
        _panel("Collection time", "plinth_collector_seconds", "{{part}}", "s"),
        _panel("Age of the exported metrics", "time() - plinth_exporter_timestamp_seconds", "exporter", "s"),
        _panel("Lines of alerts.jsonl", "plinth_alarms_total", "{{source}}"),
        _stat("Release history broken", "plinth_trust_broken"),
        _stat("Taints in force", "plinth_taints"),
    ),
)  # fmt: skip

DEBUG: Final = Dashboard(
    name="debug",
    title="Plinth: one run",
    by_run=True,
    panels=(
        _panel("Loss", 'plinth_train_loss{run="$run"}', "loss"),
        _panel("Loss, moving average", 'plinth_train_loss_ema{run="$run"}', "mean"),
        _panel("Gradient norm", 'plinth_grad_norm{run="$run"}', "norm"),
        _panel("Learning rate", 'plinth_learning_rate{run="$run"}', "rate"),
        _panel("Tokens per second", 'plinth_tokens_per_second{run="$run"}', "all ranks"),
        _panel("FLOP/s per rank", 'plinth_rank_flops_per_second{run="$run"}', "model", "flops"),
        _panel("Step duration", 'plinth_step_duration_seconds{run="$run"}', "step", "s"),
        _panel("Step time by part", 'plinth_step_seconds{run="$run"}', "{{part}}", "s"),
        _panel("Time between steps", 'plinth_between_steps_seconds{run="$run"}', "{{what}}", "s"),
        _panel("Data wait share", 'plinth_data_wait_ratio{run="$run"}', "wait", "percentunit"),
        _panel("Bits per byte, held out", 'plinth_heldout_bits_per_byte{run="$run"}', "{{slice}}"),
        _panel("Probes", 'plinth_probe{run="$run"}', "{{name}}"),
        _panel("Last commit", 'plinth_checkpoint{run="$run"}', "{{what}}"),
        _panel("Rank-seconds by cause", 'plinth_goodput_rank_seconds{run="$run"} > 0', "{{cause}}", "s"),
        _panel("Events", 'plinth_events_total{run="$run"}', "{{kind}}"),
        _panel("Speed of the slowest rank", 'plinth_slowest_rank_score{run="$run"}', "score"),
        _panel("Host memory", 'plinth_host_memory_bytes{run="$run"}', "leading rank", "bytes"),
        _panel("Device memory", 'plinth_device_memory_bytes{run="$run"}', "{{what}}", "bytes"),
        _panel("GPU utilization", 'plinth_gpu_utilisation{run="$run"}', "{{host}} {{gpu}}", "percent"),
        _panel("GPU power", 'plinth_gpu_power_w{run="$run"}', "{{host}} {{gpu}}", "watt"),
        _panel("GPU temperature", 'plinth_gpu_temperature_c{run="$run"}', "{{host}} {{gpu}}", "celsius"),
    ),
)

DATA: Final = Dashboard(
    name="data",
    title="Plinth: corpus",
    panels=(
        _table("Rows of assets", "plinth_asset_rows"),
        _table("Bytes of assets", "plinth_asset_bytes", "bytes"),
        _stat("Bytes published", "sum(plinth_asset_bytes)", "bytes"),
        _panel("Documents by stage", "plinth_documents_in", "{{stage}}"),
        _panel("Documents removed", "plinth_documents_removed > 0", "{{stage}}: {{reason}}"),
        _table("Share removed, by stage", "sum by (stage) (plinth_documents_removed) / on (stage) plinth_documents_in",
               "percentunit"),
        _table("Canary: pairs", "plinth_canary_pairs"),
        _table("Canary: upper bound of the loss difference", "plinth_canary_worse_bound",
               description="Below 0, the canary is within the margin."),
    ),
)  # fmt: skip

DASHBOARDS: Final = (EXECUTIVE, ON_CALL, DEBUG, DATA)


SCHEMA: Final = 38
#: Width of Grafana's grid, in columns.
_WIDTH, _HEIGHT = 12, 8
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def dashboard(of: Dashboard) -> dict[str, Any]:
    """Return a dashboard in Grafana's import format. The data source is a variable of the dashboard."""
    variables: list[dict[str, Any]] = [{"name": "source", "type": "datasource", "query": "prometheus"}]
    if of.by_run:
        variables.append(
            {
                "name": "run",
                "type": "query",
                "datasource": _SOURCE,
                "query": {"query": "label_values(plinth_run_active, run)", "refId": "run"},
                "refresh": 2,  # on every change of the time range
                "sort": 1,
            }
        )
    return {
        "uid": f"plinth-{of.name}",
        "title": of.title,
        "tags": ["plinth"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_grafana_panel(number, one) for number, one in enumerate(of.panels)],
    }


def _grafana_panel(number: int, of: DashboardPanel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": of.kind,
        "title": of.title,
        "description": of.description,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": of.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": of.kind == "table",
                "range": of.kind != "table",
                "format": "table" if of.kind == "table" else "time_series",
            }
            for place, (query, legend) in enumerate(of.queries)
        ],
    }


@click.command(
    short_help="Write Grafana dashboards.",
    epilog=examples("plinth ops dashboards --out dashboards"),
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Output folder.")
def dashboards(out: Path) -> None:
    """Write the dashboards (executive, on-call, debug, data) as JSON for import or provisioning in Grafana."""
    from plinth.storage.atomic import write_bytes

    for one in DASHBOARDS:
        path = out / f"{one.name}.json"
        write_bytes(path, json.dumps(dashboard(one), indent=2).encode() + b"\n")
        output.line(str(path))
