"""The record of a metric, a sample of one, and both as prometheus_client takes them.

Does not belong here: which metrics there are (`run_metrics` has those of a run).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from pydantic import Field

from plinth.records import Frozen

#: When a metric has a series: whenever its part is collected; for every run whose job is under way; or not always.
Presence = Literal["always", "active", "sometimes"]


class Metric(Frozen):
    """One metric.

    Attributes:
        unit: as the end of its name has it; empty for plain numbers and ratios.
        source: the file, record or event that it comes from.
        part: of the exporter; it is collected, and fails, together with the others of its part.
    """

    name: str = Field(pattern=r"^plinth_[a-z0-9_]+$")
    kind: Literal["gauge", "counter"] = "gauge"
    unit: str = ""
    labels: tuple[str, ...] = ()
    meaning: str
    source: str
    part: str = "runs"
    presence: Presence = "sometimes"


class MetricSample(NamedTuple):
    """A value of a metric."""

    name: str
    labels: tuple[str, ...]  # values, in the order of the metric's labels
    value: float


class Families(Collector):
    """Samples for prometheus_client, by metric in the order of a table; a metric without samples is left out.

    Args:
        metrics: the table.
        samples: gives the samples now.
    """

    def __init__(self, metrics: Mapping[str, Metric], samples: Callable[[], Iterable[MetricSample]]) -> None:
        self._metrics, self._samples = metrics, samples

    def collect(self) -> list[Family]:
        """Families of metrics.

        Raises:
            KeyError: a sample of a metric that the table does not have.
        """
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, labels, value in self._samples():
            if name not in found:
                kind = CounterMetricFamily if self._metrics[name].kind == "counter" else GaugeMetricFamily
                found[name] = kind(name, self._metrics[name].meaning, labels=self._metrics[name].labels)
            found[name].add_metric(labels, value)
        return [found[name] for name in self._metrics if name in found]
