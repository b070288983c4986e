"""Panels over one shared axis, drawn by matplotlib on a fixed canvas: lines, stacked shares, a heat map, event marks.

One unit of the canvas is one unit of the SVG, so that the page's script can find the values at the pointer.

Long runs have more steps than a screen has pixel columns. Each column shows the minimum and maximum of its steps, so
that no spike is averaged away.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from plinth.report.run_metrics import EventMark, RunMetrics, Series
from plinth.report.style import ACCENT, FAINT, MOVES, MUTED, PALETTE, SOFT_INK, WARNING, colours, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

Axis = Literal["time", "step"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1080, 74, 12, 6, 6
INNER = WIDTH - LEFT - RIGHT
COLUMNS = 600
UNITS_PER_INCH, TICK_SIZE = 72, 11
ROUND = (1, 2, 5, 10)
MARK_COLOURS = {"bad": WARNING, "good": PALETTE[2], "note": MUTED}
#: Room above and below the values of a panel, as a share of their range.
MARGIN = 0.05
#: A logarithmic axis over fewer decades than this has the ticks of a linear axis; below three times this, it has ticks
#: at 1, 2 and 5.
HALF_DECADE = 0.5
#: Number of shades in a heat map. Cells of one shade are one path; readers could not distinguish more shades.
TONES = 32
Values = NDArray[np.float64]
Place = TypeVar("Place", float, Values)
#: Left, top, width and height.
Box = tuple[float, float, float, float]
#: A column of the reduced series: place, least and greatest value.
Column = tuple[float, float, float]
#: Height of a panel of stacked shares.
STACK = 90
#: Steps of a ruler that people count in, in seconds.
CLOCK = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True)
class PanelLine:
    """A series drawn as a line in a panel."""

    name: str
    series: Series
    colour: str = ACCENT
    faint: bool = False
    band: float = 0.0  # half the height of a band about the line: its noise


@dataclass(frozen=True)
class Panel:
    """A panel that shows one quantity, or several quantities with the same unit."""

    key: str
    title: str
    lines: Sequence[PanelLine]
    form: Callable[[float], str]
    log: bool = False
    zero: bool = False  # the axis begins at 0
    height: int = 110


class TimeAxis:
    """The shared horizontal axis (time or step), drawn from `LEFT` to `LEFT + INNER` on the canvas."""

    def __init__(self, axis: Axis, course: RunMetrics) -> None:
        self.axis: Axis = axis
        self.low = course.first_time if axis == "time" else 0.0
        self.high = max(course.last_time if axis == "time" else float(course.last_step), self.low + 1)

    @property
    def unit(self) -> str:
        """Return the label of the axis."""
        return "hours:minutes:seconds since the run started" if self.axis == "time" else "optimizer step"

    def frame(self, height: float, title: str, lines: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the description of a panel on this axis and of its lines, for `curves.js`."""
        timed = self.axis == "time"
        low, high = (0.0, self.high - self.low) if timed else (self.low, self.high)
        box = [LEFT, TOP, INNER, max(height - TOP - BOTTOM, 0) or 400]
        return {"x": "after" if timed else "step", "y": title, "low": low, "high": high, "log": False, "whole": True,
                "time": timed, "box": box, "lines": list(lines)}  # fmt: skip

    def at(self, value: Place) -> Place:
        """Return the position on the canvas for a time or step, or for an array of times or steps."""
        return LEFT + INNER * (value - self.low) / (self.high - self.low)

    def of(self, series: Series) -> Sequence[float]:
        """Return the times or the steps of a series, depending on the axis."""
        return series.times if self.axis == "time" else [float(step) for step in series.steps]

    def ticks(self) -> list[tuple[float, str]]:
        """Return round values of the axis with their labels."""
        if self.axis == "step":
            from matplotlib.ticker import MaxNLocator

            found = MaxNLocator(8, steps=ROUND).tick_values(self.low, self.high)
            return [(float(at), f"{at:,.0f}") for at in found if self.low <= at <= self.high]
        wanted = (self.high - self.low) / 8
        every = next((step for step in CLOCK if step >= wanted), CLOCK[-1])
        count = int((self.high - self.low) // every)
        return [(self.low + every * i, clock(every * i)) for i in range(count + 1)]


def draw(panel: Panel, scale: TimeAxis, marks: Sequence[EventMark]) -> str:
    """Draw a panel as an SVG element. Returns an empty string if there is no finite value."""
    reduced = [(line, _columns(scale, line.series)) for line in panel.lines]
    values = [high for _, columns in reduced for _, _, high in columns if math.isfinite(high)]
    if not any(value > 0 or not panel.log for value in values):
        return ""
    lines = [
        {"name": line.name, **_points([(x, panel.form(high)) for x, _, high in columns if math.isfinite(high)])}
        for line, columns in reduced
    ]
    frame = scale.frame(panel.height, panel.title, [line for line in lines if line["x"]])
    text = svg(_lines, panel, reduced, scale, marks, title=panel.title, key=panel.key, tight=False, curves=[frame])
    return _with_titles(text, marks)


def heat(
    rows: Mapping[str, Series], scale: TimeAxis, marks: Sequence[EventMark], title: str, key: str = "layers"
) -> str:
    """Draw a heat map with one row per layer and one column per interval.

    Darker cells have larger values. The color scale is logarithmic and shared by all rows.
    """
    reduced = {name: _columns(scale, series, 240) for name, series in rows.items()}
    if not any(high > 0 for columns in reduced.values() for _, _, high in columns):
        return ""
    text = svg(_cells, reduced, scale, marks, title=title, key=key, tight=False, curves=[scale.frame(0, title)])
    return _with_titles(text, marks)


def shares(
    rows: Sequence[Mapping[str, Any]],
    places: Sequence[tuple[float, float]],
    scale: TimeAxis,
    title: str,
    key: str = "mixture",
) -> str:
    """Draw stacked shares by name over intervals of the axis.

    Args:
        rows: `realised` (name to share) of each interval.
        places: start and end of each interval on the canvas.
    """
    if not rows:
        return ""
    middles = [(left + right) / 2 for left, right in places]
    values = {name: [f"{float(row['realised'][name]):.1%}" for row in rows] for name in sorted(rows[0]["realised"])}
    lines = [{"name": name, **_points(list(zip(middles, own, strict=True)))} for name, own in values.items()]
    return svg(_stacked, rows, places, title=title, key=key, tight=False, curves=[scale.frame(STACK, title, lines)])


def ruler(scale: TimeAxis) -> str:
    """Draw the axis below the panels."""
    frame = scale.frame(0, "")
    title = f"axis: {scale.unit}"
    return svg(_ruler, scale, scale.unit, title=title, key="ruler", tight=False, curves=[frame])


def _points(found: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """Return the values that the script shows at the pointer: positions as fractions of the axis, and formatted
    values."""
    return {"x": [round((x - LEFT) / INNER, 6) for x, _ in found], "y": [y for _, y in found]}


class _Canvas:
    """A figure without axes. Coordinates are page units from the top left. Matplotlib's axes would take longer to draw
    than all other elements."""

    def __init__(self, height: float) -> None:
        from matplotlib.figure import Figure
        from matplotlib.transforms import Affine2D

        self.height = height
        self.figure = Figure(figsize=(WIDTH / UNITS_PER_INCH, height / UNITS_PER_INCH))
        inches = Affine2D().translate(0, -height).scale(1 / UNITS_PER_INCH, -1 / UNITS_PER_INCH)
        self._units = inches + self.figure.dpi_scale_trans

    def line(self, x: Sequence[float] | Values, y: Sequence[float] | Values, **style: Any) -> None:
        """Draw a line through points, with gaps at values that are not finite."""
        from matplotlib.lines import Line2D

        self.figure.add_artist(Line2D(x, y, transform=self._units, **style))

    def band(self, x: Values, low: Values, high: Values, colour: str) -> None:
        """Draw the area between two lines, where both lines are finite."""
        from matplotlib.patches import Polygon

        kept = np.isfinite(low) & np.isfinite(high)
        corners = np.column_stack((np.r_[x[kept], x[kept][::-1]], np.r_[low[kept], high[kept][::-1]]))
        if kept.any():
            area = Polygon(corners, facecolor=colour, alpha=0.18, linewidth=0, transform=self._units, gid=MOVES)
            self.figure.add_artist(area)

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        """Draw an axis label."""
        self.figure.text(x, y, words, transform=self._units, fontsize=TICK_SIZE, color=SOFT_INK, **style)

    def boxes(self, boxes: Sequence[Box], colour: Any) -> None:
        """Draw rectangles of one color as one path."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        corners = np.array([[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes])
        path = Path.make_compound_path_from_polys(corners)
        self.figure.add_artist(PathPatch(path, facecolor=colour, linewidth=0, transform=self._units, gid=MOVES))

    def marks(self, scale: TimeAxis, marks: Sequence[EventMark]) -> None:
        """Draw events as lines across the panel. `_with_titles` finds the lines by their ids."""
        for number, mark in enumerate(marks):
            x = scale.at(mark.time if scale.axis == "time" else mark.step)
            style = {"color": MARK_COLOURS[mark.weight], "linewidth": 1.2, "linestyle": (0, (4, 3))}
            self.line([x, x], [TOP, self.height - BOTTOM], gid=f"mark-{number}", **style)


def _lines(
    panel: Panel, reduced: Sequence[tuple[PanelLine, list[Column]]], scale: TimeAxis, marks: Sequence[EventMark]
) -> Figure:
    """Draw the range of values in each pixel column, and connect the ranges by lines. Columns without a finite value
    are gaps."""
    canvas, lines = _Canvas(panel.height), list[tuple[PanelLine, Values, Values]]()
    for line, columns in reduced:
        ends = [(at, (low, high) if high > low else (high,)) for at, low, high in columns]
        x = np.array([at for at, values in ends for _ in values])
        lines.append((line, x, np.array([value for _, values in ends for value in values])))
    ticks, place = _vertical(panel, np.concatenate([y + side * line.band for line, _, y in lines for side in (-1, 1)]))
    for tick, y in zip(ticks, place(ticks), strict=True):
        canvas.line([LEFT, LEFT + INNER], [y, y], color=FAINT, alpha=0.35, linewidth=0.6)
        canvas.text(LEFT - 8, y, panel.form(float(tick)), ha="right", va="center_baseline")
    for line, x, y in (one for one in lines if one[0].band):
        canvas.band(x, place(y - line.band), place(y + line.band), line.colour)
    for line, x, y in lines:
        alone = "o" if np.isfinite(y).sum() == 1 else None  # a single point has no length
        alpha = 0.35 if line.faint else 1
        style = {"color": line.colour, "alpha": alpha, "linewidth": 1.4, "marker": alone, "markersize": 5}
        canvas.line(x, place(y), gid=MOVES, **style)
    canvas.marks(scale, marks)
    return canvas.figure


def _vertical(panel: Panel, values: Values) -> tuple[Values, Callable[[Values], Values]]:
    """Return the ticks of a panel, and the function that maps values to positions."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    def scaled(y: Values) -> Values:
        return np.log10(np.where(y > 0, y, np.nan)) if panel.log else y

    shown = scaled(values[np.isfinite(values)])
    low, high = (0.0 if panel.zero else float(np.nanmin(shown))), float(np.nanmax(shown))
    margin = MARGIN * (high - low) or (1.0 if panel.log else MARGIN * (abs(high) or 1.0))  # around one value: a decade
    low, high = (low if panel.zero else low - margin), high + margin
    ends = (10**low, 10**high) if panel.log else (low, high)
    if panel.log and high - low > HALF_DECADE:
        locator: Locator = LogLocator(subs=ROUND[: 3 if high - low < 3 * HALF_DECADE else 1], numticks=4)
    else:
        locator = MaxNLocator(3, steps=ROUND)
    ticks = np.asarray(locator.tick_values(*ends))
    height = panel.height - TOP - BOTTOM

    def place(y: Values) -> Values:
        return panel.height - BOTTOM - height * (scaled(y) - low) / (high - low)

    return ticks[(scaled(ticks) >= low) & (scaled(ticks) <= high)], place


def _cells(rows: Mapping[str, list[Column]], scale: TimeAxis, marks: Sequence[EventMark]) -> Figure:
    from matplotlib.colors import to_rgba

    values = sorted(high for columns in rows.values() for _, _, high in columns if high > 0)
    low, high = math.log10(values[len(values) // 20]), math.log10(values[-1])  # outliers below are palest
    each = max(5.0, min(14.0, 220 / len(rows)))
    canvas, tones = _Canvas(TOP + BOTTOM + each * len(rows)), defaultdict[int, list[Box]](list)
    for number, columns in enumerate(rows.values()):
        ends = [x for x, _, _ in columns[1:]] + [LEFT + INNER]
        widest = 3 * INNER / len(columns)  # without seams, but with the gaps of a restart
        for (x, _, value), end in zip(columns, ends, strict=True):
            if value > 0:
                share = (math.log10(value) - low) / max(high - low, 1e-9)
                box = (x, TOP + each * number, min(end - x, widest) + 0.5, each)
                tones[round(TONES * max(0.0, share))].append(box)
    for tone, boxes in sorted(tones.items()):
        canvas.boxes(boxes, to_rgba(ACCENT, 0.06 + 0.94 * tone / TONES))
    every = 1 if len(rows) <= 16 else len(rows) // 8
    for number, name in list(enumerate(rows))[::every]:
        canvas.text(LEFT - 8, TOP + each * (number + 0.5), name, ha="right", va="center_baseline")
    canvas.marks(scale, marks)
    return canvas.figure


def _stacked(rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[float, float]]) -> Figure:
    canvas, height = _Canvas(STACK), STACK - TOP - BOTTOM
    before = [0.0] * len(rows)
    for name, colour in colours(rows[0]["realised"]).items():
        own = [float(row["realised"][name]) for row in rows]
        canvas.boxes(
            [
                (left, TOP + height * low, max(0.3, right - left), height * share)
                for (left, right), low, share in zip(places, before, own, strict=True)
            ],
            colour,
        )
        before = [low + share for low, share in zip(before, own, strict=True)]
    return canvas.figure


def _ruler(scale: TimeAxis, unit: str) -> Figure:
    canvas = _Canvas(36)
    for number, (at, words) in enumerate(scale.ticks()):
        canvas.text(scale.at(at), TOP + 1, words, ha="center", va="top", gid=f"xtick_{number}")
    canvas.text(LEFT + INNER / 2, 2 * TOP + TICK_SIZE, unit, ha="center", va="top")
    return canvas.figure


def _with_titles(text: str, marks: Sequence[EventMark]) -> str:
    """Add tooltips that describe the events to the event marks in an SVG."""
    for number, mark in enumerate(marks):
        words = escape(f"{mark.kind} at step {mark.step}: {mark.text}")
        text = text.replace(f'<g id="mark-{number}">', f'<g data-moves=""><title>{words}</title>')
    return text


def _columns(scale: TimeAxis, series: Series, columns: int = COLUMNS) -> list[Column]:
    """Return position, minimum and maximum of each pixel column that has values, in order."""
    if not series.values:
        return []
    places, values = scale.at(np.array(scale.of(series))), np.array(series.values)
    column = ((places - LEFT) * columns / INNER).astype(np.int64)
    order = np.argsort(column, kind="stable")  # the first of a column is the first that came
    starts = np.flatnonzero(np.diff(column[order], prepend=column.min() - 1))
    finite = np.isfinite(values)
    low = np.minimum.reduceat(np.where(finite, values, math.inf)[order], starts)
    high = np.maximum.reduceat(np.where(finite, values, -math.inf)[order], starts)
    low, high = np.where(high >= low, (low, high), math.nan)
    return list(zip(places[order[starts]].tolist(), low.tolist(), high.tolist(), strict=True))


def clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds: `1:02:03`."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
