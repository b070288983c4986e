"""Self-contained pages for the evaluation of a checkpoint and the comparison of two models: HTML and inline SVG,
without scripts or external resources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plinth.evaluation.comparison.differences import NONE, WHOLE, Difference, finding, in_order, joined, result_text
from plinth.evaluation.measurement import Stats, headings
from plinth.evaluation.slices.tables import SpanDifference
from plinth.evaluation.statistics import Estimate
from plinth.records import Frozen, Manifest
from plinth.report.page import Fact, Next, safe_link, template
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, WIDTH_INCHES, svg, tone
from plinth.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Page of an evaluation: every measure of one checkpoint, with interval, control and noise.
#
# The caller fills the records, `page(data)` draws them.


class Measure(Frozen):
    """A score with its interval. `reference` is the value that the score is compared with: a control, a baseline or
    chance."""

    name: str
    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    seed: int | None = Field(None, description="Seed of the bootstrap that computed the interval.")
    reference: float | None = None
    noise: float | None = Field(None, description="Standard deviation of the score over evaluations or over seeds.")
    decides: bool = Field(True, description="False if the score is not above its noise.")
    note: str = ""


class MeasureGroup(Frozen):
    """Measures with the same unit, drawn on one axis."""

    title: str
    unit: str
    better: Literal["lower", "higher"]
    measures: tuple[Measure, ...]
    reference_name: str = ""


class StepCurve(Frozen):
    """A measure over the steps of a run. `noise` is drawn as a band around the curve."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    noise: float | None = None


class CurveGroup(Frozen):
    """Curves with the same unit, drawn on one axis."""

    title: str
    unit: str
    curves: tuple[StepCurve, ...]


class TextTable(Frozen):
    """A table of text and numbers that are not drawn."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Section(Frozen):
    """A section of an evaluation page, with figures and tables."""

    key: str
    title: str
    lead: str
    groups: tuple[MeasureGroup, ...] = ()
    curves: tuple[CurveGroup, ...] = ()
    tables: tuple[TextTable, ...] = ()

    @property
    def finding(self) -> str:
        """Heading of the section: the number of measures that are better than their reference, else the first measure,
        else the title."""
        group = next(iter(self.groups), None)
        known = [(one, one.reference) for one in group.measures if one.reference is not None] if group else []
        if group and known:
            lower = group.better == "lower"
            better = sum(one.high < other if lower else one.low > other for one, other in known)
            reference = "zero" if group.reference_name == "none" else group.reference_name
            return f"{self.title}: {better} of {len(known)} values significantly better than {reference}"
        if group and group.measures:
            one = group.measures[0]
            return f"{self.title}: {one.name} {one.value:.3g} {group.unit} ({one.low:.3g} to {one.high:.3g})"
        return self.title


class EvaluationData(Frozen):
    """Contents of an evaluation page."""

    title: str
    subtitle: str = ""
    headline: tuple[Fact, ...] = ()
    sections: tuple[Section, ...] = ()
    next: tuple[Next, ...] = ()


BITS = "bits per byte"
#: Sections that the verdict of a page names.
VERDICT_SECTIONS = 2


def measure(name: str, found: Stats, value: str = "value", **more: Any) -> Measure:
    """Create a measure from a statistic of an evaluation that has the fields of an estimate."""
    note = ", ".join(found.get("flags", ()))
    fields = {"low": found["low"], "high": found["high"], "n": found["n"], "seed": found.get("seed"), "note": note}
    return Measure(name=name, value=found[value], **fields | more)


def group(
    title: str, unit: str, better: Literal["lower", "higher"], reference: str, measures: Sequence[Measure]
) -> MeasureGroup:
    """Return a group of measures drawn on one axis, in `unit`."""
    return MeasureGroup(title=title, unit=unit, better=better, reference_name=reference, measures=tuple(measures))


def page(data: EvaluationData) -> str:
    """Return the evaluation page as HTML. The same data gives the same bytes."""
    plots = {section.key: _plots(section) for section in data.sections}
    compared = [section.finding for section in data.sections if section.finding != section.title]
    verdict = f"{'; '.join(compared[:VERDICT_SECTIONS])}." if compared else ""
    return template("evaluation_page.html.j2").render(data=data, plots=plots, verdict=verdict, safe_link=safe_link)


def _plots(section: Section) -> list[str]:
    """Draw the figures of a section, in the order of its groups."""
    made = [svg(intervals, [group], title=group.title) for group in section.groups]
    return made + [svg(curves, group, title=group.title) for group in section.curves]


ROW_INCHES, AXIS_INCHES = 0.27, 0.85
LONGEST_NAME = 28


def intervals(groups: Sequence[MeasureGroup]) -> Figure:
    """Draw one panel per group on a shared scale, with one row per measure: point, interval, and a diamond for the
    reference.

    Measures that cannot decide a gate are gray. A hollow point means that the spread is unknown.
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
    """Format a value with three digits. Rounding errors such as 1e-17 print as 0."""
    return f"{0.0 if abs(value) < 1e-12 else value:.3g}"


