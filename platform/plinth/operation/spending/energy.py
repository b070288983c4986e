"""Energy and carbon of a run's devices: measured where their power was sampled, rated where it was not, and which.

Power is taken as linear between two samples of a device. Seconds that no pair of samples covers count at the rated
power of the device that the settings name. Only the devices are counted, times the site's power usage effectiveness:
hosts, network and storage are in neither figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Two samples that are further apart than so many of their intervals have a gap between them.
GAP = 3.0

_JOULES_PER_KWH = 3.6e6


class Energy(NamedTuple):
    """Of the devices, with the site's overhead.

    Args:
        kwh: measured and rated together; None where neither is known for some of the time.
        measured: share of the device-seconds whose power was sampled.
    """

    kwh: float | None
    measured: float

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        if self.kwh is None:
            return "not known: no samples of power, and no device is named"
        shares = {"measured": self.measured, "at rated power": 1 - self.measured}
        return ", ".join(f"{share:.0%} {how}" for how, share in shares.items() if share >= 0.005)

    def kilograms(self, grams_co2_per_kwh: float | None) -> float | None:
        """Of CO2, where the grid's intensity is stated."""
        known = self.kwh is not None and grams_co2_per_kwh is not None
        return self.kwh * grams_co2_per_kwh / 1000 if known else None  # type: ignore[operator]


def energy(
    samples: Iterable[Mapping[str, Any]], rank_s: float, every_s: float, watts: float | None, overhead: float
) -> Energy:
    """Of a run.

    Args:
        samples: of its devices, in the order of their times (`training.telemetry.devices`).
        rank_s: seconds that its ranks, one a device, were held.
        every_s: between two samples.
        watts: rated, of a device.
        overhead: power usage effectiveness of the site.
    """
    joules, covered = sampled(samples, GAP * every_s)
    covered = min(covered, rank_s)
    rest = rank_s - covered
    measured = covered / rank_s if rank_s else 0.0
    if watts is None and rest > 0.005 * rank_s:
        return Energy(None, measured)
    return Energy((joules + rest * (watts or 0.0)) * overhead / _JOULES_PER_KWH, measured)


def sampled(samples: Iterable[Mapping[str, Any]], gap_s: float) -> tuple[float, float]:
    """Joules between samples of the same device that are at most `gap_s` apart, and the device-seconds these cover."""
    last: dict[tuple[int, int], tuple[float, float]] = {}
    joules: dict[tuple[int, int], float] = defaultdict(float)
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    for event in samples:
        now = float(event["time"])
        for gpu in event["gpus"]:
            device, power = (int(event["node"]), int(gpu["gpu"])), gpu.get("power_w")
            before = last.pop(device, None)
            if power is None:
                continue
            last[device] = now, float(power)
            if before is not None and 0 <= now - before[0] <= gap_s:
                joules[device] += (now - before[0]) * (before[1] + float(power)) / 2
                seconds[device] += now - before[0]
    return sum(joules.values()), sum(seconds.values())
