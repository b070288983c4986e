"""Assumptions on time and money (devices, efficiencies, prices, save intervals), and a workspace's budget settings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from plinth.errors import RequestError
from plinth.launch import devices
from plinth.launch.devices import Device
from plinth.operation.workspace_files import read_settings
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.training.attempts import hardware
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import MachineSpeed

#: Name of measured processors.
CPU = "cpu"


class PlannedDevice(NamedTuple):
    """Device to plan for. `peak` is the FLOP/s that efficiencies refer to; `machine` is the fingerprint of a measured
    machine."""

    name: str
    device: Device
    peak: float
    machine: str = ""


def of_table(name: str, table: Mapping[str, Device]) -> PlannedDevice:
    """Return a device of a table.

    Raises:
        RequestError: the table has no such device.
    """
    found, device = devices.find(name, table)
    return PlannedDevice(found, device, device.bf16_flops)


def this_machine(workspace: Workspace, precision: str, ranks: int) -> PlannedDevice | None:
    """Return the device for `ranks` local ranks, or None for GPUs that are not in the table and for unmeasured
    processors."""
    gpus = hardware()[3]
    if gpus:
        named = devices.called(gpus[0])
        return None if named is None else of_table(named, devices.DEVICES)
    return _processors(workspace, precision, ranks)


def processors(workspace: Workspace, precision: str, ranks: int) -> PlannedDevice:
    """Return this machine's processors, divided among ranks.

    Raises:
        RequestError: their speed was not measured.
    """
    found = _processors(workspace, precision, ranks)
    if found is None:
        raise RequestError(
            f"the processors of this machine were not measured in {precision}",
            found=f"no measurement in {machine_speed.FOLDER}/ of the workspace",
            expected="a measurement of FLOP/s and bandwidth (takes seconds)",
            remedy="`plinth run roofline RUN --measure` with any run of this workspace",
        )
    return found


def _processors(workspace: Workspace, precision: str, ranks: int) -> PlannedDevice | None:
    speed = machine_speed.known(workspace, machine_speed.this_machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None if speed is None else shared(speed, precision, ranks, memory)


def shared(speed: MachineSpeed, precision: str, ranks: int, memory_bytes: int) -> PlannedDevice | None:
    """Return a rank's share of measured processors as a device. It communicates at memory speed; its power and price
    are unknown."""
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


class Efficiency(Frozen):
    """Range of efficiencies (share of the device's peak FLOP/s), with its source. Bubble and communication are
    excluded; the optimizer's time is included."""

    low: float
    high: float
    source: str

    @property
    def middle(self) -> float:
        """Middle of the range, used to rank layouts."""
        return (self.low + self.high) / 2

    def words(self) -> str:
        """Return the range and its source in one line."""
        return f"computation reaches {self.low:.2%} to {self.high:.2%} of the peak ({self.source})"


#: Efficiency to assume if no run is recorded. Published runs reach 38% to 48%, bubble and communication included
#: (docs/planning.md).
STATED = Efficiency(low=0.4, high=0.6, source="stated: no similar run on this device is recorded")


class CorpusPrices(Frozen):
    """Prices in dollars, as published by the large clouds for general machines and standard object storage."""

    core_hour: float = Field(0.04, ge=0, description="Price per core-hour.")
    gigabyte_month: float = Field(0.023, ge=0, description="Price of storage per GB and month.")
    million_requests: float = Field(5.0, ge=0, description="Price per million writes; a read costs one twelfth of it.")

    def requests(self, reads: float, writes: float) -> float:
        """Return the price of reads and writes."""
        return (writes + reads / 12) / 1e6 * self.million_requests


#: Unplanned interruptions per device and hour: Llama 3's 419 in 54 days on 16,384 H100 (arXiv:2407.21783).
FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16_384)

#: Default stall of training per save, in seconds.
STALL_S = 1.0