def curves(group: CurveGroup) -> Figure:
    """Draw the measures of a group over training steps, each with a band of one standard deviation of its noise."""
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
    """Draw bits per token by token position, for all documents and for documents that fill the context."""
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
    """Shorten the name of a measure so that it fits into its panel. The table below has the full name."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _quiet(ax: Axes) -> None:
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


# The page of a comparison: two models side by side.


def comparison_page(made: Manifest, a: str, b: str, spans: Sequence[SpanDifference] = ()) -> str:
    """Return the comparison page as HTML. The same arguments give the same bytes.

    Args:
        made: manifest from `evaluation.comparison.job`.
        a, b: display names of the models.
        spans: spans of the comparison, with their text.
    """
    lines, named = in_order(made.stats), headings()
    kinds: dict[str, list[Difference]] = {}
    for line in lines:
        kinds.setdefault(line.kind, []).append(line)
    return template("comparison_page.html.j2").render(
        made=made,
        stats=made.stats,
        models=[("A", a, made.stats["models"]["a"]), ("B", b, made.stats["models"]["b"])],
        same_model=same_model(made),
        verdict=verdict([line for line in lines if line.slice == WHOLE]),
        headline=headline([line for line in lines if line.slice == WHOLE]),
        reasons=joined(made.stats["reasons"]),
        kinds=[(named.get(kind, kind), heading(named.get(kind, kind), own), own) for kind, own in kinds.items()],
        plot=svg(figure, lines, title="Differences between the two models, with intervals"),
        methods=sorted({line.difference.method for line in lines}),
        spans=spans,
        said=result_text,
        number=number,
        ends=ends,
        tone=lambda line: "" if line.better == NONE else "a" if line.better == "a" else "b",
    )


def same_model(made: Manifest) -> bool:
    """Return True if a model was compared with itself."""
    return made.inputs["a/checkpoint"] == made.inputs.get("b/checkpoint")


def verdict(wholes: Sequence[Difference]) -> str:
    """Return one sentence on all measures: the number of measures that each model wins, and the result on held-out
    text."""
    count = {who: sum(line.better == who for line in wholes) for who in ("a", "b", NONE)}
    unknown = sum(line.better == NONE and line.smallest is None for line in wholes)
    shown = [line for line in wholes if line.kind == "slices"]
    text = [f"{line.measure}: {result_text(line)} ({line.difference.value:+.3g})" for line in shown]
    words = f"Of {counted(len(wholes), 'measure')}, A is better in {count['a']} and B is better in {count['b']}; "
    words += f"the number without a significant difference is {count[NONE] - unknown}"
    words += f", and {unknown} could not be decided" if unknown else ""
    return f"{words}. Result on held-out text: {'; '.join(text)}." if text else f"{words}."


def heading(name: str, lines: Sequence[Difference]) -> str:
    """Return the heading of one kind of measures: the largest significant difference, on all items or on a slice."""
    found = max(
        (line for line in lines if line.better != NONE), key=lambda line: abs(line.difference.value), default=None
    )
    if found is None:
        return f"{name}: no significant difference"
    where = "" if found.slice == WHOLE else f" on {found.slice}"
    return f"{name}: {found.better.upper()} is better{where} by {abs(found.difference.value):.2g} ({found.measure})"


def headline(wholes: Sequence[Difference]) -> list[tuple[str, str, str]]:
    """Return the findings of a comparison as tuples: kind, finding, and the measures that have this finding."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in wholes:
        words = finding(line)[0].upper() + finding(line)[1:]
        unknown = line.better != NONE or line.smallest is None
        seen = "" if unknown else f", minimum detectable effect {line.smallest:.2g}"
        differs = f" ({line.difference.value:+.3g}{seen})"
        clean = f", {line.clean.value:+.3g} without {line.seen} contaminated items" if line.clean else ""
        found.setdefault((line.kind, words), []).append(f"{line.measure}{differs}{clean}")
    named = headings()
    return [(named.get(kind, kind), words, "; ".join(names)) for (kind, words), names in found.items()]


