"""Table of devices for planning, and additional devices from a file.

Memory, FLOP/s, memory bandwidth, links within a machine, and power are from data sheets. Links between machines are the
links of the device's usual machine. DGX and similar machines have a network card of 200 or 400 Gb/s per device; L4 and
L40S use AWS g6 and g6e 48xlarge.

Prices are assumptions, in US dollars of May 2026. On-demand prices are about the median of published lists (H100:
aimultiple.com/gpu-index, 2.95; A100 and H200: the specialized clouds of mercatus-ai.com; others: the middle of public
lists). Spot prices are half of that (published: 40% to 70% below). Use a device table to set your own prices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from plinth.errors import RequestError
from plinth.records import Frozen

#: Note about the prices, to print with them.
PRICES = "prices are assumptions in US dollars of May 2026: on demand, the median of public lists; spot, half of that"


class Device(Frozen):
    """Accelerator. Link bandwidths are per device and direction."""

    memory_bytes: int = Field(gt=0, description="Memory in bytes (GB, not GiB).")
    bf16_flops: float = Field(
        gt=0, description="FLOP/s for dense matrices: half of the figure for sparse matrices."
    )
    memory_bytes_per_s: float = Field(gt=0)
    within_bytes_per_s: float = Field(gt=0, description="Bandwidth to other devices of the machine.")
    between_bytes_per_s: float = Field(gt=0, description="Bandwidth to other machines.")
    host_bytes_per_s: float = Field(
        32e9, gt=0, description="Bandwidth to host memory; default: PCIe 4.0 with 16 lanes."
    )
    host_memory_bytes: int = Field(128 * 10**9, gt=0, description="Host memory per device.")
    per_machine: int = Field(8, ge=1, description="Devices per machine.")
    watts: float = Field(ge=0, description="Rated power of the device in watts; 0 if unknown.")
    on_demand_hour: float = Field(ge=0, description="Price per hour.")
    spot_hour: float = Field(ge=0, description="Price per hour on spot capacity.")


def _of(
    gigabytes: int, teraflops: float, memory: float, within: float, between: float, watts: float, price: float,
    host: float, host_gigabytes: int,
) -> Device:  # fmt: skip
    """Return a device, from sizes in GB, TFLOP/s and bandwidths in GB/s."""
    return Device(
        memory_bytes=gigabytes * 10**9,
        bf16_flops=teraflops * 1e12,
        memory_bytes_per_s=memory * 1e9,
        within_bytes_per_s=within * 1e9,
        between_bytes_per_s=between * 1e9,
        host_bytes_per_s=host * 1e9,
        host_memory_bytes=host_gigabytes * 10**9,
        watts=watts,
        on_demand_hour=price,
        spot_hour=price / 2,
    )


#: Devices by name. SXM forms if there are several, except the A100 with 40 GB. Links to the host are PCIe 4.0 or 5.0
#: with 16 lanes; host memory is that of the usual machine, divided by its devices.
DEVICES: dict[str, Device] = {
    "l4": _of(24, 121, 300, 32, 1.5625, 72, 0.80, 32, 96),
    "a100-40": _of(40, 312, 1555, 300, 25, 400, 1.20, 32, 128),
    "l40s": _of(48, 362, 864, 32, 6.25, 350, 1.20, 32, 192),
    "a100-80": _of(80, 312, 2039, 300, 25, 400, 1.50, 32, 256),
    "h100": _of(80, 989, 3350, 450, 50, 700, 2.95, 64, 256),
    "h200": _of(141, 989, 4800, 450, 50, 700, 3.80, 64, 256),
    "b200": _of(180, 2250, 8000, 900, 50, 1000, 5.60, 64, 256),
    "mi300x": _of(192, 1307, 5300, 448, 50, 750, 3.50, 64, 288),
}

#: Usable share of a device's memory; the rest is for the runtime, its libraries and fragmentation.
USABLE = 0.9

_OWN = TypeAdapter(dict[str, Device])


def read(path: Path | None) -> dict[str, Device]:
    """Return the built-in table, preceded by the devices in a YAML file (name -> fields of `Device`).

    Raises:
        RequestError: the file is not a table of devices.
    """
    if path is None:
        return DEVICES
    try:
        return {**DEVICES, **_OWN.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))}
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as cause:
        raise RequestError(
            f"{path} is not a table of devices",
            found=str(cause),
            expected=f"names, each with {', '.join(Device.model_fields)}",
            remedy="see docs/planning.md",
        ) from cause


def find(name: str, table: Mapping[str, Device]) -> tuple[str, Device]:
    """Return a device by its name, ignoring case; `a100` is the A100 with 80 GB.

    Raises:
        RequestError: the table has no such device.
    """
    wanted = name.lower()
    for key in (wanted, f"{wanted}-80"):
        for known, device in table.items():
            if known.lower() == key:
                return known, device
    raise RequestError(
        f"unknown device {name}",
        found=name,
        expected=", ".join(table),
        remedy="use one of these devices, or describe your device in a file and pass it with --device-table",
    )


def called(name: str, table: Mapping[str, Device] = DEVICES) -> str | None:
    """Return the table's name for a driver's device name such as `NVIDIA H100 80GB HBM3`, or None if the table lacks
    the device."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    fits = [key for key in table if all({part, f"{part}gb"} & set(words) for part in key.lower().split("-"))]
    return max(fits, key=len, default=None)


def counted(text: str) -> tuple[int, str]:
    """Parse `512xH100` into 512 and the name.

    Raises:
        RequestError: the text has another form.
    """
    match = re.fullmatch(r"([1-9]\d*)\s*[xX×*]\s*(\S+)", text.strip())
    if match is None:
        raise RequestError(
            f"cannot read the devices {text!r}", found=text, expected="NUMBERxDEVICE", remedy="for example 512xH100"
        )
    return int(match[1]), match[2]
