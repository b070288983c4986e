"""The record of a metric, a sample of one, and the text format in which Prometheus reads them.

Does not belong here: which metrics there are (`run_metrics` has those of a run).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

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


_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}

#: Lines of the text format, by metric.
MetricLines = Mapping[str, str]


def exposition(metrics: Mapping[str, Metric], samples: Iterable[MetricSample]) -> bytes:
    """Samples as text, grouped by metric, in the order of the table; a metric without samples is left out.

    The bytes are those of prometheus_client's `generate_latest`, which takes ten times as long: a workspace of a
    thousand runs has tens of thousands of samples.

    Raises:
        KeyError: a sample of a metric that the table does not have.
    """
    return joined(metrics, (lines(metrics, samples),))


def lines(metrics: Mapping[str, Metric], samples: Iterable[MetricSample]) -> MetricLines:
    """The lines of samples by metric: an eighth of the samples' memory, and written once while they stand.

    Raises:
        KeyError: as `exposition`.
    """
    found: dict[str, list[str]] = {}
    for name, labels, value in samples:
        found.setdefault(name, []).append(f"{_series(name, metrics[name].labels, labels)} {go_number(value)}\n")
    return {name: "".join(own) for name, own in found.items()}


def joined(metrics: Mapping[str, Metric], sources: Sequence[MetricLines]) -> bytes:
    """The text of lines from several sources."""
    text = bytearray()
    for name, one in metrics.items():
        if own := "".join([source[name] for source in sources if name in source]):
            text += f"# HELP {name} {one.meaning}\n# TYPE {name} {one.kind}\n{own}".encode()
    return bytes(text)


def go_number(value: float) -> str:
    """A number as Go's libraries write it, which take exponents from a million on; as prometheus_client does, whose
    import would cost every reader of a run a megabyte."""
    text = repr(float(value))
    whole, point, decimals = text.partition(".")
    if point and len(whole) > 6 and value > 0:
        digits = (whole[1:] + decimals).rstrip("0")
        return f"{whole[0]}{point if digits else ''}{digits}e+{len(whole) - 1:02d}"
    return _SPECIAL.get(text, text)


def _series(name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = sorted(zip(labels, values, strict=True))
    written = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
    return f"{name}{{{written}}}" if written else name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