def section(stats: Mapping[str, Any], against: str) -> Section:
    """Return a section for the evaluation page, with the totals of each measure for both models."""
    lines = [line for line in map(Difference.model_validate, stats["lines"]) if line.slice == WHOLE]
    named = headings()
    rows = [
        (named.get(line.kind, line.kind), line.measure, f"{line.difference.n:,}", number(line.a.value),
         number(line.b.value), interval(line.difference, True), result_text(line))
        for line in lines
    ]  # fmt: skip
    header = ("", "measure", "items", "this (A)", "other (B)", "A - B, 95% interval", "finding")
    return Section(
        key="comparison",
        title=f"Compared with {against}",
        lead="Differences are paired by item. A finding means that the difference is significant after Holm's "
        "correction over all measures of the same kind.",
        tables=(TextTable(title="Differences over all items, by measure", header=header, rows=tuple(rows)),),
    )


def number(value: Any) -> str:
    """Format a number with four significant digits. None becomes a dash."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) < 1e-12:
        return "0"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def interval(found: Estimate, sign: bool = False) -> str:
    """Format a value with its interval: `1.932 (1.901 to 1.964)`."""
    value = f"{found.value:+.4g}" if sign else number(found.value)
    return f"{value} ({ends(found, sign)})"


def ends(found: Estimate, sign: bool = False) -> str:
    """Format an interval: `1.901 to 1.964`."""
    low, high = (f"{one:+.4g}" if sign else number(one) for one in (found.low, found.high))
    return f"{low} to {high}" if found.low < found.high else "no interval"


#: Lines of a panel, the wholes first; tables have all.
MOST_DRAWN = 24
LONGEST = 34
COLOURS = {"a": ACCENT, "b": WARNING, NONE: MUTED}


def figure(lines: Sequence[Difference]) -> Figure:
    """Draw each line as a dot with an interval: blue if model A is better, orange if B, gray if not significant."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, bool, bool], list[Difference]] = {}
    for line in lines:
        panels.setdefault((line.kind, line.fewer_is_better, "bits" in line.measure), []).append(line)
    drawn = {key: own[:MOST_DRAWN] for key, own in panels.items()}
    heights = [len(own) + 1.6 for own in drawn.values()]
    fig = Figure(figsize=(WIDTH_INCHES, 0.26 * sum(heights) + 0.5), layout="constrained")
    axes = fig.subplots(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    for ax, ((kind, fewer, _), own) in zip(axes, drawn.items(), strict=True):
        _comparison_panel(ax, kind, fewer, own)
    return fig


def _comparison_panel(ax: Axes, kind: str, fewer: bool, own: Sequence[Difference]) -> None:
    ax.axvline(0, color=FAINT, linewidth=1.2)
    for at, line in enumerate(own):
        gap, colour = line.difference, COLOURS[line.better]
        ax.plot([gap.low, gap.high], [at, at], color=colour, alpha=0.4, linewidth=4, solid_capstyle="butt")
        ax.plot([gap.value], [at], "o", color=colour, markersize=5)
    ax.set_yticks(range(len(own)), [_label(line) for line in own])
    ax.set_ylim(len(own) - 0.4, -0.6)
    ax.set_title(kind, loc="left", fontsize=9.5, color=SOFT_INK)
    ax.set_xlabel("a - b: " + ("left of 0, A is better" if fewer else "right of 0, A is better"), fontsize=8.5)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def _label(line: Difference) -> str:
    text = line.measure if line.slice == "all" else line.slice
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
