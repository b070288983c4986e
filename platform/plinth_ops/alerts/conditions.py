"""Alert conditions. Each condition is one PromQL expression, which Prometheus evaluates.

    Threshold   a value is above, below or at a limit
    Age         the age of a timestamp metric is above or below a limit
    Rise        a value has changed by more than a limit over a window
    Ratio       the ratio of two metrics is above a limit
    BurnRate    an error budget is spent too fast, over a long and a short window
    Missing     a metric is absent everywhere, or is absent for an active run
    Unanswered  an alert of a given severity is firing

`active` limits a condition to active runs. The result of an expression has the labels of the metric. Conditions that
need only one sample (`Threshold`, `Age`) can also be evaluated here, for game days.
"""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from pydantic import Field

from plinth.records import Frozen

#: Metric that is 1 for runs with a running job.
ACTIVE: Final = "plinth_run_active"

Comparison = Literal[">", ">=", "<", "<=", "=="]

_COMPARES: Final[Mapping[Comparison, Callable[[float, float], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip


class SeriesSelector(Frozen):
    """Selector of a metric's time series by label values."""

    metric: str
    where: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """Text of the selector in PromQL."""
        inner = ",".join(f'{label}="{value}"' for label, value in sorted(self.where.items()))
        return f"{self.metric}{{{inner}}}" if inner else self.metric

    def selects(self, metric: str, labels: Mapping[str, str]) -> bool:
        """Return True if the selector matches a time series with this metric and these labels."""
        return metric == self.metric and self.where.items() <= labels.items()


class Condition(Frozen):
    """Condition of an alert."""

    @property
    @abstractmethod
    def expression(self) -> str:
        """The condition as a PromQL expression."""

    @property
    @abstractmethod
    def selectors(self) -> tuple[SeriesSelector, ...]:
        """Selectors of the time series that the condition reads."""


class Compared(Condition):
    """Condition that compares one value per time series with a limit."""

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

    def reached(self, value: float, time: float) -> bool:
        """Return True if a sample satisfies the condition. If one sample is not enough to decide, return False."""
        return _COMPARES[self.comparison](self._read(value, time), self.limit)

    @property
    @abstractmethod
    def _value(self) -> str: ...

    def _read(self, value: float, time: float) -> float:
        return math.nan


class Threshold(Compared):
    """Condition that compares the value of a metric with a limit."""

    @property
    def _value(self) -> str:
        return self.of.text

    def _read(self, value: float, time: float) -> float:
        return value


class Age(Compared):
    """Condition that compares the age of a timestamp metric, in seconds, with a limit.

    The age of a future timestamp is negative.
    """

    @property
    def _value(self) -> str:
        return f"time() - {self.of.text}"

    def _read(self, value: float, time: float) -> float:
        return time - value


class Rise(Compared):
    """Condition that compares the change of a metric over a window with a limit. The change is negative if the metric
    fell."""

    window_s: float = Field(gt=0)

    @property
    def _value(self) -> str:
        return f"delta({self.of.text}[{duration(self.window_s)}])"


class Ratio(Compared):
    """Condition that compares the ratio of a metric to the metric `whole` with a limit. Series are matched on the
    labels `on`."""

    whole: SeriesSelector
    on: tuple[str, ...] = ("run",)

    @property
    def _value(self) -> str:
        return f"{self.of.text} / on ({', '.join(self.on)}) group_left () {self.whole.text}"

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return (*super().selectors, self.whole)


class BurnWindow(Frozen):
    """Windows of a burn-rate alert, and the share of the error budget that may be spent in the long window.

    The short window lets the alert clear soon after the cause is gone (the SRE workbook, "Alerting on SLOs").
    """

    long_s: float = Field(gt=0)
    short_s: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)

    def factor(self, period_s: float) -> float:
        """Return the burn rate above which the alert fires. A rate of 1 spends the budget evenly over the period."""
        return self.share * period_s / self.long_s


class BurnRate(Condition):
    """Condition that an error budget is spent too fast in both windows of a pair. The budget is summed over all series.

    Attributes:
        good, total: series of the good rank-seconds and of all rank-seconds; a later correction may lower their values.
        objective: required good share over `period_s`.
        windows: pairs of windows; the condition is true if any pair exceeds its threshold.
        least: minimum total rank-seconds over all series. The alert does not fire below this minimum, so that the start
            of a first run raises no alert.
    """

    good: SeriesSelector
    total: SeriesSelector
    objective: float = Field(gt=0, lt=1)
    period_s: float = Field(gt=0)
    windows: tuple[BurnWindow, ...]
    least: float = Field(0.0, ge=0)

    def threshold(self, pair: BurnWindow) -> float:
        """Return the bad share above which a pair of windows fires. If the threshold is 1 or more, the pair never
        fires."""
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

    def _bad(self, window_s: float) -> str:
        good, total = (f"sum(delta({one.text}[{duration(window_s)}]))" for one in (self.good, self.total))
        return f"1 - {good} / {total}"


class Missing(Condition):
    """Condition that a metric is absent everywhere, or is absent for any active run."""

    of: SeriesSelector
    active: bool = False

    @property
    def expression(self) -> str:
        return f"({ACTIVE} == 1) unless on (run) {self.of.text}" if self.active else f"absent({self.of.text})"

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return (self.of, *((SeriesSelector(metric=ACTIVE),) if self.active else ()))


class Unanswered(Condition):
    """Condition that an alert with a given severity is firing, by run and owner.

    Its rule must be evaluated after the rules of these alerts, because it reads their `ALERTS` series.
    """

    severity: str

    @property
    def expression(self) -> str:
        fired = SeriesSelector(metric="ALERTS", where={"alertstate": "firing", "severity": self.severity})
        return f"max by (run, owner) ({fired.text})"

    @property
    def selectors(self) -> tuple[SeriesSelector, ...]:
        return ()


def number(value: float) -> str:
    """Format a number for PromQL."""
    return f"{value:.10g}"


def duration(seconds: float) -> str:
    """Format a duration for PromQL, in the largest unit that gives a whole number."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"


def metrics_of(conditions: Sequence[Condition]) -> list[str]:
    """Return the sorted names of the metrics that the conditions read."""
    return sorted({selector.metric for one in conditions for selector in one.selectors})
