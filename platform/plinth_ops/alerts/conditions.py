"""Conditions of alerts: each is one PromQL expression, and the same computed over sampled series.

    SampledSeries  samples in memory, read as Prometheus 2 reads them
    Threshold      a value is above, below or at a limit
    Age            seconds since a time that a metric states are above or below a limit
    Rise           a value has changed by more than a limit over a window
    Ratio          a part of a whole is above a limit
    BurnRate       an error budget is spent too fast, over a long and a short window
    Missing        a metric is absent: everywhere, or of active runs
    Unanswered     an alert of a severity fires

`active` limits a condition to active runs. Labels of the result are those of the metric.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from pydantic import Field

from plinth.records import Frozen

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


#: 1 for runs whose job is under way.
ACTIVE: Final = "plinth_run_active"

#: The series that Prometheus keeps of its alerts.
ALERTS: Final = "ALERTS"

Comparison = Literal[">", ">=", "<", "<=", "=="]
Vector = dict[Labels, float]


class SeriesSelector(Frozen):
    """Series of a metric whose labels have these values."""

    metric: str
    where: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """It in PromQL."""
        inner = ",".join(f'{label}="{value}"' for label, value in sorted(self.where.items()))
        return f"{self.metric}{{{inner}}}" if inner else self.metric

    def at(self, series: SampledSeries, time: float) -> Vector:
        """The values at a time."""
        return series.at(self.metric, self.where, time)


class Condition(Frozen):
    """What an alert waits for."""

    @property
    @abstractmethod
    def expression(self) -> str:
        """It in PromQL."""

    @property
    @abstractmethod
    def selectors(self) -> tuple[SeriesSelector, ...]:
        """The series that it reads."""

    @abstractmethod
    def vector(self, series: SampledSeries, time: float) -> Vector:
        """The labels for which it holds, each with its value."""


class Compared(Condition):
    """A value of each series, compared with a limit."""

    of: SeriesSelector
    comparison: Comparison
    limit: float
    active: bool = False

    @property
    def expression(self) -> str:
        compared = f"{self._value} {self.comparison} {number(self.limit)}"
        return f"({compared}) and on (run) ({ACTIVE} == 1)" if self.active else compared

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return (self.of, *((SeriesSelector(metric=ACTIVE),) if self.active else ()))

    def vector(self, series: SampledSeries, time: float) -> Vector:
        found = {
            labels: value for labels, value in self._values(series, time).items()
            if holds(value, self.comparison, self.limit)
        }  # fmt: skip
        if not self.active:
            return found
        runs = {dict(labels).get("run") for labels, one in series.at(ACTIVE, {}, time).items() if one == 1}
        return {labels: value for labels, value in found.items() if dict(labels).get("run") in runs}

    @property
    @abstractmethod
    def _value(self) -> str: ...

    @abstractmethod
    def _values(self, series: SampledSeries, time: float) -> Vector: ...


class Threshold(Compared):
    """The value itself."""

    @property
    def _value(self) -> str:
        return self.of.text

    def _values(self, series: SampledSeries, time: float) -> Vector:
        return self.of.at(series, time)


class Age(Compared):
    """Seconds since the Unix time that the metric states; below 0 where that lies ahead."""

    @property
    def _value(self) -> str:
        return f"time() - {self.of.text}"

    def _values(self, series: SampledSeries, time: float) -> Vector:
        return {labels: time - value for labels, value in self.of.at(series, time).items()}


class Rise(Compared):
    """How far the value has changed over a window; below 0 where it fell."""

    window_s: float = Field(gt=0)

    @property
    def _value(self) -> str:
        return f"delta({self.of.text}[{duration(self.window_s)}])"

    def _values(self, series: SampledSeries, time: float) -> Vector:
        return series.delta(self.of.metric, self.of.where, time, self.window_s)


class Ratio(Compared):
    """The value over that of `whole` with the same values of some labels."""

    whole: SeriesSelector
    on: tuple[str, ...] = ("run",)

    @property
    def _value(self) -> str:
        return f"{self.of.text} / on ({', '.join(self.on)}) group_left () {self.whole.text}"

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return (*super().selectors, self.whole)

    def _values(self, series: SampledSeries, time: float) -> Vector:
        whole = {self._key(labels): value for labels, value in self.whole.at(series, time).items()}
        found = self.of.at(series, time)
        return {
            labels: quotient(value, whole[self._key(labels)])
            for labels, value in found.items()
            if self._key(labels) in whole
        }

    def _key(self, labels: Labels) -> tuple[str, ...]:
        own = dict(labels)
        return tuple(own.get(name, "") for name in self.on)


class BurnWindow(Frozen):
    """A long window and a short one; the budget's share that may be spent in the long one.

    The short one lets the alert clear soon after the cause is gone (the SRE workbook, "Alerting on SLOs").
    """

    long_s: float = Field(gt=0)
    short_s: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)

    def factor(self, period_s: float) -> float:
        """How many times faster than evenly over the period the budget is spent when the condition begins to hold."""
        return self.share * period_s / self.long_s


class BurnRate(Condition):
    """The bad share of what has been added to a total, over both windows of any pair, all series together.

    Attributes:
        good, total: series that grow by rank-seconds; the account may take some of them back.
        objective: share that has to be good over `period_s`.
        least: total, all series together, below which nothing is said: the start of a first run is not judged.
    """

    good: SeriesSelector
    total: SeriesSelector
    objective: float = Field(gt=0, lt=1)
    period_s: float = Field(gt=0)
    windows: tuple[BurnWindow, ...]
    least: float = Field(0.0, ge=0)

    def threshold(self, pair: BurnWindow) -> float:
        """The bad share above which a pair's condition holds; at 1 and above it never does."""
        return pair.factor(self.period_s) * (1 - self.objective)

    @property
    def expression(self) -> str:
        enough = [f"(sum({self.total.text}) >= {number(self.least)})"] if self.least else []
        return " or ".join(
            " and ".join(
                [f"({self._bad(window)} > {number(self.threshold(pair))})" for window in (pair.long_s, pair.short_s)]
                + enough
            )
            for pair in self.windows
        )

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return (self.good, self.total)

    def vector(self, series: SampledSeries, time: float) -> Vector:
        if self.least and sum(self.total.at(series, time).values()) < self.least:
            return {}
        for pair in self.windows:
            long, short = (self._bad_share(series, time, window) for window in (pair.long_s, pair.short_s))
            if long > self.threshold(pair) and short > self.threshold(pair):
                return {(): long}
        return {}

    def _bad(self, window_s: float) -> str:
        good, total = (f"sum(delta({one.text}[{duration(window_s)}]))" for one in (self.good, self.total))
        return f"1 - {good} / {total}"

    def _bad_share(self, series: SampledSeries, time: float, window_s: float) -> float:
        """NaN, which no comparison holds for, where nothing was added."""
        good, total = (series.delta(one.metric, one.where, time, window_s) for one in (self.good, self.total))
        return 1 - quotient(sum(good.values()), sum(total.values())) if good and total else math.nan


