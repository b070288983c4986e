"""The parts of a step over a run as stacked shares: data, host, forward, backward, communication and so on.

Steps that lie close together on the page are one stretch, whose shares are the means of theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from plinth.report.run import panels
from plinth.report.run.metrics import RunMetrics
from plinth.report.run.panels import INNER, LEFT, TimeAxis
from plinth.report.style import colours
from plinth.training.telemetry.step_clock import PARTS

#: Stretches that are drawn at most.
STRETCHES = 120

#: A stretch goes on to the next, but over a gap of more than so many stretches nobody trained.
WIDEST = 3

#: Seconds by part under the name that `panels.shares` draws, and the place on the canvas.
Stretch = tuple[dict[str, dict[str, float]], tuple[float, float]]


def stretches(measured: RunMetrics, scale: TimeAxis) -> list[Stretch]:
    """Shares of each stretch of the axis in which steps were taken; empty where no step names its parts."""
    series = {part: measured.series[f"part:{part}"] for part in PARTS if f"part:{part}" in measured.series}
    if not series:
        return []
    places = scale.of(next(iter(series.values())))
    count = min(STRETCHES, 2 * len(places))  # of few steps each has a stretch of its own
    width = INNER / count
    sums: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    for part, own in series.items():
        for place, value in zip(places, own.values, strict=True):
            if math.isfinite(value):
                sums[min(int((scale.at(place) - LEFT) / width), count - 1)][part] += value
    ordered = sorted(sums)
    ends = [*ordered[1:], math.inf]
    return [
        (
            {"realised": {part: value / sum(sums[column].values()) for part, value in sums[column].items()}},
            (LEFT + width * column, min(LEFT + width * min(end, column + WIDEST), LEFT + INNER)),
        )
        for column, end in zip(ordered, ends, strict=True)
        if sum(sums[column].values()) > 0
    ]


def drawn(found: Sequence[Stretch]) -> dict[str, Any]:
    """The panel: drawing, names with their colours, values at the pointer."""
    rows, places = [row for row, _ in found], [place for _, place in found]
    lines = [{"name": name, "colour": colour, "faint": False} for name, colour in colours(PARTS).items()]
    return {
        "lines": lines,
        "svg": panels.shares(rows, places, "parts of a step", "parts"),
        "points": panels.share_points(rows, places),
    }
