"""The table of devices that plans are made for: figures of their makers' data sheets."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """One accelerator."""

    memory_bytes: int  # GB, not GiB
    bf16_flops: float  # per second, dense: half of the figure for sparse matrices where only that is printed
    memory_bytes_per_s: float


#: By name. The forms with SXM where there are several, but the A100 with 40 GB.
DEVICES: dict[str, Device] = {
    "l4": Device(24 * 10**9, 121e12, 300e9),
    "a100-40": Device(40 * 10**9, 312e12, 1555e9),
    "l40s": Device(48 * 10**9, 362e12, 864e9),
    "a100-80": Device(80 * 10**9, 312e12, 2039e9),
    "h100": Device(80 * 10**9, 989e12, 3350e9),
    "h200": Device(141 * 10**9, 989e12, 4800e9),
    "b200": Device(180 * 10**9, 2250e12, 8000e9),
}

#: Share of a device's memory that is planned with; the rest is for the runtime, its libraries and fragmentation.
USABLE = 0.9
