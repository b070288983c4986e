"""Measurements of runs reach the next plan: exact numbers of timelines written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.launch.devices import DEVICES, called
from plinth.launch.parameters import Launch
from plinth.model import architectures
from plinth.operation import admission, forecast, ranking, spending
from plinth.operation.admission import bound, step_s
from plinth.operation.spending import STATED, Efficiency
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.telemetry.machine_speed import DeviceSpeed, MachineSpeed
from tests.plinth.training.conftest import TINY, tiny

STEPS = 20
PEAK = 1e12
SPEED = MachineSpeed(
    machine="m", devices=(DeviceSpeed(kind="cpu", name="x", flops={"fp32": PEAK}, bytes_per_s=1e11),)
)


def device(ranks: int = 2) -> spending.PlannedDevice:
    found = spending.shared(SPEED, "fp32", ranks, 64 * 10**9)
    assert found is not None
    return found._replace(machine="")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").ensure()


def lived(
    workspace: Workspace,
    name: str,
    computing: Sequence[float],
    *,
    extra: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> RunConfig:
    """A run whose steps compute so long, communicate 0.25 s, and wait 0.5 s for a save after every fifth."""
    config = tiny(workspace.root, run_id=name, total_steps=max(12, len(computing)), **changes)
    configuration.write(config)
    now = 1000.0
    lines: list[dict[str, Any]] = [{"event": "job_started", "time": now, "ranks": config.ranks}]
    lines += [{"event": "run_started", "time": now, "device": "cpu", "precision": "fp32", "ranks": config.ranks}]
    for step, seconds in enumerate(computing, 1):
        besides = {"save": 0.5} if step % 5 == 1 and step > 1 else {}
        parts = {"forward": seconds / 4, "backward": seconds / 2, "optimizer": seconds / 4, "communication": 0.25}
        now += seconds + 0.25 + sum(besides.values())
        lines += [{"event": "step", "time": now, "step": step, "tokens": step * 256, "loss": 1.0,
                   "step_s": seconds + 0.25, "parts": parts, "besides": besides}]  # fmt: skip
    lines += [{**one, "time": now + n} for n, one in enumerate(extra, 1)]
    with config.directory.events.open("w") as stream:
        stream.writelines(json.dumps({"seq": n, **line}) + "\n" for n, line in enumerate(lines, 1))
    return config


def test_the_planner_gives_the_measured_seconds_back(workspace: Workspace) -> None:
    """Every step took 2 s: at the efficiency of that run the planner predicts 2 s, bubble and division included."""
    for number, block in enumerate([Parallel(), Parallel(pipeline=2, zero_stage=0), Parallel(tensor=2)]):
        name = f"run-{number}"
        config = lived(workspace, name, [2.0] * STEPS, parallel=block)
        on, work = device(), forecast.work_of(config)
        (run,) = [one for one in forecast.known(workspace)[0] if one.run == name]
        found = forecast.efficiency([run], on, work)
        assert found.low == pytest.approx(found.high)
        one = ranking.of_block(work, block, config.micro_batch_sequences, 2, on.device, found.middle)
        assert one.compute_s + one.bubble_s == pytest.approx(2.0)
        assert ranking.span(one, found)[0] == pytest.approx(one.step_s)
    whole = 8 * 32 * architectures.flops_hardware(TINY, 64, [33 / 2] * TINY.layers)
    assert run.flops_per_s == pytest.approx((whole / 2.0, whole / 2.0))  # both ranks, as one machine
    assert found.source == "1 run of this model on cpu, recorded"


def test_the_range_is_of_the_slowest_and_the_fastest_tenth(workspace: Workspace) -> None:
    """The first step compiles and is left out; of the 20 that follow, two at each end are."""
    config = lived(workspace, "one", [9.0, *[8.0] * 2, *[4.0] * 8, *[2.0] * 8, *[0.1] * 2])
    (run,) = forecast.known(workspace)[0]
    whole = 8 * 32 * architectures.flops_hardware(TINY, 64, [33 / 2] * TINY.layers)
    assert run.flops_per_s == pytest.approx((whole / 4, whole / 2))
    lived(workspace, "other", [3.0] * STEPS)
    both = forecast.efficiency(forecast.known(workspace)[0], device(), forecast.work_of(config))
    assert (both.low, both.high) == pytest.approx((whole / 4 / PEAK, whole / 2 / PEAK))
    assert both.source.startswith("2 runs of this model")


def test_what_is_not_like_is_not_taken(workspace: Workspace) -> None:
    config = lived(workspace, "few", [2.0] * 10)  # nine follow another
    work, runs = forecast.work_of(config), forecast.known(workspace)[0]
    assert runs[0].flops_per_s is None
    assert forecast.efficiency(runs, device(), work) == STATED
    lived(workspace, "enough", [2.0] * 11)
    runs = forecast.known(workspace)[0]
    assert forecast.efficiency(runs, device(), work) != STATED
    assert forecast.efficiency(runs, spending.of_table("h100", DEVICES), work) == STATED  # another device
    near = work._replace(model=TINY.model_copy(update={"layers": TINY.layers * 2}))
    assert forecast.efficiency(runs, device(), near).source == "1 run of models of this size on cpu, recorded"
    far = work._replace(model=TINY.model_copy(update={"layers": TINY.layers * 16}))
    assert forecast.efficiency(runs, device(), far) == STATED
    here = [runs[1].model_copy(update={"machine": "m", "flops_per_s": (1e9, 2e9)}), *runs]
    assert forecast.efficiency(here, device()._replace(machine="m"), work) == Efficiency(
        low=1e9 / PEAK, high=2e9 / PEAK, source="1 run of this model on cpu on this machine, recorded"
    )


def test_stall_restore_and_failures_by_hand(workspace: Workspace) -> None:
    """20 steps wait for three saves of 0.5 s; a restart restores for 7 s."""
    after = [
        {"event": "restart", "attempt": 1, "from_step": 20, "backoff_s": 0.0},
        {"event": "run_started", "device": "cpu", "precision": "fp32", "ranks": 2},
    ]
    config = lived(workspace, "one", [2.0] * STEPS, extra=after)
    with config.directory.events.open("a") as stream:
        now = 1000.0 + 2.25 * STEPS + 1.5
        stream.write(json.dumps({"seq": 99, "event": "resumed", "time": now + 9.0, "step": 20}) + "\n")
    runs, work = forecast.known(workspace)[0], forecast.work_of(config)
    assert (runs[0].saves, runs[0].stall_s) == (3, pytest.approx(1.5))
    assert (runs[0].restores, runs[0].restore_s) == (1, pytest.approx(7.0))
    assert (runs[0].failures, runs[0].device_hours) == (1, pytest.approx((2.25 * STEPS + 1.5 + 9) * 2 / 3600))
    found = forecast.pauses(runs, "cpu", work)
    assert (found.stall_s, found.restore_s) == (pytest.approx(0.5), pytest.approx(7.0))
    assert found.failures_per_device_hour == spending.FAILURES_PER_DEVICE_HOUR  # one is not enough evidence
    assert found.sources[:2] == ("3 saves of runs of this model", "1 restores of runs of this model")
    assert found.sources[2].startswith("published failure rate of Llama 3 on H100; too few recorded failures: 1 in 0.0")
    more = forecast.pauses(runs * 3, "cpu", work)
    assert more.failures_per_device_hour == pytest.approx(1 / runs[0].device_hours)
    assert more.sources[2].startswith("recorded failures: 3 in")
    quiet = [runs[0].model_copy(update={"failures": 0, "device_hours": 4 / spending.FAILURES_PER_DEVICE_HOUR})]
    assert forecast.pauses(quiet, "cpu", work).failures_per_device_hour == spending.FAILURES_PER_DEVICE_HOUR / 4
    assert forecast.pauses(runs, "cpu", work, 9.0)[:2] == (9.0, pytest.approx(7.0))
    elsewhere = forecast.pauses(runs, "h100", work)
    assert elsewhere[:3] == (spending.STALL_S, forecast.RESTORE_S, spending.FAILURES_PER_DEVICE_HOUR)
    assert elsewhere.sources == ("assumed", "assumed", "published failure rate of Llama 3 on H100")


def test_a_forecast_is_made_once_and_its_error_is_stated(workspace: Workspace) -> None:
    config = lived(workspace, "one", [2.0] * STEPS)
    made = forecast.predict(config, device())
    assert (made.step_s, made.device) == (pytest.approx(step_s(config, device().device, 0.5)), "cpu")
    assert made.low_s < made.step_s < made.high_s
    forecast.keep(config, made.model_copy(update={"step_s": 1.8, "low_s": 1.5, "high_s": 2.5}))
    forecast.keep(config, made)  # what was predicted first counts
    runs, broken = forecast.known(workspace)
    assert (runs[0].step_s, runs[0].error, broken) == (pytest.approx(2.25), pytest.approx(-0.2), [])
    assert forecast.errors(runs) == [
        "predictions and measurements of 1 run: the median error of the step time is 20%; 1 within the predicted range",
        "last run, one: predicted 1.8 s per step (1.5 to 2.5), measured 2.25 s, error -20%",
    ]
    config.directory.forecast.write_text("{}")
    with pytest.raises(IntegrityError, match="forecast of run one"):
        forecast.read(config)
    lived(workspace, "two", [2.0] * STEPS)
    runs, broken = forecast.known(workspace)
    assert [run.run for run in runs] == ["two"]
    assert broken[0].startswith("one: ")


def test_an_ended_run_is_measured_once(workspace: Workspace) -> None:
    config = lived(workspace, "one", [2.0] * STEPS)
    first = forecast.known(workspace)[0]
    assert not config.directory.measured.exists()  # it may go on
    config.directory.result.write_text("{}")
    assert forecast.known(workspace)[0] == first
    kept = first[0].model_copy(update={"saves": 77})
    config.directory.measured.write_text(kept.model_dump_json())
    assert forecast.known(workspace)[0] == [kept]
    with config.directory.events.open("a") as stream:
        stream.write(json.dumps({"seq": 99, "event": "vanished", "time": 5000.0, "from_step": 20}) + "\n")
    (again,) = forecast.known(workspace)[0]
    assert (again.saves, again.failures) == (3, 1)


def test_a_submission_foretells_and_is_bounded_as_runs_were(workspace: Workspace) -> None:
    """At 40% of the peak without a record; then at the least that the recorded run reached."""
    ctx = Context(workspace)
    path = spending.settings_file(workspace)
    path.parent.mkdir(exist_ok=True)
    path.write_text("device: h100\nprice_per_rank_hour: 36\nstart_s: 0\n")
    config = lived(workspace, "new", [])
    config.directory.events.unlink()
    assert admission.reserve(ctx, config)[0].reason == "the planner, at 40% of the device's peak"
    found = forecast.read(config)
    assert found is not None
    assert (found.device, found.efficiency) == ("h100", STATED)
    before = lived(workspace, "before", [2.0] * STEPS)
    (run,) = forecast.known(workspace)[0]
    like = run.model_copy(update={"device": "h100", "flops_per_s": (989e10, 1978e10)})
    before.directory.measured.write_text(like.model_dump_json())
    later = config.model_copy(update={"run_id": "later"})
    configuration.write(later)
    granted, _ = admission.reserve(ctx, later)
    least = "lowest of 1 run of this model on h100, recorded"
    assert granted.reason == f"the planner, at 1% of the device's peak, {least}"
    steps = later.total_steps + later.checkpoints.audit_steps
    seconds = step_s(later, DEVICES["h100"], 0.01) * steps * 1.25 + later.supervision.grace_s
    assert granted.reserved == pytest.approx(seconds * 2 * 36 / 3600 * 1e6, rel=1e-5)
    slow = Efficiency(low=1e-7, high=1.0, source="slow")
    bounded = bound(later, DEVICES["h100"], 0.0, 0.0, (), slow).rank_s
    waiting = later.supervision.grace_s * 2
    assert bounded == pytest.approx(step_s(later, DEVICES["h100"], 1e-7) * steps * 2 + waiting, rel=1e-9)
    found = forecast.read(later)
    assert found is not None
    assert found.efficiency.high == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"), ("NVIDIA H200", "h200"), ("Tesla T4", None),
    ],
)  # fmt: skip
def test_devices_by_their_drivers_names(name: str, key: str | None) -> None:
    assert called(name) == key


def test_ranks_share_processors() -> None:
    one, two = device(1).device, device(2).device
    assert (one.bf16_flops, two.bf16_flops, two.memory_bytes) == (PEAK, PEAK / 2, 32 * 10**9)
    assert Launch(ranks=2).ranks_per_node == 2
    assert spending.shared(SPEED, "fp16", 1, 1) is None
