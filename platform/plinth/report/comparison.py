"""The page of a comparison: two models side by side, self-contained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plinth.evaluation.comparison.differences import NONE, WHOLE, Difference, finding, in_order, joined, said
from plinth.evaluation.measurement import headings
from plinth.evaluation.slices.spans import SpanDifference
from plinth.evaluation.statistics import Estimate
from plinth.records import Manifest
from plinth.report.evaluation import Section, TextTable
from plinth.report.page import template
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, WIDTH_INCHES, svg
from plinth.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def page(made: Manifest, a: str, b: str, spans: Sequence[SpanDifference] = ()) -> str:
    """The page as HTML. The same arguments give the same bytes.

    Args:
        made: of `evaluation.comparison.job`.
        a, b: names of the models, for people.
        spans: those of the comparison, with their text.
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
        kinds=[(named.get(kind, kind), own) for kind, own in kinds.items()],
        plot=svg(figure, lines, title="Differences between the two models, with intervals"),
        methods=sorted({line.difference.method for line in lines}),
        spans=spans,
        said=said,
        number=number,
        ends=ends,
        tone=lambda line: "" if line.better == NONE else "a" if line.better == "a" else "b",
    )


def same_model(made: Manifest) -> bool:
    """Whether a model was compared with itself, so that nothing can differ."""
    return made.inputs["a/checkpoint"] == made.inputs.get("b/checkpoint")


def verdict(wholes: Sequence[Difference]) -> str:
    """Return one sentence on all measures: how many each model wins, and what held-out text shows."""
    count = {who: sum(line.better == who for line in wholes) for who in ("a", "b", NONE)}
    unknown = sum(line.better == NONE and line.smallest is None for line in wholes)
    text = [f"{line.measure}: {said(line)} ({line.difference.value:+.3g})" for line in wholes if line.kind == "slices"]
    words = f"Of {counted(len(wholes), 'measure')}, A is better in {count['a']}, B in {count['b']}; "
    words += f"{count[NONE] - unknown} without a significant difference"
    words += f", {unknown} unknown" if unknown else ""
    return f"{words}. Held-out text, {'; '.join(text)}." if text else f"{words}."


def headline(wholes: Sequence[Difference]) -> list[tuple[str, str, str]]:
    """Findings by kind: the kind, the finding, and the measures that have it."""
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
    """A section of the evaluation page: the measures as wholes, beside the other model."""
    lines = [line for line in map(Difference.model_validate, stats["lines"]) if line.slice == WHOLE]
    named = headings()
    rows = [
        (named.get(line.kind, line.kind), line.measure, f"{line.difference.n:,}", number(line.a.value),
         number(line.b.value), interval(line.difference, True), said(line))
        for line in lines
    ]  # fmt: skip
    header = ("", "measure", "items", "this (A)", "other (B)", "A - B, 95% interval", "finding")
    return Section(
        key="comparison",
        title=f"Compared with {against}",
        lead="Paired differences on the same items; findings hold after Holm's correction over the measures of a kind.",
        tables=(TextTable(title="All items of each measure", header=header, rows=tuple(rows)),),
    )


def number(value: Any) -> str:
    """Four significant digits, or a dash."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) < 1e-12:
        return "0"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def interval(found: Estimate, sign: bool = False) -> str:
    """A value with its ends: `1.932 (1.901 to 1.964)`."""
    value = f"{found.value:+.4g}" if sign else number(found.value)
    return f"{value} ({ends(found, sign)})"


def ends(found: Estimate, sign: bool = False) -> str:
    """The interval in words."""
    low, high = (f"{one:+.4g}" if sign else number(one) for one in (found.low, found.high))
    return f"{low} to {high}" if found.low < found.high else "no interval"


#: Lines of a panel, the wholes first; tables have all.
MOST_DRAWN = 24
LONGEST = 34
COLOURS = {"a": ACCENT, "b": WARNING, NONE: MUTED}


def figure(lines: Sequence[Difference]) -> Figure:
    """A dot a line with its interval; blue where model A is better, orange where B, grey where neither can be said."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, bool, bool], list[Difference]] = {}
    for line in lines:
        panels.setdefault((line.kind, line.fewer_is_better, "bits" in line.measure), []).append(line)
    drawn = {key: own[:MOST_DRAWN] for key, own in panels.items()}
    heights = [len(own) + 1.6 for own in drawn.values()]
    fig = Figure(figsize=(WIDTH_INCHES, 0.26 * sum(heights) + 0.5), layout="constrained")
    axes = fig.subplots(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    for ax, ((kind, fewer, _), own) in zip(axes, drawn.items(), strict=True):
        _panel(ax, kind, fewer, own)
    return fig


def _panel(ax: Axes, kind: str, fewer: bool, own: Sequence[Difference]) -> None:
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
