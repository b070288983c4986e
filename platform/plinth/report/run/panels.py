"""Panels over one shared axis, drawn by matplotlib on a fixed canvas: lines, stacked shares, a heat map, marks.

One unit of the canvas is one unit of the SVG, so that the script of the page finds the values at the pointer.

Long runs have more steps than a screen has columns: each column shows the range of its steps, so that no spike is
averaged away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from plinth.report.render import svg
from plinth.report.run.metrics import EventMark, RunMetrics, Series
from plinth.report.style import ACCENT, MUTED, PALETTE, WARNING, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Axis = Literal["time", "step"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1080, 74, 12, 6, 6
INNER = WIDTH - LEFT - RIGHT
COLUMNS = 600
UNITS_PER_INCH, TICK_SIZE = 72, 11
ROUND = (1, 2, 5, 10)
MARK_COLOURS = {"bad": WARNING, "good": PALETTE[2], "note": MUTED}
#: A column of the reduced series: place, least and greatest value.
Column = tuple[float, float, float]
#: Steps of a ruler that people count in, in seconds.
CLOCK = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True)
class PanelLine:
    """A series in a panel."""

    name: str
    series: Series
    colour: str = ACCENT
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """One quantity, or several of one unit."""

    key: str
    title: str
    lines: Sequence[PanelLine]
    form: Callable[[float], str]
    log: bool = False
    zero: bool = False  # the axis begins at 0
    height: int = 110


class TimeAxis:
    """The shared axis: the place of a moment, from `LEFT` to `LEFT + INNER`."""

    def __init__(self, axis: Axis, course: RunMetrics) -> None:
        self.axis: Axis = axis
        self.low = course.first_time if axis == "time" else 0.0
        self.high = max(course.last_time if axis == "time" else float(course.last_step), self.low + 1)

    def at(self, value: float) -> float:
        """Place of a time or a step."""
        return LEFT + INNER * (value - self.low) / (self.high - self.low)

    def of(self, series: Series) -> Sequence[float]:
        """A series' values of this axis."""
        return series.times if self.axis == "time" else [float(step) for step in series.steps]

    def ticks(self) -> list[tuple[float, str]]:
        """Round places of the axis with their words."""
        if self.axis == "step":
            from matplotlib.ticker import MaxNLocator

            found = MaxNLocator(8, steps=ROUND).tick_values(self.low, self.high)
            return [(float(at), f"{at:,.0f}") for at in found if self.low <= at <= self.high]
        wanted = (self.high - self.low) / 8
        every = next((step for step in CLOCK if step >= wanted), CLOCK[-1])
        count = int((self.high - self.low) // every)
        return [(self.low + every * i, clock(every * i)) for i in range(count + 1)]


def draw(panel: Panel, scale: TimeAxis, marks: Sequence[EventMark]) -> str:
    """A panel as an SVG element; empty when no value can be drawn."""
    reduced = [(line, _columns(scale, line.series)) for line in panel.lines]
    values = [high for _, columns in reduced for _, _, high in columns if math.isfinite(high)]
    if not any(value > 0 or not panel.log for value in values):
        return ""
    text = svg(_lines, panel, reduced, scale, marks, title=panel.title, key=panel.key, tight=False)
    return _with_titles(text, marks)


def heat(rows: Mapping[str, Series], scale: TimeAxis, marks: Sequence[EventMark], title: str) -> str:
    """A row per layer, a column per stretch; darker is larger, on a logarithmic scale over all rows."""
    reduced = {name: _columns(scale, series, 240) for name, series in rows.items()}
    if not any(high > 0 for columns in reduced.values() for _, _, high in columns):
        return ""
    return _with_titles(svg(_cells, reduced, scale, marks, title=title, key="layers", tight=False), marks)


def shares(rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[float, float]], title: str) -> str:
    """Stacked shares by name over stretches of the axis.

    Args:
        rows: `realised` (name to share) of each stretch.
        places: where each begins and ends on the canvas.
    """
    return svg(_stacked, rows, places, title=title, key="mixture", tight=False) if rows else ""


def ruler(scale: TimeAxis) -> str:
    """The axis below the panels."""
    unit = "hours:minutes:seconds since the run began" if scale.axis == "time" else "optimizer step"
    return svg(_ruler, scale, unit, title=f"axis: {unit}", key="ruler", tight=False)


def points(panel: Panel, scale: TimeAxis) -> dict[str, Any]:
    """Values at the pointer: by line the places on the axis, and the values there in words."""
    found = {}
    for line in panel.lines:
        columns = [(x, high) for x, low, high in _columns(scale, line.series) if math.isfinite(high)]
        found[line.name] = {"x": [round(x, 1) for x, _ in columns], "y": [panel.form(y) for _, y in columns]}
    return found


def share_points(rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Values at the pointer of stacked shares."""
    x = [round((left + right) / 2, 1) for left, right in places]
    names = sorted(rows[0]["realised"])
    return {name: {"x": x, "y": [f"{float(row['realised'][name]):.1%}" for row in rows]} for name in names}


def _canvas(height: float) -> tuple[Figure, Axes]:
    """A figure of the page's width whose x axis has the units of the canvas."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH / UNITS_PER_INCH, height / UNITS_PER_INCH))
    ax = fig.add_axes((LEFT / WIDTH, BOTTOM / height, INNER / WIDTH, (height - TOP - BOTTOM) / height))
    ax.set_xlim(LEFT, LEFT + INNER)
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, pad=8, labelsize=TICK_SIZE, labelcolor=MUTED)
    return fig, ax


