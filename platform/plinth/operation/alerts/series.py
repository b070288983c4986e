"""Sampled series in memory, read as Prometheus 2 reads them: the last sample of five minutes, changes over a range.

    found = SampledSeries()
    found.add("plinth_step", {"run": "r"}, time, value)     None: the series ends here
    found.at("plinth_step", {}, time)                       labels -> value
    found.delta("plinth_step", {}, time, window_s)          labels -> change over the window, extrapolated to its ends

Does not belong here: where samples come from, and what is made of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

#: Names and values of labels, sorted.
Labels: TypeAlias = tuple[tuple[str, str], ...]

#: Seconds for which a sample counts when none follows, the last one too (`--query.lookback-delta` of Prometheus 2).
LOOKBACK_S = 300.0

#: Of the mean distance between samples: no farther from an end of the range may a series be extrapolated wholly.
_NEAR = 1.1


class SampledSeries:
    """Series by name and labels; samples are added in the order of their times."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, Labels], list[float]] = {}
        self._values: dict[tuple[str, Labels], list[float | None]] = {}
        self._labels: dict[str, list[Labels]] = defaultdict(list)

    def add(self, name: str, labels: Mapping[str, str], time: float, value: float | None) -> None:
        """Add a sample; None ends the series until the next one.

        Args:
            time: Unix seconds, none before that of the series' last sample.
        """
        key = name, tuple(sorted(labels.items()))
        if key not in self._times:
            self._times[key], self._values[key] = [], []
            self._labels[name].append(key[1])
        if self._times[key] and time < self._times[key][-1]:
            raise ValueError(f"a sample of {name} at {time} after one at {self._times[key][-1]}")
        self._times[key].append(time)
        self._values[key].append(value)

    def at(self, name: str, where: Mapping[str, str], time: float) -> dict[Labels, float]:
        """The value of every series of a name whose labels have these values."""
        found = {}
        for labels in self._matching(name, where):
            times = self._times[name, labels]
            last = bisect_right(times, time) - 1
            if last >= 0 and times[last] >= time - LOOKBACK_S:
                value = self._values[name, labels][last]
                if value is not None:
                    found[labels] = value
        return found

    def delta(self, name: str, where: Mapping[str, str], time: float, window_s: float) -> dict[Labels, float]:
        """Change of every series over a window, as PromQL's `delta` has it.

        Source: `extrapolatedRate` of Prometheus 2 (promql/functions.go).
        """
        found = {}
        for labels in self._matching(name, where):
            times, values = self._times[name, labels], self._values[name, labels]
            first, end = bisect_left(times, time - window_s), bisect_right(times, time)
            kept = [(at, value) for at, value in zip(times[first:end], values[first:end], strict=True)
                    if value is not None]  # fmt: skip
            if len(kept) > 1:
                change = kept[-1][1] - kept[0][1]
                found[labels] = change * _extrapolated(kept[0][0], kept[-1][0], len(kept), time, window_s)
        return found

    def _matching(self, name: str, where: Mapping[str, str]) -> Iterator[Labels]:
        for labels in self._labels.get(name, ()):
            own = dict(labels)
            if all(own.get(label, "") == value for label, value in where.items()):
                yield labels


def _extrapolated(first: float, last: float, samples: int, time: float, window_s: float) -> float:
    """By what a change between the first and last sample is multiplied to be that of the whole window."""
    sampled = last - first
    between = sampled / (samples - 1)
    before, after = first - (time - window_s), time - last
    reach = sampled
    reach += before if before < between * _NEAR else between / 2
    reach += after if after < between * _NEAR else between / 2
    return reach / sampled
