"""Devices as the planner takes them: of its table, or this machine's processors as they were measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from plinth.errors import RequestError
from plinth.launch import devices
from plinth.launch.devices import Device
from plinth.storage.workspace import Workspace
from plinth.training.attempts import hardware
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import MachineSpeed

#: Name of processors that were measured.
CPU = "cpu"


class PlannedDevice(NamedTuple):
    """A device by its name. `peak` is the FLOP/s that an efficiency is a share of, `machine` its fingerprint."""

    name: str
    device: Device
    peak: float
    machine: str = ""


def of_table(name: str, table: Mapping[str, Device]) -> PlannedDevice:
    """A device of a table.

    Raises:
        RequestError: the table has no such device.
    """
    found, device = devices.find(name, table)
    return PlannedDevice(found, device, device.bf16_flops)


def this_machine(workspace: Workspace, precision: str, ranks: int) -> PlannedDevice | None:
    """What so many local ranks would train on; None: GPUs that the table has not, or processors never measured."""
    gpus = hardware()[3]
    if gpus:
        named = devices.called(gpus[0])
        return None if named is None else of_table(named, devices.DEVICES)
    return _processors(workspace, precision, ranks)


def processors(workspace: Workspace, precision: str, ranks: int) -> PlannedDevice:
    """This machine's processors, divided among ranks.

    Raises:
        RequestError: they were not measured.
    """
    found = _processors(workspace, precision, ranks)
    if found is None:
        raise RequestError(
            f"the processors of this machine were not measured in {precision}",
            found=f"no such measurement below {machine_speed.FOLDER}/ of the workspace",
            expected="FLOP/s and bandwidth, which a few seconds give",
            remedy="`plinth run roofline RUN --measure` with any run of this workspace",
        )
    return found


def _processors(workspace: Workspace, precision: str, ranks: int) -> PlannedDevice | None:
    speed = machine_speed.known(workspace, machine_speed.this_machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None if speed is None else shared(speed, precision, ranks, memory)


def shared(speed: MachineSpeed, precision: str, ranks: int, memory_bytes: int) -> PlannedDevice | None:
    """A rank's share of measured processors: it sends at the pace of memory; power and price are not known."""
    found = next((one for one in speed.devices if one.kind == CPU and precision in one.flops), None)
    if found is None:
        return None
    bandwidth, memory = found.bytes_per_s / ranks, memory_bytes // ranks
    device = Device(
        memory_bytes=memory, host_memory_bytes=memory, bf16_flops=found.flops[precision] / ranks,
        memory_bytes_per_s=bandwidth, within_bytes_per_s=bandwidth, between_bytes_per_s=bandwidth,
        host_bytes_per_s=bandwidth, per_machine=ranks, watts=0, on_demand_hour=0, spot_hour=0,
    )  # fmt: skip
    return PlannedDevice(CPU, device, found.flops[precision], speed.machine)