def _lines(
    panel: Panel, reduced: Sequence[tuple[PanelLine, list[Column]]], scale: TimeAxis, marks: Sequence[EventMark]
) -> Figure:
    """Up and down in each column, and on to the next; a gap where nothing is finite."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    fig, ax = _canvas(panel.height)
    if panel.log:
        ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_major_locator(LogLocator(subs=ROUND[:3], numticks=4) if panel.log else MaxNLocator(3, steps=ROUND))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(lambda value, _: panel.form(value))
    for line, columns in reduced:
        x = [at for at, low, high in columns for _ in range(2 if high > low else 1)]
        y = [value for _, low, high in columns for value in ((low, high) if high > low else (high,))]
        alone = "o" if sum(map(math.isfinite, y)) == 1 else None  # a single point has no length
        ax.plot(x, y, color=line.colour, alpha=0.35 if line.faint else 1, linewidth=1.4, marker=alone, markersize=5)
    if panel.zero:
        ax.set_ylim(bottom=0)
    ax.grid(axis="y")
    _draw_marks(ax, scale, marks)
    return fig


def _cells(rows: Mapping[str, list[Column]], scale: TimeAxis, marks: Sequence[EventMark]) -> Figure:
    from matplotlib.colors import to_rgba

    values = sorted(high for columns in rows.values() for _, _, high in columns if high > 0)
    low, high = math.log10(values[len(values) // 20]), math.log10(values[-1])  # outliers below are palest
    each = max(5.0, min(14.0, 220 / len(rows)))
    fig, ax = _canvas(TOP + BOTTOM + each * len(rows))
    for number, columns in enumerate(rows.values()):
        ends = [x for x, _, _ in columns[1:]] + [LEFT + INNER]
        widest = 3 * INNER / len(columns)  # without seams, but with the gaps of a restart
        cells = [(x, min(end - x, widest) + 0.5, value) for (x, _, value), end in zip(columns, ends, strict=True)]
        drawn = [(x, wide, (math.log10(value) - low) / max(high - low, 1e-9)) for x, wide, value in cells if value > 0]
        tones = [to_rgba(ACCENT, 0.06 + 0.94 * max(0.0, share)) for _, _, share in drawn]
        ax.broken_barh([(x, wide) for x, wide, _ in drawn], (number, 1), facecolors=tones)
    every = 1 if len(rows) <= 16 else len(rows) // 8
    ax.set_ylim(len(rows), 0)
    ax.set_yticks([n + 0.5 for n in range(0, len(rows), every)], list(rows)[::every])
    _draw_marks(ax, scale, marks)
    return fig


def _stacked(rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[float, float]]) -> Figure:
    fig, ax = _canvas(90)
    lefts, widths = [left for left, _ in places], [max(0.3, right - left) for left, right in places]
    before = [0.0] * len(rows)
    for name, colour in colours(rows[0]["realised"]).items():
        own = [float(row["realised"][name]) for row in rows]
        ax.bar(lefts, own, widths, before, align="edge", color=colour, linewidth=0)
        before = [low + share for low, share in zip(before, own, strict=True)]
    ax.set_ylim(1, 0)
    ax.set_xlim(LEFT, LEFT + INNER)
    ax.set_yticks([])
    return fig


def _ruler(scale: TimeAxis, unit: str) -> Figure:
    fig, ax = _canvas(36)
    ticks = scale.ticks()
    ax.set_yticks([])
    ax.spines["bottom"].set_position(("axes", 1.0))
    ax.set_xticks([scale.at(at) for at, _ in ticks], [words for _, words in ticks])
    ax.tick_params(pad=1)
    ax.set_xlabel(unit, fontsize=TICK_SIZE, color=MUTED, labelpad=1)
    return fig


def _draw_marks(ax: Axes, scale: TimeAxis, marks: Sequence[EventMark]) -> None:
    for number, mark in enumerate(marks):
        x = scale.at(mark.time if scale.axis == "time" else mark.step)
        colour = MARK_COLOURS[mark.weight]
        ax.axvline(x, color=colour, linewidth=1.2, linestyle=(0, (4, 3)), clip_on=False, gid=f"mark-{number}")


def _with_titles(text: str, marks: Sequence[EventMark]) -> str:
    """Marks with their events as tooltips; the names by which they were found go."""
    for number, mark in enumerate(marks):
        words = escape(f"{mark.kind} at step {mark.step}: {mark.text}")
        text = text.replace(f'<g id="mark-{number}">', f"<g><title>{words}</title>")
    return text


def _columns(scale: TimeAxis, series: Series, columns: int = COLUMNS) -> list[Column]:
    """Place, least and greatest value of each column that has any, in order."""
    found: dict[int, Column] = {}
    for at, value in zip(scale.of(series), series.values, strict=True):
        place = scale.at(at)
        column = int((place - LEFT) * columns / INNER)
        x, low, high = found.get(column, (place, math.inf, -math.inf))
        if math.isfinite(value):
            low, high = min(low, value), max(high, value)
        found[column] = (x, low, high)
    return [(x, low, high) if high >= low else (x, math.nan, math.nan) for _, (x, low, high) in sorted(found.items())]


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: `1:02:03`."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
