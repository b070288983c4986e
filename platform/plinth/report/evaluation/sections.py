"""What the sections of the page of an evaluation are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from plinth.evaluation.measurement import Stats
from plinth.report.evaluation.data import Measure, MeasureGroup

BITS = "bits per byte"


def measure(name: str, found: Stats, value: str = "value", **more: Any) -> Measure:
    """A measure out of the fields of an estimate, which every statistic of an evaluation carries."""
    note = ", ".join(found.get("flags", ()))
    fields = {"low": found["low"], "high": found["high"], "n": found["n"], "seed": found.get("seed"), "note": note}
    return Measure(name=name, value=found[value], **fields | more)


def group(
    title: str, unit: str, better: Literal["lower", "higher"], reference: str, measures: Sequence[Measure]
) -> MeasureGroup:
    """Measures that are drawn on one axis, in `unit`."""
    return MeasureGroup(title=title, unit=unit, better=better, reference_name=reference, measures=tuple(measures))
