"""The measured speed of a machine: kept by its fingerprint, shared by its ranks."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain, cycle
from pathlib import Path

import pytest

from plinth.errors import IntegrityError, WorkerError
from plinth.launch.parameters import Launch
from plinth.storage.workspace import Workspace
from plinth.training.attempts import this_host
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import DeviceSpeed, MachineSpeed
from plinth_extras.roofline.bottleneck import Roof

CPU = DeviceSpeed(kind="cpu", name="cpu", flops={"fp32": 8e10}, bytes_per_s=4e10)
GPUS = tuple(
    DeviceSpeed(kind="cuda", index=index, name="gpu", flops={"bf16": flops}, bytes_per_s=bandwidth)
    for index, (flops, bandwidth) in enumerate([(9e14, 3e12), (8e14, 3.1e12)])
)


def test_ranks_share_processors_and_have_a_gpu_each() -> None:
    speed = MachineSpeed(machine="m", devices=(CPU, *GPUS))
    launch = Launch(kind="slurm", ranks=8, nodes=2)
    assert speed.roof("cpu", "fp32", launch) == (Roof(flops_per_s=2e10, bytes_per_s=1e10), CPU)
    assert speed.roof("cuda", "bf16", launch) == (Roof(flops_per_s=8e14, bytes_per_s=3e12), GPUS[1])
    assert speed.roof("cpu", "fp16", launch) is None


def test_a_machine_is_known_by_what_it_stated() -> None:
    host = this_host()
    assert machine_speed.machine_of(host) == machine_speed.this_machine()
    other = host.model_copy(update={"cpus": host.cpus + 1})
    assert machine_speed.machine_of(other) != machine_speed.this_machine()
    renamed = host.model_copy(update={"host": "elsewhere", "commit": "0" * 40})
    assert machine_speed.machine_of(renamed) == machine_speed.this_machine()


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path).ensure()
    assert machine_speed.known(workspace, "m") is None
    workspace.objects(machine_speed.FOLDER).put("m.json", b'{"machine": "m"}', None)
    with pytest.raises(IntegrityError, match="cannot be read"):
        machine_speed.known(workspace, "m")


def test_the_best_of_many_repetitions_without_the_first() -> None:
    from plinth.training.telemetry import machine_probe as probe

    times = chain([0.001], cycle([5.0, 3.0, 4.0]))
    assert probe.best_s(lambda: None, lambda action: next(times)) == 3.0


@pytest.mark.parametrize(("per_s", "side", "calls"), [(1e12, 1536, 4), (4e8, 384, 3), (1e6, 192, 2)])
def test_a_precision_that_is_emulated_is_measured_by_smaller_products(per_s: float, side: int, calls: int) -> None:
    from plinth.training.telemetry import machine_probe as probe

    asked: list[int] = []
    assert probe.largest_side(1536, lambda side: asked.append(side) or 2 * side**3 / per_s) == side  # type: ignore[func-returns-value]
    assert len(asked) == calls


@pytest.mark.exhaustive
@pytest.mark.slow
def test_this_machine_is_measured_by_another_process_and_kept(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path).ensure()
    made = machine_speed.measure(workspace)
    assert machine_speed.known(workspace, machine_speed.this_machine()) == made
    cpu = made.devices[0]
    assert (cpu.kind, set(cpu.flops)) == ("cpu", {"fp32", "bf16"})
    assert cpu.flops["fp32"] > 1e9
    assert cpu.bytes_per_s > 1e8


@pytest.mark.slow
def test_a_probe_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerError, match="no torch here"):
        machine_speed.measure(Workspace(tmp_path / "w").ensure())


@pytest.mark.gpu
def test_on_a_gpu_every_precision_has_a_speed_of_its_own() -> None:
    import torch

    from plinth.training.telemetry import machine_probe as probe

    found = DeviceSpeed(**probe.speed(torch.device("cuda", 0), torch.cuda.get_device_name(0)))
    assert found.flops["bf16"] > found.flops["tf32"] > found.flops["fp32"]
    assert found.flops["fp16"] > found.flops["tf32"]
    assert found.bytes_per_s > 1e11


def test_the_control_plane_measures_without_torch() -> None:
    code = (
        "import sys; import plinth.training.telemetry.step_clock, plinth.training.telemetry.machine_speed;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
