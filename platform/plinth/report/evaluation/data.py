"""Contents of the page of an evaluation, as plain records. The page leaves absent sections out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from plinth.evaluation.measurement import Stats
from plinth.records import Frozen
from plinth.report.data import Fact, Next


class Measure(Frozen):
    """A score with its interval. `reference` is what it is read against: its control, a baseline, chance."""

    name: str
    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    seed: int | None = Field(None, description="Of the interval's draws, where it draws.")
    reference: float | None = None
    noise: float | None = Field(None, description="Standard deviation over looks at the run, or over seeds.")
    decides: bool = Field(True, description="False where the score is not above its own noise.")
    note: str = ""


class MeasureGroup(Frozen):
    """Measures of one unit, drawn on one axis."""

    title: str
    unit: str
    better: Literal["lower", "higher"]
    measures: tuple[Measure, ...]
    reference_name: str = ""


class StepCurve(Frozen):
    """A measure over the steps of the run; `noise` is drawn as a band."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    noise: float | None = None


class CurveGroup(Frozen):
    """Curves of one unit, drawn on one axis."""

    title: str
    unit: str
    curves: tuple[StepCurve, ...]


class TextTable(Frozen):
    """A table of words and numbers that need no axis."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Section(Frozen):
    """A part of the page, with the command or the document that leads further."""

    key: str
    title: str
    lead: str
    groups: tuple[MeasureGroup, ...] = ()
    curves: tuple[CurveGroup, ...] = ()
    tables: tuple[TextTable, ...] = ()


class EvaluationData(Frozen):
    """The page of an evaluation."""

    title: str
    subtitle: str = ""
    headline: tuple[Fact, ...] = ()
    sections: tuple[Section, ...] = ()
    next: tuple[Next, ...] = ()


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
