"""Peak speed of a machine: measured FLOP/s of large matrix products, and memory bandwidth.

A separate process measures once (machine_probe), so callers do not import torch. The result is in the workspace's
`machines/`, under the fingerprint of processors and torch, so identical machines share it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from importlib import metadata

from pydantic import Field, ValidationError

from plinth import fingerprint, processes
from plinth.errors import IntegrityError, WorkerError
from plinth.launch.parameters import Launch
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.training.attempts import HostFacts, hardware

#: Folder in the workspace.
FOLDER = "machines"

#: Timeout of the probe, in seconds; it takes a few seconds per device.
TIMEOUT_S = 300.0


class Roof(Frozen):
    """Measured peak speed of one rank's device."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which arithmetic limits the speed, and below which memory bandwidth does."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """Return the attainable FLOP/s at `intensity` FLOPs per byte."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


class DeviceSpeed(Frozen):
    """Measured speed of one GPU, or of all processors of a machine together."""

    kind: str = Field(description="Kind of device: cpu or cuda.")
    index: int = Field(0, ge=0)
    name: str
    flops: Mapping[str, float] = Field(description="FLOP/s by precision: fp32, bf16; on GPUs also tf32 and fp16.")
    bytes_per_s: float = Field(
        gt=0, description="Bandwidth of a copy in device memory, in bytes read and written per second."
    )


class MachineSpeed(Frozen):
    """Measured speeds of a machine's devices, with the machine's fingerprint."""

    machine: str
    devices: tuple[DeviceSpeed, ...]

    def roof(self, kind: str, precision: str, launch: Launch) -> tuple[Roof, DeviceSpeed] | None:
        """Return the peak speed of one rank's device, and the measured device: the slowest GPU, or all processors
        together.

        Return None if there is no such device, or if the precision was not measured on it.
        """
        able = [one for one in self.devices if one.kind == kind and precision in one.flops]
        if not able:
            return None
        slowest = min(able, key=lambda one: one.flops[precision])
        shared = launch.ranks_per_node if kind == "cpu" else 1
        bandwidth = min(one.bytes_per_s for one in able)
        return Roof(flops_per_s=slowest.flops[precision] / shared, bytes_per_s=bandwidth / shared), slowest


def this_machine() -> str:
    """Return the fingerprint of this machine's processors, GPUs and torch version."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return _fingerprint(hardware(), torch)


def machine_of(host: HostFacts) -> str:
    """Return the fingerprint of a machine from the facts that it reported when its ranks started."""
    return _fingerprint(host.hardware, host.libraries.get("torch", ""))


def _fingerprint(processors: tuple[object, ...], torch: str) -> str:
    return fingerprint.digest({"processors": processors, "torch": torch})[:16]


def known(workspace: Workspace, machine: str) -> MachineSpeed | None:
    """Return the measured speed of a machine, or None if it was not measured yet.

    Raises:
        IntegrityError: the file is damaged.
    """
    found = workspace.objects(FOLDER).get(f"{machine}.json")
    if found is None:
        return None
    try:
        return MachineSpeed.model_validate_json(found.data)
    except ValidationError as cause:
        raise IntegrityError(
            f"the measured speed of machine {machine} cannot be read",
            found=str(cause),
            remedy="measure again: `plinth run roofline RUN --measure`",
        ) from cause


def measure(workspace: Workspace) -> MachineSpeed:
    """Measure the speed of this machine, and replace an earlier result.

    Raises:
        WorkerError: the probe failed, or torch is not installed.
        StorageError: the result could not be written.
    """
    made = MachineSpeed(machine=this_machine(), devices=tuple(DeviceSpeed(**one) for one in _probed()))
    objects, name = workspace.objects(FOLDER), f"{made.machine}.json"
    earlier = objects.get(name)
    objects.put(name, made.model_dump_json(indent=1).encode(), earlier.tag if earlier else None)
    return made


def _probed() -> list[dict[str, object]]:
    command = processes.python("plinth.training.telemetry.machine_probe")
    try:
        # the probe may use all threads of the machine
        done = processes.run(command, own={"OMP_NUM_THREADS": ""}, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as cause:
        raise WorkerError(
            "measuring this machine took too long", expected=f"at most {TIMEOUT_S:g} s", remedy="retry when idle"
        ) from cause
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise WorkerError(
            "this machine could not be measured",
            found=said[-1] if said else f"status {done.returncode}",
            expected="torch, and memory for a copy",
            remedy="install plinth with its training extra, or check which other processes use the machine",
        )
    found: list[dict[str, object]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
