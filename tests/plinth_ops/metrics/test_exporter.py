"""The exporter reads what is new, goes on without what fails, and has one name for one thing."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from plinth.errors import StorageError
from plinth.model.architectures import flops_exact
from plinth.storage.workspace import Workspace
from plinth.tokens.order.steps import LengthChange
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.sinks.relay import Feed, PrometheusFile, SinkSource, folder
from plinth.training.sinks.run_metrics import Families, MetricSample, RunFollower
from plinth.training.telemetry.timeline import Timeline
from plinth_ops.metrics import exporter as exporters
from plinth_ops.metrics.exporter import Exporter, ExportPart
from plinth_ops.metrics.parts import RunsCollector, WorkspaceState
from plinth_ops.metrics.table import METRICS
from tests.living_job import give_job, kill_job_of
from tests.plinth.training.conftest import tiny


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").ensure()


def begun(space: Workspace, name: str, steps: int = 3) -> RunConfig:
    """A run under way, with a checkpoint."""
    config = tiny(space.root, run_id=name)
    configuration.write(config)
    give_job(config)
    events = Timeline(config.directory.events)
    events.append("job_started", ranks=2, nodes=1)
    events.append("run_started", ranks=2, attempt=0, device="cpu", precision="fp32")
    for number in range(1, steps + 1):
        step(events, number)
    events.append("checkpoint", step=steps, seconds=1.0, bytes=10)
    spread = [json.loads(line) for line in config.directory.events.read_bytes().splitlines()]
    for number, event in enumerate(spread):  # a second apart
        event["time"] = round(event["time"]) - len(spread) + number
    config.directory.events.write_text("".join(json.dumps(event) + "\n" for event in spread))
    return config


def step(events: Timeline, number: int) -> None:
    parts = {"data": 0.01, "forward": 0.02, "backward": 0.01}
    events.append("step", step=number, loss=3.0 / number, grad_norm=1.0, lr=0.1, tokens=number * 256,
                  tokens_per_s=5120.0, step_s=0.05, parts=parts, batch="0f", host_memory_bytes=1000)  # fmt: skip


def parsed(text: bytes) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def refreshed(found: Exporter, now: float | None = None) -> dict[tuple[Any, ...], float]:
    found.refresh(now)
    return parsed(found.text)


def of_runs(space: Workspace) -> tuple[Exporter, RunsCollector]:
    runs = RunsCollector(space.runs)
    return Exporter([ExportPart("runs", 0.0, runs.collect)], lambda: runs.read_bytes), runs


def test_a_run_under_way_and_its_end(space: Workspace) -> None:
    config = begun(space, "r1")
    found, runs = of_runs(space)
    run = ("run", "r1")
    values = refreshed(found)
    assert values["plinth_run_active", run] == 1
    assert values["plinth_step", run] == 3
    assert values["plinth_steps_planned", run] == 12
    assert values["plinth_data_wait_ratio", run] == pytest.approx(0.2)
    assert values["plinth_events_total", ("kind", "restart"), run] == 0
    assert values["plinth_events_total", ("kind", "step"), run] == 3
    assert values["plinth_goodput_rank_seconds", ("cause", "goodput"), run] > 0
    assert values["plinth_rank_flops_per_second", run] > 0
    causes = sum(value for key, value in values.items() if key[0] == "plinth_goodput_rank_seconds")
    assert causes == pytest.approx(values["plinth_held_rank_seconds", run])
    last = Timeline(config.directory.events).append("failed", reason="x")
    values = refreshed(found)
    assert runs._followed == {}  # nothing is kept of a run that has ended but its samples
    assert refreshed(found)["plinth_step", run] == 3
    assert (values["plinth_run_active", run], values["plinth_run_failed", run]) == (0, 1)
    assert values["plinth_event_timestamp_seconds", ("kind", "failed"), run] == last["time"]
    Timeline(config.directory.events).append("submitted", launcher="local")
    assert refreshed(found)["plinth_run_failed", run] == 0


def test_flops_are_those_of_the_length_of_the_step(space: Workspace) -> None:
    """As on the page of the run and in the signed amounts: rows of 32 tokens, and of 16 from step 5 on."""
    config = tiny(space.root, length_schedule=(LengthChange(from_tokens=1024, sequence_tokens=16),))
    follower, events, found = RunFollower(config), Timeline(config.directory.events), []
    events.append("job_started", ranks=config.ranks)
    for number in (4, 5):
        step(events, number)
        follower.poll()
        values = {one.name: one.value for one in follower.state.samples()}
        found.append(values["plinth_rank_flops_per_second"])
    per_token = (flops_exact(config.model, config.vocab_size, length) for length in (32, 16))
    assert found == [pytest.approx(5120 * each / config.ranks) for each in per_token]


def test_a_killed_supervisor_is_a_failed_job_at_the_next_question(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plinth_ops.metrics.parts.ASKED_EVERY_S", 0.0)
    config = begun(space, "r1")
    found, runs = of_runs(space)
    run = ("run", "r1")
    assert refreshed(found)["plinth_run_active", run] == 1
    kill_job_of(config)  # no event, no result: only the process is gone
    values = refreshed(found)
    assert (values["plinth_run_active", run], values["plinth_run_failed", run]) == (0, 1)
    assert runs._followed == {}
    assert refreshed(found)["plinth_run_failed", run] == 1  # and stays so
    give_job(config)
    Timeline(config.directory.events).append("job_started", ranks=2, nodes=1)
    assert refreshed(found)["plinth_run_failed", run] == 0


@pytest.mark.parametrize(("kinds", "failed"), [
    (["failed"], 1), (["lost", "failed"], 1), (["lost", "stopped"], 1), (["stopped"], 0), (["finished"], 0),
    (["failed", "submitted", "job_started"], 0), (["failed", "job_started", "stopped"], 0),
])  # fmt: skip
def test_how_a_job_ended(space: Workspace, kinds: list[str], failed: int) -> None:
    events = Timeline(begun(space, "r1").directory.events)
    for kind in kinds:
        events.append(kind, ranks=2, nodes=1)
    assert refreshed(of_runs(space)[0])["plinth_run_failed", ("run", "r1")] == failed


@pytest.mark.parametrize(("xid", "kind"), [(79, "device_error"), (45, "program_error"), (None, "device_error")])
def test_an_error_of_a_gpu_is_apart_from_one_of_its_program(space: Workspace, xid: int | None, kind: str) -> None:
    code = {} if xid is None else {"xid": xid}
    Timeline(begun(space, "r1").directory.events).append("device_error", kind="xid", gpu=0, **code)
    values = refreshed(of_runs(space)[0])
    of_kinds = {key[1][1] for key in values if key[0] == "plinth_event_timestamp_seconds"}
    assert of_kinds & {"device_error", "program_error"} == {kind}


@pytest.mark.parametrize("steps", [10, 80])
def test_a_refresh_reads_the_new_event_whatever_came_before(space: Workspace, steps: int) -> None:
    configs = [begun(space, f"r{number}", steps) for number in range(3)]
    found, runs = of_runs(space)
    found.refresh()
    whole = sum(config.directory.events.stat().st_size for config in configs)
    assert runs.read_bytes == whole
    found.refresh()
    assert runs.read_bytes == whole
    before = configs[1].directory.events.stat().st_size
    step(Timeline(configs[1].directory.events), steps + 1)
    found.refresh()
    assert runs.read_bytes - whole == configs[1].directory.events.stat().st_size - before
    values = parsed(found.text)
    assert values["plinth_exporter_read_bytes_total",] == runs.read_bytes
    assert values["plinth_step", ("run", "r1")] == steps + 1


def test_runs_that_ended_long_ago_are_left_out(space: Workspace) -> None:
    config = begun(space, "r1")
    Timeline(config.directory.events).append("finished")
    lines = [json.loads(line) for line in config.directory.events.read_bytes().splitlines()]
    old = [{**line, "time": line["time"] - 90000} for line in lines]
    config.directory.events.write_text("".join(json.dumps(line) + "\n" for line in old))
    begun(space, "r2")
    values = refreshed(of_runs(space)[0])
    assert {dict(key[1:])["run"] for key in values if key[0] == "plinth_step"} == {"r2"}


def test_a_timeline_that_nobody_wrote_for_a_day_is_not_read_until_somebody_does(space: Workspace) -> None:
    path = begun(space, "r1").directory.events
    size = path.stat().st_size
    found, runs = of_runs(space)
    assert ("plinth_step", ("run", "r1")) in refreshed(found)
    os.utime(path, (time.time() - 90000,) * 2)
    assert ("plinth_step", ("run", "r1")) not in refreshed(found)
    assert (runs._followed, runs._samples, runs._seen) == ({}, {}, {})
    found.refresh()
    assert runs.read_bytes == size
    step(Timeline(path), 4)
    assert refreshed(found)["plinth_step", ("run", "r1")] == 4


def test_a_run_that_was_removed_is_exported_no_more(space: Workspace) -> None:
    root = begun(space, "r1").directory.root
    found, runs = of_runs(space)
    assert ("plinth_step", ("run", "r1")) in refreshed(found)
    shutil.rmtree(root)
    assert ("plinth_step", ("run", "r1")) not in refreshed(found)
    assert (runs._followed, runs._samples, runs._seen) == ({}, {}, {})


def test_one_broken_run_hides_no_other(space: Workspace) -> None:
    begun(space, "r1")
    broken = begun(space, "r2")
    with broken.directory.events.open("ab") as stream:
        stream.write(b"[no event]\n")
    (space.runs / "r3").mkdir()
    (space.runs / "r4").mkdir()
    (space.runs / "r4" / "config.json").write_text("{}")
    values = refreshed(of_runs(space)[0])
    assert values["plinth_step", ("run", "r1")] == 3
    assert values["plinth_collector_up", ("part", "runs")] == 1


def test_a_part_that_fails_keeps_its_samples_and_is_named_once() -> None:
    said: list[str] = []
    fails = False

    def collect() -> Iterator[MetricSample]:
        if fails:
            raise StorageError("the database does not answer")
        yield MetricSample("plinth_taints", (), 2.0)

    found = Exporter([ExportPart("registry", 10.0, collect)], say=said.append)
    found.refresh(100.0)
    fails = True
    assert refreshed(found, 105.0)["plinth_collector_up", ("part", "registry")] == 1  # not due
    for now in (110.0, 120.0):
        values = refreshed(found, now)
        assert (values["plinth_taints",], values["plinth_collector_up", ("part", "registry")]) == (2.0, 0.0)
    assert said == ["cannot collect registry: the database does not answer"]
    fails = False
    assert refreshed(found, 130.0)["plinth_collector_up", ("part", "registry")] == 1


def test_alarms_are_read_once_and_by_their_source(space: Workspace) -> None:
    state = WorkspaceState(space)
    path = space.root / "alerts.jsonl"
    path.write_text('{"time": 5, "run": "", "job": "feed", "message": "m"}\n')
    (space.dagster / "heartbeat").touch()
    first = {(one.name, one.labels): one.value for one in state.collect()}
    with path.open("a") as stream:
        stream.write('{"time": 7, "run": "x", "job": "make_corpus", "message": "m"}\n')
    second = {(one.name, one.labels): one.value for one in state.collect()}
    assert first["plinth_alarm_timestamp_seconds", ("release",)] == 5
    assert ("plinth_alarm_timestamp_seconds", ("pipeline",)) not in first
    assert first["plinth_alarms_total", ("pipeline",)] == 0
    assert second["plinth_alarms_total", ("pipeline",)] == second["plinth_alarms_total", ("release",)] == 1
    assert 0 < second["plinth_workspace_free_ratio", ()] <= 1
    assert abs(second["plinth_orchestrator_timestamp_seconds", ()] - time.time()) < 3600


def test_the_file_of_a_run_has_the_samples_that_the_exporter_has(space: Workspace) -> None:
    config = begun(space, "r1")
    folder(config).mkdir()
    target = folder(config) / "plinth.prom"
    Feed(config, SinkSource("prometheus", lambda: PrometheusFile(config, target), goes_on=False)).advance()
    own = parsed(target.read_bytes())
    assert own.items() <= refreshed(of_runs(space)[0]).items()
    assert len(own) > 20


def test_it_answers_over_http_until_it_is_over(space: Workspace) -> None:
    begun(space, "r1")
    found, _ = of_runs(space)
    stop, port = threading.Event(), _port()
    thread = threading.Thread(target=exporters.serve, args=(found, "127.0.0.1", port, stop.is_set, stop.wait))
    thread.start()
    try:
        url = f"http://127.0.0.1:{port}"
        while b"plinth_step" not in found.text:
            time.sleep(0.01)
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parsed(answer.read())["plinth_step", ("run", "r1")] == 3
    finally:
        stop.set()
        thread.join()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/metrics")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "[::1]:{port}"}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1.evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": "198.51.100.7:{port}"}, 403),
        ({"Host": "[:{port}"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_a_name_bound_to_loopback_and_another_origin_are_refused(headers: dict[str, str], status: int) -> None:
    with exporters._server(Exporter([]), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            port = server.server_address[1]
            connection = http.client.HTTPConnection("127.0.0.1", port)
            named = {name: value.format(port=port) for name, value in headers.items()}
            connection.request("GET", "/metrics", headers=named)
            assert connection.getresponse().status == status
            connection.close()
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("host", "named", "answers"),
    [
        ("0.0.0.0", "198.51.100.7:9464", True),
        ("0.0.0.0", "[2001:db8::7]:9464", True),
        ("0.0.0.0", "198.51.100.7:8080", True),
        ("0.0.0.0", "localhost:9464", True),
        ("0.0.0.0", "evil.example:9464", False),
        ("Trainer.example", "trainer.example:9464", True),
        ("trainer.example", "evil.example:9464", False),
    ],
)
def test_other_machines_scrape_by_address_or_by_the_name_it_listens_on(host: str, named: str, answers: bool) -> None:
    assert exporters._is_named(named, host, 9464) is answers


def test_a_metric_without_samples_is_left_out_and_one_that_is_not_in_the_table_is_refused() -> None:
    samples = [
        MetricSample("plinth_train_loss", ('a"b\\c\nd',), 0.1),
        MetricSample("plinth_events_total", ("r", "x"), 1e6),
        MetricSample("plinth_train_loss", ("r",), float("nan")),
    ]
    lines = generate_latest(Families(METRICS, lambda: samples)).decode().splitlines()
    assert [line for line in lines if not line.startswith("# HELP")] == [
        "# TYPE plinth_events_total counter",
        'plinth_events_total{kind="x",run="r"} 1e+06',
        "# TYPE plinth_train_loss gauge",
        'plinth_train_loss{run="a\\"b\\\\c\\nd"} 0.1',
        'plinth_train_loss{run="r"} NaN',
    ]
    with pytest.raises(KeyError):
        Families(METRICS, lambda: [MetricSample("plinth_unknown", (), 1.0)]).collect()


def test_names_follow_the_conventions_of_prometheus() -> None:
    for one in METRICS.values():
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        if one.unit:
            assert one.unit in one.name, one.name
        assert one.meaning.endswith("."), one.name


@pytest.mark.needs("Prometheus")
def test_promtool_reads_the_text(space: Workspace, tmp_path: Path) -> None:
    begun(space, "r1")
    exporters.write(of_runs(space)[0], tmp_path / "plinth.prom")
    text = (tmp_path / "plinth.prom").read_bytes()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert b"error" not in done.stderr.lower(), done.stderr.decode()
    assert done.returncode in (0, 3)  # 3: advice on names


def _port() -> int:
    from tests.prometheus_server import free_port

    return free_port()