def young(stall_s: float, between_failures_s: float) -> float:
    """Return the optimal seconds between saves, to first order (Young 1974)."""
    return math.sqrt(2 * stall_s * between_failures_s)


def daly(stall_s: float, between_failures_s: float) -> float:
    """Return the optimal seconds between saves, to higher order (Daly 2006, equation 37).

    Args:
        stall_s: stall of training per save, not the duration of writing.
        between_failures_s: mean time between failures of the whole job.
    """
    if stall_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = stall_s / (2 * between_failures_s)
    return young(stall_s, between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def waste(interval_s: float, stall_s: float, restore_s: float, between_failures_s: float) -> float:
    """Return the share of time lost to saves, restores and repeated work."""
    return stall_s / interval_s + (interval_s / 2 + restore_s) / between_failures_s


def between_failures_s(devices: int, per_device_hour: float = FAILURES_PER_DEVICE_HOUR) -> float:
    """Return the mean seconds between failures of a job."""
    return 3600 / (devices * per_device_hour)


# Settings of a workspace's budget: team, prices, and location of the ledger.

#: Folder of a workspace that holds settings and ledger.
FOLDER = "budget"
#: Variable with the ledger of workspaces whose settings have none.
LEDGER_VARIABLE = "PLINTH_LEDGER"


class Spending(Frozen):
    """Budget settings. Defaults: no team, the recipe's own price per rank, a ledger in the workspace."""

    ledger: str = Field(
        "",
        description="Location of the ledger: `postgresql://…` or a file. If empty, PLINTH_LEDGER or the workspace's "
        "`budget/ledger.sqlite` is used.",
    )
    team: str = Field("", description="Team that the runs of this workspace are charged to.")
    device: str = Field("", description="Device of a rank, by its name in the device table; sets price and power.")
    device_table: Path | None = Field(None, description="Custom device table, as for `plinth run plan --device-table`.")
    spot: bool = Field(False, description="Use spot prices.")
    price_per_rank_hour: float | None = Field(
        None, ge=0, description="Price per rank-hour, instead of the device's price."
    )
    margin: float = Field(
        0.25, ge=0, description="Fraction added to the predicted time for checkpoint saves, evaluation and restarts."
    )
    start_s: float = Field(300.0, ge=0, description="Seconds added for the start-up of each job.")
    prices: CorpusPrices = CorpusPrices()
    grams_co2_per_kwh: float | None = Field(
        None, ge=0, description="Carbon intensity of the grid in grams of CO2 per kWh."
    )
    power_usage_effectiveness: float = Field(1.0, ge=1, description="Power usage effectiveness (PUE) of the site.")

    @property
    def rated(self) -> devices.Device | None:
        """Device of a rank.

        Raises:
            RequestError: the table has no such device.
        """
        return devices.find(self.device, devices.read(self.device_table))[1] if self.device else None

    def price(self, recipe_price: float) -> float:
        """Return the price per rank-hour: the price in these settings, the device's price, or else the recipe's
        price."""
        device = self.rated
        if self.price_per_rank_hour is not None:
            return self.price_per_rank_hour
        if device is not None:
            return device.spot_hour if self.spot else device.on_demand_hour
        return recipe_price


def settings_file(workspace: Workspace) -> Path:
    """Return the file with a workspace's settings."""
    return workspace.root / FOLDER / "settings.yaml"


def load(workspace: Workspace) -> Spending:
    """Return the settings of a workspace.

    Raises:
        RequestError: the file is not a settings file.
    """
    return read_settings(settings_file(workspace), Spending, "is not a valid budget settings file", "docs/costs.md")


def workspace_name(workspace: Workspace) -> str:
    """Return the name of a workspace in the ledger: its location, with links resolved."""
    return workspace.places[0]


def ledger_place(workspace: Workspace, settings: Spending) -> str:
    """Return the location of the ledger: from the settings, else from the environment, else in the workspace."""
    return settings.ledger or os.environ.get(LEDGER_VARIABLE) or str(workspace.root / FOLDER / "ledger.sqlite")
