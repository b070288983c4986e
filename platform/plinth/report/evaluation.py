"""The page of an evaluation: every measure of one checkpoint with its interval, its control and its noise.

The caller fills the records, `page(data)` draws them, self-contained: HTML and inline SVG, nothing loaded, nothing
executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plinth.evaluation.measurement import Stats
from plinth.records import Frozen
from plinth.report.page import Fact, Next, safe_link, template
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WIDTH_INCHES, svg, tone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def page(data: EvaluationData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    plots = {section.key: _plots(section) for section in data.sections}
    return template("evaluation_page.html.j2").render(data=data, plots=plots, safe_link=safe_link)


def _plots(section: Section) -> list[str]:
    """The figures of a section, in the order of its groups."""
    made = [svg(intervals, [group], title=group.title) for group in section.groups]
    return made + [svg(curves, group, title=group.title) for group in section.curves]


ROW_INCHES, AXIS_INCHES = 0.27, 0.85
LONGEST_NAME = 28


def intervals(groups: Sequence[MeasureGroup]) -> Figure:
    """A panel a group, all on one scale, and a row a measure: its point, its interval, its reference as a diamond.

    Grey where the measure does not decide; a hollow point where nothing is known of the spread.
    """
    from matplotlib.figure import Figure

    heights = [ROW_INCHES * len(group.measures) + AXIS_INCHES for group in groups]
    fig = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    panels = fig.subplots(len(groups), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax, group in zip(panels, groups, strict=True):
        _panel(ax, group)
        if len(groups) > 1:
            ax.set_title(group.title, loc="left", fontsize=9.5, color=SOFT_INK)
    last = groups[-1]
    reference = f"; open diamond: {last.reference_name}" if last.reference_name else ""
    panels[-1].set_xlabel(f"{last.unit} ({last.better} is better{reference})", fontsize=8.5)
    return fig


def _panel(ax: Axes, group: MeasureGroup) -> None:
    for row, one in enumerate(group.measures):
        colour = ACCENT if one.decides else MUTED
        if math.isfinite(one.low) and math.isfinite(one.high):
            ax.plot([one.low, one.high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
        inside = "none" if one.low == one.high else colour
        ax.plot(one.value, row, "o", color=colour, markerfacecolor=inside, markersize=5)
        if one.reference is not None:
            ax.plot(one.reference, row, "D", markersize=5, markerfacecolor="none", markeredgecolor=MUTED)
        ax.text(1.01, row, _shown(one.value), transform=ax.get_yaxis_transform(), va="center", fontsize=8)
    ax.set_yticks(range(len(group.measures)), [_short(one.name) for one in group.measures])
    ax.set_ylim(len(group.measures) - 0.4, -0.6)
    _quiet(ax)


def _shown(value: float) -> str:
    """Three digits, without the 1e-17 that a difference of equal means leaves."""
    return f"{0.0 if abs(value) < 1e-12 else value:.3g}"


def curves(group: CurveGroup) -> Figure:
    """Measures over the steps of a run, each with a band of one standard deviation of its noise."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 2.8), layout="constrained")
    ax = fig.subplots()
    for number, one in enumerate(group.curves):
        ax.plot(one.steps, one.values, color=tone(number), linewidth=1.5, label=one.name)
        if one.noise is not None:
            low, high = ([value + sign * one.noise for value in one.values] for sign in (-1, 1))
            ax.fill_between(one.steps, low, high, color=tone(number), alpha=0.18, linewidth=0)
    ax.set_xlabel("optimizer step")
    ax.set_ylabel(group.unit)
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, borderaxespad=0.2, handlelength=0.9)
    return fig


def by_position(positions: Mapping[str, Any]) -> Figure:
    """Bits per token by position, all documents and those that fill the context; the context's end is marked."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    ax = fig.subplots()
    series = (("all", MUTED, "all documents"), ("long", ACCENT, "documents that fill the context"))
    for name, colour, label in series:
        rows: Sequence[Mapping[str, Any]] = positions[name]
        if rows:
            at = [(max(row["start"], 1) * row["end"]) ** 0.5 for row in rows]
            low, high = ([row[name] for row in rows] for name in ("low", "high"))
            ax.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(at, [row["value"] for row in rows], "o-", color=colour, markersize=3.5, linewidth=1.5, label=label)
    context = positions["context_tokens"]
    ax.axvline(context, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.text(context, 0.02, "context ", transform=ax.get_xaxis_transform(), fontsize=8, ha="right")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlabel("position in the document, tokens")
    ax.set_ylabel("bits per token")
    if ax.lines[:-1]:
        ax.legend(loc="upper right", fontsize=8.5)
    _quiet(ax)
    return fig


def _short(name: str) -> str:
    """A name that leaves room for its measure; the table has it whole."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _quiet(ax: Axes) -> None:
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
