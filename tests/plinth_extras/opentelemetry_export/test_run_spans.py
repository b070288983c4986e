"""Spans of a run add up to its ledger, have the same ids however often they are sent, and cost the run nothing."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import MissingError
from plinth.processes import free_port
from plinth.training.config import RunConfig
from plinth.training.sinks import relay
from plinth.training.sinks.relay import Feed, folder, sources_of
from plinth.training.telemetry.goodput import GoodputLedger, TimeSpan
from plinth.training.telemetry.goodput_account import GoodputAccount, account
from plinth.training.telemetry.timeline import Timeline, read_events
from plinth_extras.opentelemetry_export.run_spans import RunExport, RunStory, without_debts
from tests.plinth.training.conftest import run_job, tiny
from tests.plinth_extras.opentelemetry_export.conftest import Receiver, attributes

Make = Callable[..., RunConfig]


def by_cause(spans: list[Any]) -> dict[str, int]:
    """Rank-microseconds by cause of received spans."""
    sums = Counter[str]()
    for span in spans:
        facts = attributes(span)
        if "plinth.cause" in facts:
            assert span.end_time_unix_nano > span.start_time_unix_nano
            length = (span.end_time_unix_nano - span.start_time_unix_nano) * facts["plinth.ranks"]
            sums[facts["plinth.cause"]] += length // 1000
    return dict(sums)


def ledger_of(config: RunConfig) -> GoodputLedger:
    return account(read_events(config.directory.events), config.ranks)


def known(ledger: GoodputLedger) -> dict[str, int]:
    return {cause: us for cause, us in ledger.rank_us.items() if us}


def told(config: RunConfig) -> None:
    """Two jobs: one that restarts, saves and is killed, and one that ends."""
    events = Timeline(config.directory.events)
    clock = iter(range(1000, 2000))

    def add(event: str, at: float = 0.0, **fields: Any) -> None:
        line = events.append(event, **fields)
        text = config.directory.events.read_text().splitlines()[:-1]
        line["time"] = next(clock) + at
        config.directory.events.write_text("".join(f"{one}\n" for one in [*text, json.dumps(line)]))

    def step(number: int) -> None:
        parts = {"data": 0.25, "forward": 0.5}
        add("step", step=number, loss=1.0, tokens_per_s=10.0, step_s=0.75, parts=parts, besides={})

    add("submitted")
    add("job_started", ranks=2, nodes=1)
    add("run_started", ranks=2, attempt=0, device="cpu", precision="fp32")
    for number in (1, 2, 3):
        step(number)
    add("checkpoint", step=2, bytes=7, seconds=1.5, stall_s=0.1, wait_s=0.0)
    add("evaluated", step=3, tokens=30, slices={"web": 1.5}, probes={}, seconds=0.5)
    add("rank_failed", rank=0, attempt=0, kind="TrainingError", what="out of memory", found="5 \U0001f4a5 \udc80"[:3])
    add("restart", attempt=1, reason="killed", from_step=2, lost_steps=1, lost_s=2.0, backoff_s=0.5)
    add("run_started", ranks=2, attempt=1, device="cpu", precision="fp32")
    add("resumed", step=2, attempt=1)
    step(3)
    add("submitted")
    add("vanished", from_step=2, lost_steps=1, lost_s=1.0)
    add("job_started", ranks=2, nodes=1)
    add("run_started", ranks=2, attempt=0, device="cpu", precision="fp32")
    step(3)
    add("finished", step=3)


def exported(config: RunConfig) -> RunExport:
    folder(config).mkdir(exist_ok=True)
    made = RunExport(config, folder(config) / "opentelemetry.json")
    try:
        made.flush()
    finally:
        made.close()
    return made


def test_spans_of_each_cause_add_up_to_the_ledger(make: Make, endpoint: Receiver) -> None:
    config = make()
    told(config)
    exported(config)
    ledger = ledger_of(config)
    assert by_cause(endpoint.spans) == known(ledger)
    ids = {span.span_id: span for span in endpoint.spans}
    assert len(ids) == len(endpoint.spans)
    assert len({span.trace_id for span in endpoint.spans}) == 1
    tree = Counter((span.name, ids[span.parent_span_id].name if span.parent_span_id else "") for span in ids.values())
    assert tree["training job", ""] == 2
    assert tree["attempt", "training job"] == 3
    assert {parent for name, parent in tree if name not in ("training job", "attempt")} == {"attempt"}
    save = next(span for span in ids.values() if span.name == "save checkpoint")
    assert (save.start_time_unix_nano, save.end_time_unix_nano) == (1004.5e9, 1006e9)
    assert attributes(save) | {"plinth.step": 2, "plinth.bytes": 7} == attributes(save)
    killed, ended = sorted((s for s in ids.values() if s.name == "training job"), key=lambda s: s.start_time_unix_nano)
    assert (killed.status.message, ended.status.message) == ("the job has no final event", "")
    assert attributes(ended)["plinth.job.end"] == "finished"
    for span in ids.values():
        if span.name == "attempt":
            inside = [s for s in ids.values() if s.parent_span_id == span.span_id and "plinth.cause" in attributes(s)]
            assert by_cause(inside) == {
                name.removeprefix("plinth.rank_seconds.").replace("_", " "): round(value * 1e6)
                for name, value in attributes(span).items()
                if name.startswith("plinth.rank_seconds.")
            }


def test_log_records_and_metrics(make: Make, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=pretraining")
    config = make()
    told(config)
    exported(config)
    events = [event for event in read_events(config.directory.events) if event["event"] != "step"]
    assert [attributes(log)["plinth.seq"] for log in endpoint.logs] == [event["seq"] for event in events]
    assert [log.time_unix_nano for log in endpoint.logs] == [round(event["time"] * 1e9) for event in events]
    failed = next(log for log in endpoint.logs if log.event_name == "plinth.rank_failed")
    assert (failed.severity_text, "out of memory" in failed.body.string_value) == ("WARN", True)
    spans = {span.span_id for span in endpoint.spans if span.name == "attempt"}
    assert {log.span_id for log in endpoint.logs} == spans
    values = {
        (metric.name, *sorted(attributes(point).items())): point.as_double
        for metric in endpoint.metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
    }
    run = ("run", config.run_id)
    assert values["plinth_train_loss", run] == 1.0
    assert values["plinth_events_total", ("kind", "step"), run] == 5
    seconds = ledger_of(config).rank_s
    assert values["plinth_goodput_rank_seconds", ("cause", "input"), run] == seconds["input"] > 0
    assert endpoint.resource["deployment.environment.name"] == "lab"
    assert endpoint.resource["service.name"] == "plinth"
    assert {headers["x-team"] for headers in endpoint.headers} == {"pretraining"}


def test_a_repeated_export_has_the_same_ids_and_a_bookmark_spares_it(make: Make, endpoint: Receiver) -> None:
    config = make()
    told(config)
    text = config.directory.events.read_bytes().splitlines(keepends=True)
    exported(config)
    whole = {span.span_id: span.SerializeToString(deterministic=True) for span in endpoint.spans}
    logs = len(endpoint.logs)
    exported(config)
    assert (len(endpoint.spans), len(endpoint.logs)) == (len(whole), logs)
    for end in range(1, len(text) + 1):  # killed after each event
        config.directory.events.write_bytes(b"".join(text[:end]))
        if end == 1:
            endpoint.got["/v1/traces"].clear()
            (folder(config) / "opentelemetry.json").unlink()
        exported(config)
    assert {span.span_id: span.SerializeToString(deterministic=True) for span in endpoint.spans} == whole
    assert len(endpoint.spans) == len(whole)


def test_an_earlier_timeline_that_is_put_before_counts_once(make: Make, endpoint: Receiver) -> None:
    config = make()
    told(config)
    whole = config.directory.events.read_bytes().splitlines(keepends=True)
    config.directory.events.write_bytes(b"".join(whole[:3]))
    folder(config).mkdir()
    export = RunExport(config, folder(config) / "opentelemetry.json")
    export.flush()
    replaced = config.directory.root / "replaced.jsonl"
    replaced.write_bytes(b"".join(whole))
    replaced.rename(config.directory.events)
    export.flush()
    export.close()
    assert by_cause(endpoint.spans) == known(ledger_of(config))
    assert sum(span.name == "training job" for span in endpoint.spans) == 2


def test_a_traceparent_is_the_parent(make: Make, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make()
    told(config)
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    exported(config)
    assert {span.trace_id.hex() for span in endpoint.spans} == {"ab" * 16}
    assert {log.trace_id.hex() for log in endpoint.logs} == {"ab" * 16}
    assert {span.parent_span_id.hex() for span in endpoint.spans if span.name == "training job"} == {"cd" * 8}
    endpoint.got["/v1/traces"].clear()
    (folder(config) / "opentelemetry.json").unlink()
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-00")  # not sampled
    exported(config)
    assert endpoint.spans == []


@pytest.mark.parametrize("variables", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_nothing_is_sent_unless_it_is_configured(
    make: Make, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    config = make()
    assert sources_of(config) == []
    for name, value in {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.url, **variables}.items():
        if variables:
            monkeypatch.setenv(name, value)
    assert sources_of(config) == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", receiver.url)
    for name in variables:
        monkeypatch.delenv(name)
    assert [source.name for source in sources_of(config)] == ["opentelemetry"]


def test_a_dead_endpoint_is_said_once_and_all_is_sent_when_it_lives(
    make: Make, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    config = make()
    told(config)
    folder(config).mkdir()
    endpoint.status = 400
    turns = iter([False, False, False, False, True])

    def over(seconds: float) -> bool:
        turn = next(turns)
        if turn:
            endpoint.status = 200
        return turn

    relay.follow([Feed(config, source) for source in sources_of(config)], over)
    assert json.loads((folder(config) / "opentelemetry.json").read_text())["failures"] == 4
    said = capfd.readouterr().err
    assert said.count("sink opentelemetry rejected numbers") == 1
    assert "code: 400" in said
    assert by_cause(endpoint.spans) == known(ledger_of(config))


def test_a_missing_sdk_names_the_extra(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    (source,) = sources_of(make())
    with pytest.raises(MissingError) as caught:
        source.open()
    assert caught.value.remedy == "pip install 'plinth[otel]'"


EVENT = st.sampled_from(["step", "checkpoint", "restart", "resumed", "finished", "failed", "submitted", "vanished"])


@given(st.lists(st.tuples(EVENT, st.integers(0, 9), st.integers(0, 4000)), max_size=40))
def test_any_timeline_adds_up(drawn: list[tuple[str, int, int]]) -> None:
    """Steps may state more time than there is, and jobs may end in any way."""
    now, events = 1000.0, list[dict[str, Any]]()
    for kind, number, ms in [("job_started", 0, 0), *drawn, ("finished", 0, 1)]:
        now += ms / 1000
        fields: dict[str, Any] = {"ranks": 3} if kind == "job_started" else {"step": number, "from_step": number}
        fields |= {"attempt": 1, "backoff_s": 0.1} if kind == "restart" else {}
        parts = {"data": 0.3, "forward": 0.7}
        fields |= {"parts": parts, "step_s": 1.0, "loss": "inf"} if kind == "step" else {"seconds": -1.0}
        events.append({"seq": len(events) + 1, "event": kind, "time": now, **fields})
    story, sums, keys = RunStory("hostile\n\x00", "", 3), Counter[str](), list[str]()
    for event in events:
        for span in story.add(event):
            keys.append(span.key)
            assert span.end_us >= span.begin_us
            if "plinth.cause" in span.attributes:
                sums[span.attributes["plinth.cause"]] += (span.end_us - span.begin_us) * span.attributes["plinth.ranks"]
    final = RunStory("hostile\n\x00", "", 3)
    whole = GoodputAccount(3)
    for event in events:
        whole.add(event)
        final.add(event)
    assert len(set(keys)) == len(keys)
    ledger = whole.ledger()
    assert sums.total() == sum(ledger.rank_us.values())
    if sum(event["event"] in ("finished", "failed", "submitted", "vanished") for event in events) == 1:
        assert dict(sums) == {cause: us for cause, us in ledger.rank_us.items() if us}


def test_debts_shorten_the_same_cause_first() -> None:
    spans = [TimeSpan(0, 0, 5, "goodput"), TimeSpan(0, 5, -2, "goodput"), TimeSpan(0, 3, -1, "input")]
    spans += [TimeSpan(0, 2, 9, "start")]
    kept = without_debts(spans)
    assert [(span.cause, span.us) for span in kept] == [("goodput", 3), ("start", 8)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("alive", [True, False])
def test_a_real_run_is_exported_by_its_supervisor(tmp_path: Path, receiver: Receiver, alive: bool) -> None:
    config = tiny(tmp_path)
    url = receiver.url if alive else f"http://127.0.0.1:{free_port()}"
    assert run_job(config, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_SERVICE_NAME="tiny") == 0
    if not alive:
        assert receiver.spans == []
        return
    ledger = ledger_of(config)
    assert by_cause(receiver.spans) == known(ledger)
    assert receiver.resource["service.name"] == "tiny"
    saves = [event for event in read_events(config.directory.events) if event["event"] == "checkpoint"]
    assert sum(span.name == "save checkpoint" for span in receiver.spans) == len(saves) > 0
    assert time.time() - max(span.end_time_unix_nano for span in receiver.spans) / 1e9 < 60
