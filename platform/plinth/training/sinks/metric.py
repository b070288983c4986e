"""The record of a metric, a sample of one, and the text format in which Prometheus reads them.

Does not belong here: which metrics there are (`run_metrics` has those of a run, `plinth.operation.metrics` all).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
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


def exposition(metrics: Mapping[str, Metric], samples: Iterable[MetricSample]) -> bytes:
    """Samples as text, grouped by metric, in the order of the table; a metric without samples is left out.

    Raises:
        KeyError: a sample of a metric that the table does not have.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(metrics, samples))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, metrics: Mapping[str, Metric], samples: Iterable[MetricSample]) -> None:
        self._metrics, self._samples = metrics, samples

    def describe(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        return []

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self._samples:
            family = families.get(sample.name)
            if family is None:
                metric = self._metrics[sample.name]
                made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = families[sample.name] = made(metric.name, metric.meaning, labels=metric.labels)
            family.add_metric(sample.labels, sample.value)
        return [families[name] for name in self._metrics if name in families]
