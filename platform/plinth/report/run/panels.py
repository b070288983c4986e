"""Panels over one shared axis, as SVG that needs no library to look at: lines, stacked shares, a heat map, marks.

Long runs have more steps than a screen has columns: each column shows the range of its steps, so that no spike is
averaged away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from plinth.report.run.metrics import Course, EventMark, Series
from plinth.report.style import ACCENT, colours

Axis = Literal["time", "step"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1080, 74, 12, 6, 6
INNER = WIDTH - LEFT - RIGHT
COLUMNS = 600
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
    """The shared axis: where a moment lies, from 0 to `INNER`."""

    def __init__(self, axis: Axis, course: Course) -> None:
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
            return [(at, f"{at:,.0f}") for at in _round(self.low, self.high, 8)]
        wanted = (self.high - self.low) / 8
        every = next((step for step in CLOCK if step >= wanted), CLOCK[-1])
        count = int((self.high - self.low) // every)
        return [(self.low + every * i, clock(every * i)) for i in range(count + 1)]


def draw(panel: Panel, scale: TimeAxis, marks: Sequence[EventMark]) -> str:
    """A panel as an SVG element; `data-*` attributes carry what the reader's pointer shows."""
    reduced = [(line, _columns(scale, line.series)) for line in panel.lines]
    values = [value for _, columns in reduced for _, low, high in columns for value in (low, high)]
    values = [value for value in values if math.isfinite(value) and (value > 0 or not panel.log)]
    if not values:
        return ""
    low, high = _range(values, panel)
    inner = panel.height - TOP - BOTTOM

    def place(value: float) -> float:
        if panel.log:
            value, a, b = math.log10(max(value, low)), math.log10(low), math.log10(high)
        else:
            a, b = low, high
        return round(TOP + inner * (1 - (value - a) / (b - a)), 1)

    body = [_grid(panel, place, low, high), _marks(scale, marks, panel.height)]
    body += [_path(line, columns, scale, place) for line, columns in reduced]
    return _svg(panel.key, panel.title, panel.height, "".join(body))


def points(panel: Panel, scale: TimeAxis) -> dict[str, Any]:
    """What the pointer shows: by line the places on the axis and the values there, in words."""
    found = {}
    for line in panel.lines:
        columns = [(x, high) for x, low, high in _columns(scale, line.series) if math.isfinite(high)]
        found[line.name] = {"x": [round(x, 1) for x, _ in columns], "y": [panel.form(y) for _, y in columns]}
    return found


