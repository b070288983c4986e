"""Every panel's query is answered by a real Prometheus with the metrics of a small workspace."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.sinks.run_metrics import MetricSample
from plinth.training.telemetry.timeline import Timeline
from plinth_ops.alerts.prometheus import rules, written
from plinth_ops.alerts.table import alerts
from plinth_ops.dashboards import DASHBOARDS, Dashboard, dashboard
from plinth_ops.metrics.exporter import Exporter, ExportPart, serve
from plinth_ops.metrics.parts import RunsCollector, WorkspaceState
from plinth_ops.metrics.table import METRICS
from tests.living_job import give_job, kill_job_of
from tests.plinth.training.conftest import tiny
from tests.prometheus_server import free_port, prometheus, query, wait_for

#: Parts that take a corpus, a ledger and a release: their own tests make these; here are the samples that they give.
GIVEN = (
    MetricSample("plinth_asset_rows", ("web/documents",), 10.0),
    MetricSample("plinth_asset_bytes", ("web/documents",), 1000.0),
    MetricSample("plinth_documents_in", ("policy",), 10.0),
    MetricSample("plinth_documents_removed", ("policy", "toxic"), 2.0),
    MetricSample("plinth_error_budget_spent_ratio", ("goodput",), 0.5),
    MetricSample("plinth_budget_limit", ("team", "web", "month"), 100.0),
    MetricSample("plinth_budget_used", ("team", "web", "month"), 20.0),
    MetricSample("plinth_spent", ("web", ""), 20.0),
    MetricSample("plinth_reserved", ("web", ""), 5.0),
    MetricSample("plinth_trust_broken", (), 0.0),
    MetricSample("plinth_taints", (), 0.0),
    MetricSample("plinth_release_version", ("m", "champion"), 1.0),
    MetricSample("plinth_release_movements_total", ("m", "champion"), 1.0),
    MetricSample("plinth_canary_pairs", ("m", "web"), 40.0),
    MetricSample("plinth_canary_worse_bound", ("m", "web"), -0.1),
)


def train(space: Workspace) -> Timeline:
    """A run with everything that a timeline can have, and another that has failed."""
    config = tiny(space.root, run_id="r1")
    configuration.write(config)
    give_job(config, outlives_test=True)
    Timeline(tiny(space.root, run_id="r2").directory.events).append("failed", reason="disk full")
    configuration.write(tiny(space.root, run_id="r2"))
    events = Timeline(config.directory.events)
    events.append("job_started", ranks=2, nodes=1)
    events.append("run_started", ranks=2, attempt=0, device="cuda", precision="bf16")
    step(events, 1)
    events.append("checkpoint", step=1, seconds=1.0, bytes=10, stall_s=0.1)
    events.append("evaluated", step=1, tokens=1, slices={"web": 1.5}, probes={"maths": {"score": 0.5}}, seconds=0.1)
    gpus = [{"gpu": 0, "utilisation": 90, "power_w": 300.0, "temperature_c": 60}]
    Timeline(config.directory.devices / "node-0000.jsonl").append("devices", node=0, host="n1", gpus=gpus)
    return events


def step(events: Timeline, number: int) -> None:
    parts = {"data": 0.1, "forward": 0.2}
    events.append("step", step=number, loss=3.0, loss_ema=3.0, grad_norm=1.0, lr=0.1, tokens=number, tokens_per_s=9.0,
                  step_s=0.3, parts=parts, besides={"save": 0.1}, batch="0f", host_memory_bytes=1000,
                  device_memory={"peak": 5}, slowest={"rank": 1, "score": 0.9})  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that reads a real exporter of a workspace in which a run trains."""
    folder = tmp_path_factory.mktemp("dashboards")
    space = Workspace(folder / "workspace").ensure()
    runs, events = RunsCollector(space.runs), train(space)
    parts = [
        ExportPart("runs", 0.0, runs.collect),
        ExportPart("workspace", 0.0, WorkspaceState(space).collect),
        ExportPart("given", 0.0, lambda: GIVEN),
    ]
    exporter, port, stop = Exporter(parts, lambda: runs.read_bytes), free_port(), threading.Event()

    def wait(seconds: float) -> None:
        stop.wait(0.5)
        step(events, int(time.time()))

    thread = threading.Thread(target=serve, args=(exporter, "127.0.0.1", port, stop.is_set, wait))
    thread.start()
    try:
        with prometheus(folder / "prometheus", [f"127.0.0.1:{port}"], written(rules(alerts()))) as address:
            wait_for(lambda: query(address, 'ALERTS{alertstate="firing"}'), "an alert fires: r2 has failed")
            wait_for(lambda: query(address, "delta(plinth_held_rank_seconds[1h]) > 0"), "two scrapes of a run")
            yield address
    finally:
        stop.set()
        thread.join()
        kill_job_of(tiny(space.root, run_id="r1"))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("Prometheus")
def test_every_panel_of_every_dashboard_has_data(url: str) -> None:
    empty = [
        f"{each['title']}: {panel['title']}: {target['expr']}"
        for each in map(dashboard, DASHBOARDS)
        for panel in each["panels"]
        for target in panel["targets"]
        if not query(url, target["expr"].replace("$run", "r1"))
    ]
    assert empty == []


def test_queries_read_metrics_of_the_table_and_panels_fill_the_grid() -> None:
    read = set()
    for each in map(dashboard, DASHBOARDS):
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in each["panels"]]
        assert len(set(places)) == len(places)
        assert json.loads(json.dumps(each)) == each
        for panel in each["panels"]:
            for target in panel["targets"]:
                read |= set(re.findall(r"plinth_[a-z_]+", target["expr"]))
    assert read <= set(METRICS)


def _read_by_grafana(ours: dict[str, Any]) -> Any:
    """Return a dashboard as parsed by Grafana's own models: they ignore fields that Grafana does not have."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(GrafanaDashboard.from_json(ours)))


def _passed_over(ours: Any, kept: Any, at: str = "") -> list[str]:
    """Fields that were not kept as they are written."""
    if isinstance(ours, dict) and isinstance(kept, dict):
        return [lost for name, value in ours.items() for lost in _passed_over(value, kept.get(name), f"{at}.{name}")]
    if isinstance(ours, list) and isinstance(kept, list) and len(ours) == len(kept):
        pairs = enumerate(zip(ours, kept, strict=True))
        return [lost for n, (one, other) in pairs for lost in _passed_over(one, other, f"{at}[{n}]")]
    return [] if ours == kept else [at]


@pytest.mark.parametrize("of", DASHBOARDS, ids=lambda of: of.name)
def test_grafanas_own_models_read_every_field(of: Dashboard) -> None:
    ours = dashboard(of)
    assert _passed_over(ours, _read_by_grafana(ours)) == []


def test_a_field_that_grafana_does_not_have_would_be_seen() -> None:
    ours = dashboard(DASHBOARDS[0])
    first = ours["panels"][0]
    first["titel"], first["targets"][0]["legend"] = first.pop("title"), "x"
    assert _passed_over(ours, _read_by_grafana(ours)) == [".panels[0].targets[0].legend", ".panels[0].titel"]


def test_all_four_have_a_name_of_their_own() -> None:
    assert [each.name for each in DASHBOARDS] == ["executive", "on-call", "debug", "data"]
    assert [each.name for each in DASHBOARDS if each.by_run] == ["debug"]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("Prometheus")
def test_a_query_without_data_is_seen(url: str, tmp_path: Path) -> None:
    assert query(url, "plinth_no_such_metric") == []
    with pytest.raises(AssertionError, match="parse error"):
        query(url, "plinth_step{")
