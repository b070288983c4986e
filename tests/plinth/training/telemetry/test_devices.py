"""Samples of a node's GPUs. Without a GPU a stand-in answers as NVML does; the real one reports that there is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from plinth.training.directory import RunDirectory
from plinth.training.telemetry import devices
from plinth.training.telemetry.devices import DeviceMonitor, read_samples
from plinth.training.telemetry.timeline import read_events

UUIDS = ("GPU-aaaa", "GPU-bbbb")


class Nvml:
    """Two GPUs, the second of which counts no ECC errors; after a wait in vain an XID 79 of the second."""

    def __init__(self) -> None:
        self.waits, self.registered = 0, list[tuple[str, int]]()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML") or name.startswith("nvmlEventType"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: UUIDS[index])
    nvmlDeviceGetUUID = staticmethod(lambda handle: handle)
    nvmlEventSetCreate = staticmethod(object)
    nvmlDeviceGetSupportedEventTypes = staticmethod(lambda handle: pynvml.nvmlEventTypeAll)
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: SimpleNamespace(gpu=90 if handle == UUIDS[0] else 50))
    nvmlDeviceGetPowerUsage = staticmethod(lambda handle: 650_500)
    nvmlDeviceGetTemperature = staticmethod(lambda handle, sensor: 61 + sensor)
    nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: SimpleNamespace(used=2**30))

    @staticmethod
    def nvmlDeviceGetTotalEccErrors(handle: str, kind: int, counter: int) -> int:
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        if handle == UUIDS[1]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 3

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: Any) -> None:
        self.registered.append((handle, kinds))

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        self.waits += 1
        if self.waits != 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(device=UUIDS[1], eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=79)


def monitored(run: RunDirectory, nvml: Nvml, every_s: float = 60.0) -> None:
    DeviceMonitor(run, 3, every_s, nvml).run(stop=lambda: nvml.waits >= 3)


def test_samples_lie_beside_the_timeline_and_errors_on_it(tmp_path: Path) -> None:
    run, nvml = RunDirectory(tmp_path), Nvml()
    monitored(run, nvml)
    (sample,) = read_samples(run)
    same = {"power_w": 650.5, "temperature_c": 61, "memory_bytes": 2**30}
    first, second = {"gpu": 0, "utilisation": 90, **same}, {"gpu": 1, "utilisation": 50, **same}
    assert (sample["event"], sample["node"]) == ("devices", 3)
    assert sample["gpus"] == [{**first, "ecc_uncorrected": 3}, {**second, "ecc_uncorrected": None}]
    (error,) = read_events(run.events)  # samples are not a sign of life of the ranks
    assert (error["event"], error["kind"], error["xid"]) == ("device_error", "xid", 79)
    assert (error["node"], error["gpu"], error["uuid"]) == (3, 1, UUIDS[1])
    watched = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
    assert nvml.registered == [(uuid, watched) for uuid in UUIDS]


@pytest.mark.parametrize(("visible", "seen"), [("1", [1]), ("GPU-aaa", [0]), ("1,0", [0, 1]), ("", [0, 1])])
def test_a_job_reports_its_own_gpus(visible: str, seen: list[int], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monitored(RunDirectory(tmp_path), Nvml())
    assert [gpu["gpu"] for gpu in read_samples(RunDirectory(tmp_path))[0]["gpus"]] == seen


def test_no_samples_where_none_are_asked_for(tmp_path: Path) -> None:
    monitored(RunDirectory(tmp_path), Nvml(), every_s=0.0)
    assert read_samples(RunDirectory(tmp_path)) == []
    assert len(list(read_events(RunDirectory(tmp_path).events))) == 1


def test_without_a_driver_it_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pytest.skip("this machine has NVIDIA's driver")
    assert devices.start(RunDirectory(tmp_path), 0, 30.0) is None
    said = capfd.readouterr().err
    assert said.count("no GPU of this node is monitored") == 1
    assert "NVML" in said
    assert not (tmp_path / "devices").exists()


@pytest.mark.gpu
def test_a_real_gpu_answers(tmp_path: Path) -> None:
    pynvml.nvmlInit()
    run = RunDirectory(tmp_path)
    sample = DeviceMonitor(run, 0, 1.0, pynvml).sample()
    assert sample
    assert all(gpu["memory_bytes"] > 0 and gpu["temperature_c"] > 0 for gpu in sample)
