"""How often to save: the interval that wastes least, from the stall of a save and the time between failures."""

from __future__ import annotations

import math

#: Unplanned interruptions per device and hour: Llama 3's 419 in 54 days on 16,384 H100 (arXiv:2407.21783).
FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16_384)

#: Seconds that a save holds training up, where neither recorded nor stated.
STALL_S = 1.0


def young(stall_s: float, between_failures_s: float) -> float:
    """Seconds between saves to first order (Young 1974)."""
    return math.sqrt(2 * stall_s * between_failures_s)


def daly(stall_s: float, between_failures_s: float) -> float:
    """Seconds between saves to higher order (Daly 2006, equation 37).

    Args:
        stall_s: that a save holds training up, not what its writing takes.
        between_failures_s: of the whole job, mean.
    """
    if stall_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = stall_s / (2 * between_failures_s)
    return young(stall_s, between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def waste(interval_s: float, stall_s: float, restore_s: float, between_failures_s: float) -> float:
    """Share of the time that saves, restores and redone work take."""
    return stall_s / interval_s + (interval_s / 2 + restore_s) / between_failures_s


def between_failures_s(devices: int, per_device_hour: float = FAILURES_PER_DEVICE_HOUR) -> float:
    """Mean seconds between failures of a job."""
    return 3600 / (devices * per_device_hour)
