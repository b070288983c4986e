"""Routes: who gets what; and one alert from a real Prometheus through a real Alertmanager to a webhook."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.errors import MissingError, RequestError
from plinth.storage.workspace import Workspace
from plinth.training.sinks.run_metrics import MetricSample
from plinth_ops.alerts.prometheus import Routing, configuration, end_silence, routing, rules, silence, silences, written
from plinth_ops.alerts.table import alerts
from plinth_ops.metrics.exporter import Exporter, ExportPart, serve
from tests.prometheus_server import alertmanager, free_port, prometheus, wait_for

ALL = alerts()


def test_every_owner_and_severity_has_its_route() -> None:
    own = {"training": {"page": "http://pager/t"}}
    made = configuration(ALL, Routing(default="http://d", owners=own, escalation="http://next"))
    addresses = {one["name"]: one["webhook_configs"][0]["url"] for one in made["receivers"]}
    assert addresses["training-page"] == "http://pager/t"
    assert addresses["training-ticket"] == addresses["finance-ticket"] == "http://d"
    assert addresses["next-escalation"] == "http://next"
    routed = {one["receiver"] for one in made["route"]["routes"]}
    assert routed == set(addresses)
    assert made["route"]["group_by"] == ["run", "owner"]
    with pytest.raises(RequestError, match="no address for"):
        configuration(ALL, Routing(owners=own))


def test_routes_come_from_the_workspace(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    with pytest.raises(MissingError, match=r"alerting\.yaml"):
        routing(space)
    (tmp_path / "alerting.yaml").write_text("default: http://d\nescalation: http://next\n")
    assert routing(space) == Routing(default="http://d", escalation="http://next")
    (tmp_path / "alerting.yaml").write_text("nobody: x\n")
    with pytest.raises(RequestError, match="no valid routes"):
        routing(space)


def test_an_alertmanager_that_is_away_is_named() -> None:
    with pytest.raises(MissingError, match="does not answer"):
        silence("http://127.0.0.1:1", "r1", 60, "kim", "planned")


@pytest.mark.needs("Alertmanager")
def test_amtool_accepts_the_routes_and_sends_each_alert_to_its_owner(tmp_path: Path) -> None:
    made = tmp_path / "alertmanager.yaml"
    made.write_text(written(configuration(ALL, Routing(default="http://d"))))
    checked = subprocess.run(["amtool", "check-config", str(made)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for owner, severity, receiver in (
        ("training", "page", "training-page"),
        ("corpus", "ticket", "corpus-ticket"),
        ("training", "escalation", "next-escalation"),
    ):
        command = ["amtool", "config", "routes", "test", f"--config.file={made}"]
        command += [f"owner={owner}", f"severity={severity}"]
        assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == receiver


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.append({**body, "path": self.path})
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.needs("Prometheus")
@pytest.mark.needs("Alertmanager")
def test_an_alert_travels_from_an_exporter_to_a_webhook_and_a_silenced_run_does_not(
    tmp_path: Path, webhook: tuple[str, list[dict[str, Any]]]
) -> None:
    address, posted = webhook
    failed = {"r1": 0.0, "planned": 0.0}

    def collect() -> list[MetricSample]:
        return [MetricSample("plinth_run_failed", (run,), value) for run, value in failed.items()]

    own = {"training": {"page": f"{address}/pager"}}
    routes = configuration(ALL, Routing(default=f"{address}/other", owners=own))
    routes["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    ruled = rules([one for one in ALL if one.name == "JobFailed"])
    ruled["groups"][0]["interval"] = "1s"
    port, stop = free_port(), threading.Event()
    exporter = Exporter([ExportPart("runs", 0.0, collect)])
    thread = threading.Thread(target=serve, args=(exporter, "127.0.0.1", port, stop.is_set, lambda _: stop.wait(0.3)))
    thread.start()
    try:
        with (
            alertmanager(tmp_path / "alertmanager", yaml.safe_dump(routes)) as manager,
            prometheus(tmp_path / "prometheus", [f"127.0.0.1:{port}"], yaml.safe_dump(ruled), manager),
        ):
            url = f"http://{manager}"
            number = silence(url, "planned", 600, "kim", "moves to another division")
            assert [(one["id"], one["createdBy"]) for one in silences(url)] == [(number, "kim")]
            failed |= {"r1": 1.0, "planned": 1.0}
            first = wait_for(lambda: posted and posted[0], "the page arrives")
            (alert,) = first["alerts"]
            assert (first["path"], first["status"]) == ("/pager", "firing")
            assert alert["labels"] == {
                "alertname": "JobFailed", "instance": f"127.0.0.1:{port}", "job": "plinth", "owner": "training",
                "run": "r1", "severity": "page",
            }  # fmt: skip
            assert alert["annotations"]["runbook_url"] == "docs/runbooks/job-failed.md"
            assert "Run r1: the job failed" in alert["annotations"]["summary"]
            failed["r1"] = 0.0
            wait_for(lambda: any(one["status"] == "resolved" for one in posted), "it clears")
            time.sleep(2)
            assert {each["labels"]["run"] for one in posted for each in one["alerts"]} == {"r1"}
            end_silence(url, number)
            assert silences(url) == []
            wait_for(lambda: "planned" in {each["labels"]["run"] for one in posted for each in one["alerts"]}, "sent")
    finally:
        stop.set()
        thread.join()