def heat(rows: Mapping[str, Series], scale: TimeAxis, marks: Sequence[EventMark], title: str) -> str:
    """A row per layer, a column per stretch; darker is larger, on a logarithmic scale over all rows."""
    names = list(rows)
    reduced = [_columns(scale, rows[name], 240) for name in names]
    values = [high for columns in reduced for _, _, high in columns if math.isfinite(high) and high > 0]
    if not values:
        return ""
    low, high = math.log10(sorted(values)[len(values) // 20]), math.log10(max(values))  # outliers below are palest
    each = max(5.0, min(14.0, 220 / len(names)))
    cells = []
    for number, columns in enumerate(reduced):
        ends = [x for x, _, _ in columns[1:]] + [
            2 * columns[-1][0] - columns[-2][0] if len(columns) > 1 else LEFT + INNER
        ]
        for (x, _, value), end in zip(columns, ends, strict=True):
            if math.isfinite(value) and value > 0:
                share = max(0.0, (math.log10(value) - low) / max(high - low, 1e-9))
                wide = min(end - x, 3 * INNER / len(columns)) + 0.5  # without seams, but with the gaps of a restart
                cells.append(
                    f'<rect x="{x:.1f}" y="{TOP + number * each:.1f}" width="{wide:.1f}" height="{each:.1f}" '
                    f'fill="{ACCENT}" fill-opacity="{0.06 + 0.94 * share:.2f}"/>'
                )
    height = TOP + BOTTOM + each * len(names)
    labels = [
        f'<text x="{LEFT - 8}" y="{TOP + (n + 0.8) * each:.1f}" text-anchor="end" class="tick">{escape(name)}</text>'
        for n, name in enumerate(names)
        if len(names) <= 16 or n % (len(names) // 8) == 0
    ]
    return _svg("layers", title, height, "".join([*cells, *labels, _marks(scale, marks, height)]))


def shares(rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[float, float]], title: str) -> str:
    """Stacked shares by name over stretches of the axis.

    Args:
        rows: `realised` (name to share) of each stretch.
        places: where each begins and ends on the page.
    """
    if not rows:
        return ""
    height, names = 90, sorted(rows[0]["realised"])
    palette = colours(names)
    inner = height - TOP - BOTTOM
    out = []
    for row, (left, right) in zip(rows, places, strict=True):
        before = 0.0
        for name in names:
            share = float(row["realised"][name])
            out.append(
                f'<rect x="{left:.1f}" y="{TOP + inner * before:.1f}" width="{max(0.3, right - left):.1f}" '
                f'height="{inner * share:.1f}" fill="{palette[name]}">'
                f"<title>{escape(name)} {share:.1%}</title></rect>"
            )
            before += share
    return _svg("mixture", title, height, "".join(out))


def ruler(scale: TimeAxis) -> str:
    """The axis below the panels."""
    out = [
        f'<text x="{scale.at(at):.1f}" y="14" text-anchor="middle" class="tick">{words}</text>'
        for at, words in scale.ticks()
    ]
    unit = "hours:minutes:seconds since the run began" if scale.axis == "time" else "optimizer step"
    out.append(f'<text x="{LEFT + INNER / 2}" y="30" text-anchor="middle" class="tick">{unit}</text>')
    return _svg("ruler", f"axis: {unit}", 36, "".join(out))


def _svg(key: str, title: str, height: float, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" data-key="{escape(key)}" role="img" aria-label="{escape(title)}">'
        f"{body}</svg>"
    )


def _columns(scale: TimeAxis, series: Series, columns: int = COLUMNS) -> list[tuple[float, float, float]]:
    """Place, least and greatest value of each column that has any, in order."""
    found: dict[int, tuple[float, float, float]] = {}
    for at, value in zip(scale.of(series), series.values, strict=True):
        place = scale.at(at)
        column = int((place - LEFT) * columns / INNER)
        x, low, high = found.get(column, (place, math.inf, -math.inf))
        if math.isfinite(value):
            low, high = min(low, value), max(high, value)
        found[column] = (x, low, high)
    return [(x, low, high) if high >= low else (x, math.nan, math.nan) for _, (x, low, high) in sorted(found.items())]


def _path(
    line: PanelLine, columns: list[tuple[float, float, float]], scale: TimeAxis, place: Callable[[float], float]
) -> str:
    """Up and down in each column, and on to the next; a gap where nothing is finite."""
    moves, joined = [], False
    for x, low, high in columns:
        if not math.isfinite(high):
            joined = False
            continue
        moves.append(f"{'L' if joined else 'M'}{x:.1f} {place(low)}")
        if high > low:
            moves.append(f"L{x:.1f} {place(high)}")
        joined = True
    opacity = ' stroke-opacity="0.35"' if line.faint else ""
    if len(moves) == 1:  # a single point has no length
        left, top = moves[0][1:].split()
        return f'<circle cx="{left}" cy="{top}" r="2.5" fill="{line.colour}"/>'
    return f'<path d="{"".join(moves)}" stroke="{line.colour}"{opacity} class="line"/>'


def _grid(panel: Panel, place: Callable[[float], float], low: float, high: float) -> str:
    ticks = _decades(low, high) if panel.log else _round(low, high, 3)
    return "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place(at)}" y2="{place(at)}" class="rule"/>'
        f'<text x="{LEFT - 8}" y="{place(at) + 4:.1f}" text-anchor="end" class="tick">{escape(panel.form(at))}</text>'
        for at in ticks
    )


def _marks(scale: TimeAxis, marks: Sequence[EventMark], height: float) -> str:
    return "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height:g}" class="mark {mark.weight}">'
        f"<title>{escape(f'{mark.kind} at step {mark.step}: {mark.text}')}</title></line>"
        for mark in marks
        for x in (scale.at(mark.time if scale.axis == "time" else mark.step),)
    )


def _range(values: Sequence[float], panel: Panel) -> tuple[float, float]:
    low, high = min(values), max(values)
    if panel.log:
        return (low, high) if high > low else (low / 2, high * 2)
    if panel.zero:
        low = min(0.0, low)
    if high == low:
        low, high = low - abs(low) * 0.1 - 1e-12, high + abs(high) * 0.1 + 1e-12
    return low, high + 0.04 * (high - low)


def _round(low: float, high: float, count: int) -> list[float]:
    """At most about `count` round numbers between two."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = [10.0**p for p in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return powers if len(powers) in (1, 2, 3, 4) else powers[:: max(1, len(powers) // 3)] or [low, high]


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: `1:02:03`."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