class Missing(Condition):
    """No series of the metric; or none for a run whose job is under way."""

    of: SeriesSelector
    active: bool = False

    @property
    def expression(self) -> str:
        return f"({ACTIVE} == 1) unless on (run) {self.of.text}" if self.active else f"absent({self.of.text})"

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return (self.of, *((SeriesSelector(metric=ACTIVE),) if self.active else ()))

    def vector(self, series: SampledSeries, time: float) -> Vector:
        there = self.of.at(series, time)
        if not self.active:
            return {} if there else {tuple(sorted(self.of.where.items())): 1.0}
        runs = {dict(labels).get("run") for labels in there}
        active = series.at(ACTIVE, {}, time)
        return {labels: one for labels, one in active.items() if one == 1 and dict(labels).get("run") not in runs}


class Unanswered(Condition):
    """Alerts of a severity fire, by run and owner. Evaluated after them, over the series `ALERTS` that they make."""

    severity: str

    @property
    def expression(self) -> str:
        return f"max by (run, owner) ({self._fired.text})"

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return ()

    def vector(self, series: SampledSeries, time: float) -> Vector:
        found = self._fired.at(series, time)
        return {tuple(pair for pair in labels if pair[0] in ("run", "owner")): one for labels, one in found.items()}

    @property
    def _fired(self) -> SeriesSelector:
        return SeriesSelector(metric=ALERTS, where={"alertstate": "firing", "severity": self.severity})


def holds(value: float, comparison: Comparison, limit: float) -> bool:
    """Whether a comparison holds; with NaN none does."""
    return {
        ">": value > limit,
        ">=": value >= limit,
        "<": value < limit,
        "<=": value <= limit,
        "==": value == limit,
    }[comparison]


def quotient(part: float, whole: float) -> float:
    """As PromQL divides: by 0 it gives infinity, and NaN for 0 / 0."""
    if whole:
        return part / whole
    return math.copysign(math.inf, part) if part else math.nan


def number(value: float) -> str:
    """A number in PromQL."""
    return f"{value:.10g}"


def duration(seconds: float) -> str:
    """A duration in PromQL: the largest unit that gives a whole number."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"


def metrics_of(conditions: Sequence[Condition]) -> list[str]:
    """Names of the metrics that conditions read, sorted."""
    return sorted({selector.metric for one in conditions for selector in one.selectors})
