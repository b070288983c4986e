"""GPUs of a node during training, read by NVML, and memory of a rank."""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from plinth.errors import PlinthError
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import Event, Timeline, read_events

#: Fields of an event, and the corresponding counters of `torch.cuda.memory_stats`.
COUNTERS = {
    "allocated": "allocated_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
    "peak": "allocated_bytes.all.peak",
    "retries": "num_alloc_retries",
}


def memory_of(device: Any) -> dict[str, Any]:
    """Return the memory fields of a step's event. They are counters on the host, so reading them does not wait for the
    device.

    `host_memory_bytes` is the peak of the process. On GPUs, `device_memory` has the bytes held by tensors, the bytes
    held by the allocator, the peak of tensors since the process started, and the number of times that the allocator had
    to free memory and retry.
    """
    fields: dict[str, Any] = {"host_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        import torch

        counted = torch.cuda.memory_stats(device)
        fields["device_memory"] = {name: int(counted.get(key, 0)) for name, key in COUNTERS.items()}
    return fields


# GPUs of a node during training: utilization, power, temperature, memory and errors, by NVML.
#
# The monitor is a thread of a node's supervisor, not of its ranks: an NVML call may block for seconds on a faulty GPU.
# Samples are in `devices/node-0000.jsonl` of the run's directory, one file per node, so that nodes share no lock, and
# samples do not count as progress of ranks. Errors (an XID, an uncorrectable ECC error) are events `device_error` of
# the timeline.
#
# Without NVIDIA's driver, or without the package `nvidia-ml-py`, there is nothing to report; the job's log states that
# once.

#: Milliseconds of one wait for errors.
WAIT_MS = 1000

#: XIDs caused by a program or its end (45 follows every killed process), on a healthy GPU: those that NVIDIA's device
#: plugin for Kubernetes excludes from its health check.
XIDS_OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})

_XID, _UNCORRECTED = 0x8, 0x2  # nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError


def is_hardware_error(event: Mapping[str, Any]) -> bool:
    """Return True if a `device_error` event reports a fault of the GPU itself, and False if the program caused the
    error."""
    return event.get("xid") not in XIDS_OF_PROGRAMS


class DeviceMonitor:
    """Monitor that samples the GPUs of this node and waits for their errors.

    Args:
        run: directory of the run.
        node: number of this node.
        every_s: seconds between two samples; if 0, only errors are recorded.
        nvml: the module `pynvml`, or a substitute.
    """

    def __init__(self, run: RunDirectory, node: int, every_s: float, nvml: Any) -> None:
        self._nvml, self._node, self._every_s, self._host = nvml, node, every_s, socket.gethostname()
        self._events = Timeline(run.events)
        self._samples = Timeline(run.devices / f"node-{node:04d}.jsonl")
        self._handles = dict(chosen(nvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
        self._errors = nvml.nvmlEventSetCreate()
        self._watched = sum(self._watch(handle) for handle in self._handles.values())

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Sample the GPUs and wait for errors until `stop` returns True."""
        due = 0.0
        while not stop():
            if self._every_s and time.monotonic() >= due:
                due = time.monotonic() + self._every_s
                self._samples.append("devices", node=self._node, host=self._host, gpus=self.sample())
            self._wait_for_error()

    def sample(self) -> list[dict[str, Any]]:
        """Return the current values of each GPU, with power in watts and temperature in degrees Celsius. Missing values
        are None."""
        nvml, ecc = self._nvml, (self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC)
        questions: dict[str, Callable[[Any], Any]] = {
            "utilisation": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "power_w": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature_c": lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            "memory_bytes": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            "ecc_uncorrected": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, *ecc),
        }
        return [
            {"gpu": index, **{name: self._ask(question, handle) for name, question in questions.items()}}
            for index, handle in self._handles.items()
        ]

    def _ask(self, question: Callable[[Any], Any], gpu: Any) -> Any:
        try:
            return question(gpu)
        except self._nvml.NVMLError:  # missing sensor
            return None

    def _watch(self, handle: Any) -> bool:
        """Register to receive the errors of a GPU. Return True if the GPU can report any kind of error."""
        try:
            known = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & (_XID | _UNCORRECTED)
            if known:
                self._nvml.nvmlDeviceRegisterEvents(handle, known, self._errors)
            return bool(known)
        except self._nvml.NVMLError:
            return False

    def _wait_for_error(self) -> None:
        if not self._watched:
            time.sleep(WAIT_MS / 1000)
            return
        try:
            found = self._nvml.nvmlEventSetWait_v2(self._errors, WAIT_MS)
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                time.sleep(WAIT_MS / 1000)
            return
        kind = "xid" if found.eventType == _XID else "ecc_uncorrected"
        code = {"xid": int(found.eventData)} if kind == "xid" else {}
        uuid = self._nvml.nvmlDeviceGetUUID(found.device)
        gpu = next((i for i, h in self._handles.items() if self._nvml.nvmlDeviceGetUUID(h) == uuid), None)
        named = {"node": self._node, "host": self._host, "gpu": gpu, "uuid": uuid}
        self._events.append("device_error", kind=kind, **code, **named, durable=True)


def start(run: RunDirectory, node: int, every_s: float) -> threading.Thread | None:
    """Monitor the GPUs of this node until the process ends. If the node has none, log this once and return None."""
    try:
        import pynvml

        pynvml.nvmlInit()
        monitor = DeviceMonitor(run, node, every_s, pynvml)
    except ImportError:
        _say_nothing_is_monitored("the package nvidia-ml-py is not installed (extra `gpu`)")
        return None
    except pynvml.NVMLError as error:
        _say_nothing_is_monitored(f"NVML reports {error}")
        return None
    thread = threading.Thread(target=_until_it_fails, args=(monitor,), name="plinth-devices", daemon=True)
    thread.start()
    return thread


def read_samples(run: RunDirectory) -> list[Event]:
    """Return the GPU samples of all nodes, in time order."""
    found = [event for path in sorted(run.devices.glob("node-*.jsonl")) for event in read_events(path)]
    return sorted(found, key=lambda event: float(event["time"]))


def _until_it_fails(monitor: DeviceMonitor) -> None:
    try:
        monitor.run()
    except (PlinthError, OSError) as error:  # a full disk ends sampling, not the run
        print(f"GPU sampling stopped: {error}", file=sys.stderr, flush=True)


def _say_nothing_is_monitored(why: str) -> None:
    print(f"no GPU of this node is monitored: {why}", file=sys.stderr, flush=True)


def chosen(nvml: Any, visible: str | None) -> Iterable[tuple[int, Any]]:
    """Yield index and handle of the GPUs of this job, which CUDA_VISIBLE_DEVICES lists by index or by UUID."""
    handles = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
    names = [name.strip() for name in visible.split(",")] if visible else []
    return [(i, h) for i, h in handles.items() if not names or _named(nvml, names, i, h)]


def _named(nvml: Any, names: list[str], index: int, handle: Any) -> bool:
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    return any(name == str(index) or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)
