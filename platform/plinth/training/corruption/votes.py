"""Devices that disagree with the others about the same value.

Each value (such as the gradient of one rank's batch) is computed several times, on different devices. A device that
computes different values at different times is faulty. Otherwise the devices vote, one vote each. Without a majority,
all devices with a vote are suspects, and none is faulty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Vote(NamedTuple):
    """A value as computed by one device. Votes with the same `about` should have the same value."""

    about: Hashable
    device: int
    value: int


class DeviceVerdict(NamedTuple):
    """Faulty devices, and further devices that may be faulty, both in ascending order."""

    faulty: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()


def judged(votes: Iterable[Vote]) -> DeviceVerdict | None:
    """Return the verdict on all devices, or None if they agree about every value."""
    by_value = defaultdict[Hashable, defaultdict[int, set[int]]](lambda: defaultdict(set))
    for vote in votes:
        by_value[vote.about][vote.device].add(vote.value)
    faulty, suspects = set[int](), set[int]()
    for devices in by_value.values():
        unsteady = {device for device, values in devices.items() if len(values) > 1}
        steady = {device: next(iter(values)) for device, values in devices.items() if device not in unsteady}
        faulty |= unsteady
        counts = Counter(steady.values()).most_common()
        if len(counts) < 2:
            continue
        if counts[0][1] > counts[1][1]:
            faulty |= {device for device, value in steady.items() if value != counts[0][0]}
        else:
            suspects |= set(steady)
    if not faulty and not suspects:
        return None
    return DeviceVerdict(tuple(sorted(faulty)), tuple(sorted(suspects - faulty)))
