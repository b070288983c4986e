"""`plinth run roofline`: parts, roof and causes of a run's timeline, with the speed that was measured of its
machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.model.architectures import attention_bytes, flops_hardware, product_bytes, update_bytes
from plinth.model.parameters import Model
from plinth.storage.workspace import Workspace
from plinth.training import attempts
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import DeviceSpeed, MachineSpeed
from tests.plinth.training.conftest import TINY, tiny
from tests.training_host import HOST

#: Speed of two ranks together: 10 GFLOP/s and 1 GB/s each.
CPU = DeviceSpeed(kind="cpu", name="two processors", flops={"fp32": 2e10}, bytes_per_s=2e9)
WIDE = Model(layers=2, dim=512, heads=8, kv_heads=8, ffn_dim=2048)


def trained(root: Path, model: Model, steps: int = 5, **parts: float) -> RunConfig:
    """A run whose steps took this long, on a machine like this one."""
    workspace = Workspace(root).ensure()
    made = MachineSpeed(machine=machine_speed.this_machine(), devices=(CPU,))
    workspace.objects(machine_speed.FOLDER).put(f"{made.machine}.json", made.model_dump_json().encode(), None)
    run = tiny(root, model=model, launch=Launch(ranks=2))
    configuration.write(run)
    now, lines = 1000.0, [{"event": "run_started", "time": 1000.0, "device": "cpu", "precision": "fp32", "ranks": 2}]
    for step in range(1, steps + 1):
        now += sum(parts.values())
        lines.append({"event": "step", "time": now, "step": step, "parts": parts, "step_s": sum(parts.values())})
    numbered = ({"seq": number, **line} for number, line in enumerate(lines, 1))
    run.directory.events.write_text("".join(json.dumps(line) + "\n" for line in numbered))
    return run


def found(plinth: Any, root: Path) -> Any:
    done = plinth("-w", root, "run", "roofline", "latest", "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_answer_is_arithmetic(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path, TINY, data=0.5, forward=0.25, backward=0.25)
    made = found(plinth, tmp_path)
    # 8 sequences of 32 tokens per step; a rank has 2 micro batches of 2, and half of the optimizer's states.
    flops = 128 * flops_hardware(TINY, 64, [32] * TINY.layers, fused=False)
    moved = 2 * (product_bytes(TINY, 64, 64, 4) + attention_bytes(TINY, 64, 4)) + update_bytes(TINY, 64, 2)
    assert made["work"] == {"flops": flops, "bytes": moved}
    assert (made["ridge"], made["intensity"]) == (10, flops / moved)
    assert made["reached_flops_per_s"] == pytest.approx(flops / 0.5)
    assert (made["step_s"], made["wall_s"], made["unaccounted"]) == pytest.approx((1, 1, 0))
    assert [one["cause"] for one in made["causes"]] == ["memory", "input"]  # a tie
    assert made["speedups"] == {"memory": 2, "input": 2}


@pytest.mark.parametrize(
    ("model", "parts", "cause"),
    [
        (TINY, {"forward": 0.5, "backward": 0.9, "communication": 0.1}, "memory"),
        (WIDE, {"forward": 0.2, "backward": 0.4, "communication": 0.1}, "compute"),
        (WIDE, {"forward": 0.2, "backward": 0.4, "communication": 0.7}, "communication"),
        (WIDE, {"forward": 0.2, "backward": 0.4, "data": 0.7}, "input"),
        (WIDE, {"forward": 0.2, "backward": 0.4, "checkpoint": 0.7}, "checkpoint"),
    ],
)
def test_small_matrices_are_told_from_large_ones(
    plinth: Any, tmp_path: Path, model: Model, parts: dict[str, float], cause: str
) -> None:
    trained(tmp_path, model, **parts)
    assert found(plinth, tmp_path)["causes"][0]["cause"] == cause
    said = plinth("-w", tmp_path, "run", "roofline", "latest").out
    assert f"{cause}-bound" in said
    assert "two processors" in said
    assert "helps: " in said


def test_a_machine_at_work_is_not_measured(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path, TINY, forward=1.0)
    kept = next((tmp_path / machine_speed.FOLDER).glob("*.json"))
    kept.unlink()
    assert "no roof" in plinth("-w", tmp_path, "run", "roofline", "latest").out
    assert not kept.exists()


def test_a_run_of_another_machine_is_compared_with_that_one(plinth: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, TINY, forward=1.0)
    attempts.state(run.directory, b"{}", "key", ranks=2, nodes=1, hosts=[HOST], audit=False)
    run.directory.result.write_text("{}")  # it has ended, but this machine is not the one to measure
    assert "no roof" in plinth("-w", tmp_path, "run", "roofline", "latest").out
    faster = CPU.model_copy(update={"flops": {"fp32": 6e10}, "name": "other processors"})
    made = MachineSpeed(machine=machine_speed.machine_of(HOST), devices=(faster,))
    objects = Workspace(tmp_path).objects(machine_speed.FOLDER)
    objects.put(f"{made.machine}.json", made.model_dump_json().encode(), None)
    assert found(plinth, tmp_path)["ridge"] == 30


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_machine_is_measured_once_its_run_has_ended(plinth: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, TINY, forward=1.0)
    kept = next((tmp_path / machine_speed.FOLDER).glob("*.json"))
    kept.unlink()
    run.directory.result.write_text("{}")
    ridge = found(plinth, tmp_path)["ridge"]
    measured = kept.stat().st_mtime_ns
    assert found(plinth, tmp_path)["ridge"] == ridge
    assert kept.stat().st_mtime_ns == measured


def test_a_run_without_steps_has_no_answer(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path, TINY, steps=1, forward=1.0)
    refused = plinth("-w", tmp_path, "run", "roofline", "latest")
    assert refused.code != 0
    assert "no two consecutive steps" in refused.err


def test_time_in_no_part_is_said(plinth: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, TINY, forward=1.0)
    lines = [json.loads(line) for line in run.directory.events.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["time"] += 0.25 * number
    run.directory.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "of which +20.0% is not in any part" in plinth("-w", tmp_path, "run", "roofline", "latest").out
