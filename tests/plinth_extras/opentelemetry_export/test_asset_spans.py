"""Assets of a real Dagster run as spans: one per asset, one per step with tasks, failures with their reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.operation import asset_listeners
from plinth.operation.asset_listeners import AssetListener, AssetUpdate, Deliveries
from plinth.records import Manifest, Part, Step
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, data_docs
from plinth_extras.opentelemetry_export.otlp import span_id, trace_id
from tests.plinth_extras.materialized import materialize
from tests.plinth_extras.opentelemetry_export.conftest import Receiver, attributes


def stage(name: str, deps: tuple[str, ...] = (), *, least: int = 0, run_id: str = "") -> Stage:
    def make(ctx: Context, inputs: Inputs, say: Say) -> Manifest:
        step = Step(name=f"{name}_step", version="1")
        run_items(ctx, step, slept, [Item((name,), 0.05)], label=name)
        return manifest(name, step, inputs, [], {"n": 1, "run_id": run_id})

    def suite(made: Manifest, inputs: Inputs) -> Suite:
        return Suite(name, [{"n": made.stats["n"]}], [between("n", least, None)])

    return Stage(
        asset=name, deps=deps, make=make, version="1", params={}, group="probe", description="A probe.",
        owner="someone@example.org", suite=suite,
    )  # fmt: skip


def slept(store: Store, task: float) -> tuple[Part, ...]:
    time.sleep(task)
    return ()


@pytest.fixture(autouse=True)
def _no_data_docs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(data_docs, "file", lambda *_: None)
    yield
    asset_listeners.finish()


def test_assets_and_their_steps(tmp_path: Path, endpoint: Receiver) -> None:
    before = time.time()
    stages = [stage("one"), stage("run", ("one",), run_id="tiny-0"), stage("bad", ("one",), least=9)]
    session, run = materialize(tmp_path, stages)
    assert session.warnings == []
    named = {attributes(span)["plinth.asset"]: span for span in endpoint.spans if span.name == "materialize asset"}
    assert named.keys() == {"one", "run", "bad"}
    assert {span.trace_id for span in endpoint.spans} == {trace_id(f"pipeline {run}").to_bytes(16)}
    one = attributes(named["one"])
    assert (one["plinth.recipe"], one["plinth.reused"], one["plinth.pipeline_run"]) == ("tiny", False, run)
    (step,) = [span for span in endpoint.spans if span.name == "one_step"]
    assert step.parent_span_id == named["one"].span_id
    assert attributes(step)["plinth.tasks"] == 1
    assert step.end_time_unix_nano - step.start_time_unix_nano >= 0.05e9
    times = [named["one"].start_time_unix_nano, step.start_time_unix_nano, step.end_time_unix_nano]
    assert [before * 1e9 - 1e3, *times] == sorted([before * 1e9 - 1e3, *times])
    assert named["one"].end_time_unix_nano >= times[-1]
    (link,) = named["run"].links
    assert (link.trace_id, link.span_id) == (
        trace_id("run tiny-0").to_bytes(16), span_id("run tiny-0", "job 1").to_bytes(8)
    )  # fmt: skip
    assert "bad failed its checks and was not published" in named["bad"].status.message
    materialize(tmp_path, stages[:1])
    assert attributes(endpoint.spans[-1])["plinth.reused"] is True


def test_a_dead_endpoint_costs_an_asset_nothing(
    tmp_path: Path, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    endpoint.status = 503
    session, _ = materialize(tmp_path, [stage("one"), stage("two", ("one",))])
    assert session.failures == []
    (said,) = session.warnings
    assert said.startswith("opentelemetry missed 2 updates of assets: StorageError: the OTLP endpoint accepts no")
    assert {ref.asset for ref in Context(Workspace(tmp_path)).refs.all()} == {"one", "two"}


def test_a_hanging_listener_delays_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asset_listeners, "QUEUE", 3)
    free = threading.Event()
    got = list[str]()

    def notify(update: AssetUpdate) -> None:
        free.wait()
        got.append(update.asset)

    deliveries = Deliveries(AssetListener("slow", lambda: True, notify))
    for number in range(9):
        deliveries.put(AssetUpdate(f"asset {number}", "file:///w", "1"))
    said = deliveries.finish(time.monotonic() + 0.1)
    free.set()
    assert said == "slow missed 9 updates of assets: more than 3 updates waited"
    deliveries._thread.join()
    assert got == ["asset 0"]


def test_a_hanging_listener_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asset_listeners, "FINISH_S", 0.5)
    free, got = threading.Event(), list[str]()
    listeners = (
        AssetListener("hangs", lambda: True, lambda update: free.wait() and None),
        AssetListener("works", lambda: True, lambda update: got.append(update.asset)),
    )
    for number in range(4):
        asset_listeners._put(listeners, AssetUpdate(f"asset {number}", "file:///w", "1"))
    begun = time.monotonic()
    assert asset_listeners.finish() == ["hangs missed 4 updates of assets: no answer within 0.5 s"]
    assert time.monotonic() - begun < 3
    free.set()
    assert got == [f"asset {number}" for number in range(4)]
