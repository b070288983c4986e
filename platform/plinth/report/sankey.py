"""The funnel as a Sankey diagram: documents flow downward, and documents that a stage removes branch off to a reason.

    x, to the right: documents, stacked by bucket; the width of a document is the same everywhere
    y, downwards:    stages in order; next to each stage one bar per reason, largest first

The smaller reasons of a stage share one bar, so that labels stay readable for any number of rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plinth.report.figures import STAGE_NAMES
from plinth.report.style import INK, SOFT_INK, colours, count, percent, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches. The stream is as wide as all records together.
WIDTH, LEFT, STREAM, BARS, BAR = 9.0, 1.42, 2.9, 5.1, 0.11
COLUMNS = (7.7, 8.28, 8.95)  # right edges of documents, share, text
HEAD = 0.42  # the stream before its first stage
LABEL = 0.19  # height of a line of text with its air
GAP = 0.2  # between two stages
LEAST = 0.56  # a stage: two lines at its left
MIN_BAR = 0.012
REASONS_PER_STAGE = 6


@dataclass(frozen=True)
class Reason:
    """One reason for removal, drawn as a bar: number of removed documents by bucket."""

    name: str
    by_bucket: Mapping[str, float]
    text_bytes: float | None

    @property
    def documents(self) -> float:
        return sum(self.by_bucket.values())


@dataclass(frozen=True)
class Level:
    """A stage of the diagram: input documents by bucket, and removed documents by reason."""

    stage: str
    coming: Mapping[str, float]
    reasons: tuple[Reason, ...]


def levels(stats: Mapping[str, Any], most: int = REASONS_PER_STAGE) -> list[Level]:
    """Return the stages that removed documents. Each has its largest reasons in order, and the other reasons joined
    into one.

    Args:
        stats: statistics of the asset `funnel`.
        most: number of reasons per stage that get their own bar.
    """
    buckets = sorted(stats["buckets"])
    found = []
    for index, row in enumerate(stats["total"]["stages"]):
        own = {bucket: stats["buckets"][bucket]["stages"][index] for bucket in buckets}
        taken = {name: _reason(name, own) for name in row["reasons"] if row["stage"] != "curated"}
        ordered = sorted((one for one in taken.values() if one.documents), key=lambda one: (-one.documents, one.name))
        if ordered:
            coming = {bucket: float(each["documents_in"]) for bucket, each in own.items()}
            found.append(Level(row["stage"], coming, tuple(_grouped(ordered, most))))
    return found


def figure(stats: Mapping[str, Any], most: int = REASONS_PER_STAGE) -> Figure:
    """Draw the Sankey diagram of a funnel.

    Args:
        stats: statistics of the asset `funnel`.
        most: number of reasons per stage that get their own bar.
    """
    from matplotlib.figure import Figure

    drawn, buckets = levels(stats, most), sorted(stats["buckets"])
    first = float(stats["total"]["stages"][0]["documents_in"]) or 1.0
    plan = _heights(drawn, STREAM / first)
    height = _top(buckets) + HEAD + sum(plan) + 0.5
    fig = Figure(figsize=(WIDTH, height))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(height, 0)
    ax.axis("off")
    palette = colours(buckets)
    y = _head(ax, stats, buckets, palette, STREAM / first)
    for level, extent in zip(drawn, plan, strict=True):
        _level(ax, level, y, extent, STREAM / first, palette, first)
        y += extent
    _foot(ax, stats, buckets, y, STREAM / first, palette, first)
    return fig


def _reason(name: str, rows: Mapping[str, Mapping[str, Any]]) -> Reason:
    found = {bucket: row["reasons"].get(name, {}) for bucket, row in rows.items()}
    sizes = [one["bytes"] for one in found.values() if one and one.get("bytes") is not None]
    by_bucket = {bucket: float(one.get("documents", 0)) for bucket, one in found.items()}
    return Reason(name, by_bucket, float(sum(sizes)) if sizes else None)


def _grouped(reasons: Sequence[Reason], most: int) -> list[Reason]:
    """Return the largest reasons, and the others joined into one reason. If only one other reason remains, it is not
    joined."""
    if len(reasons) <= most + 1:
        return list(reasons)
    rest = reasons[most:]
    by_bucket = {bucket: sum(one.by_bucket[bucket] for one in rest) for bucket in rest[0].by_bucket}
    sizes = [one.text_bytes for one in rest if one.text_bytes is not None]
    return [*reasons[:most], Reason(f"{len(rest)} more", by_bucket, sum(sizes) if sizes else None)]


def _heights(drawn: Sequence[Level], scale: float) -> list[float]:
    """Return the height of each stage, which has room for the stage's bars and one line of text per bar."""
    return [max(LEAST, sum(_bar_height(one, scale) for one in level.reasons) + GAP) for level in drawn]


def _bar_height(reason: Reason, scale: float) -> float:
    return max(LABEL, reason.documents * scale + 0.05)


def _head(
    ax: Axes, stats: Mapping[str, Any], buckets: Sequence[str], palette: Mapping[str, str], scale: float
) -> float:
    """Draw the legend, the column headings and the incoming stream, and return the vertical position of the first
    stage."""
    for bucket, (x, line) in _legend(buckets).items():
        ax.add_patch(_box(x, line - 0.06, 0.12, 0.12, palette[bucket], 0.9))
        ax.text(x + 0.17, line, bucket, fontsize=9, va="center", color=INK)
    y = _top(buckets)
    for edge, name in zip(COLUMNS, ("documents", "of all", "text"), strict=True):
        ax.text(edge, y, name, fontsize=8, va="center", ha="right", color=SOFT_INK)
    coming = {bucket: float(stats["buckets"][bucket]["stages"][0]["documents_in"]) for bucket in buckets}
    lefts = _lefts(coming, scale)
    for bucket, value in coming.items():
        ax.add_patch(_box(lefts[bucket], y - 0.02, value * scale, 0.04, palette[bucket], 1.0))
        ax.add_patch(_box(lefts[bucket], y, value * scale, HEAD, palette[bucket], 0.38))
    _left(ax, y, "records found", count(sum(coming.values())))
    return y + HEAD


def _legend(buckets: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the position of each bucket in the legend. The lines of the legend are as wide as the figure."""
    places, x, line = {}, LEFT, 0.18
    for bucket in buckets:
        width = 0.36 + 0.077 * len(bucket)
        if x + width > WIDTH and x > LEFT:
            x, line = LEFT, line + 0.2
        places[bucket] = (x, line)
        x += width
    return places


def _top(buckets: Sequence[str]) -> float:
    """Return the vertical position where the stream begins, below the legend."""
    return max(line for _, line in _legend(buckets).values()) + 0.37


def _left(ax: Axes, y: float, name: str, note: str) -> None:
    """Draw two lines of text, `name` and `note`, at the left edge of the stream."""
    ax.text(LEFT - 0.12, y + 0.08, name, ha="right", va="center", fontsize=9, color=INK)
    ax.text(LEFT - 0.12, y + 0.25, note, ha="right", va="center", fontsize=8, color=SOFT_INK)


def _level(
    ax: Axes, level: Level, y: float, height: float, scale: float, palette: Mapping[str, str], first: float
) -> None:
    """Draw the stream next to a stage, the ribbons that leave it, and the bars at their ends."""
    lefts = _lefts(level.coming, scale)
    leaving = {bucket: sum(one.by_bucket[bucket] for one in level.reasons) for bucket in level.coming}
    staying = {bucket: value - leaving[bucket] for bucket, value in level.coming.items()}
    after = _lefts(staying, scale)
    for bucket, value in level.coming.items():
        corners = (lefts[bucket], lefts[bucket] + staying[bucket] * scale, after[bucket])
        _band(ax, corners, staying[bucket] * scale, y, y + height, palette[bucket])
        ax.add_patch(_box(lefts[bucket], y - 0.02, value * scale, 0.04, palette[bucket], 1.0))
    taken = sum(leaving.values())
    incoming = sum(level.coming.values())
    name = STAGE_NAMES.get(level.stage, level.stage)
    words = "− not taken in" if level.stage == "documents" else f"− {name}"
    _left(ax, y, words, f"{count(taken)}, {percent(taken / incoming)}")
    starts = {bucket: lefts[bucket] + staying[bucket] * scale for bucket in level.coming}
    ends = {bucket: lefts[bucket] + level.coming[bucket] * scale for bucket in level.coming}
    top = y + 0.1
    for one in level.reasons:
        _ribbons(ax, one, top, y, starts, ends, scale, palette)
        at = top + max(one.documents * scale, MIN_BAR) / 2
        ax.text(BARS + BAR + 0.1, at, one.name, va="center", fontsize=8.5, color=INK)
        cells = (count(one.documents), percent(one.documents / first), size(one.text_bytes) if one.text_bytes else "")
        for edge, cell in zip(COLUMNS, cells, strict=True):
            ax.text(edge, at, cell, va="center", ha="right", fontsize=8, color=SOFT_INK)
        top += _bar_height(one, scale)


def _ribbons(
    ax: Axes,
    reason: Reason,
    top: float,
    y: float,
    starts: dict[str, float],
    ends: dict[str, float],
    scale: float,
    palette: Mapping[str, str],
) -> None:
    """Draw one ribbon per bucket, last bucket first, from the right edge of the bucket's stream to the reason's bar."""
    for bucket in reversed(list(reason.by_bucket)):
        width = reason.by_bucket[bucket] * scale
        if not width:
            continue
        right = ends[bucket]
        shown = max(width, MIN_BAR)
        _turn(ax, right - width, right, y, BARS, top, top + shown, palette[bucket])
        ax.add_patch(_box(BARS, top, BAR, shown, palette[bucket], 1.0))
        ends[bucket] = max(starts[bucket], right - width)
        top += width


def _foot(
    ax: Axes,
    stats: Mapping[str, Any],
    buckets: Sequence[str],
    y: float,
    scale: float,
    palette: Mapping[str, str],
    first: float,
) -> None:
    """Draw the documents that remain for training at the bottom of the diagram."""
    kept = {bucket: float(stats["buckets"][bucket]["stages"][-1]["documents_out"]) for bucket in buckets}
    lefts = _lefts(kept, scale)
    for bucket in buckets:
        ax.add_patch(_box(lefts[bucket], y, kept[bucket] * scale, 0.14, palette[bucket], 1.0))
    total = sum(kept.values())
    last = stats["total"]["stages"][-1]
    parts = [f"{count(total)} documents ({percent(total / first)})"]
    parts += [size(last["bytes_out"])] if last.get("bytes_out") else []
    tokens = stats["total"].get("trained", {}).get("tokens")
    parts += [f"{count(tokens)} tokens"] if tokens else []
    ax.text(LEFT - 0.12, y + 0.07, "for training", ha="right", va="center", fontsize=9, fontweight="bold", color=INK)
    ax.text(LEFT, y + 0.3, " · ".join(parts), va="center", fontsize=9, fontweight="bold", color=INK)


def _lefts(values: Mapping[str, float], scale: float) -> dict[str, float]:
    """Return the left edge of each bucket's stream."""
    found, x = {}, LEFT
    for bucket, value in values.items():
        found[bucket] = x
        x += value * scale
    return found


def _band(ax: Axes, corners: tuple[float, float, float], width: float, y: float, bottom: float, colour: str) -> None:
    """Draw a bucket's stream between two stages. It moves left as other streams get narrower."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right, below = corners
    middle = (y + bottom) / 2
    points = [(left, y), (left, middle), (below, middle), (below, bottom), (below + width, bottom),
              (below + width, middle), (right, middle), (right, y), (left, y)]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    ax.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.38, linewidth=0))


def _turn(ax: Axes, left: float, right: float, y: float, x: float, top: float, bottom: float, colour: str) -> None:
    """Draw a ribbon that goes down from [left, right] at `y`, turns right, and ends at `x` from `top` to `bottom`."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    inner, outer = min(0.55, x - right), min(0.55, x - right) + (right - left)
    points = [(right, y), (right, top), (right, top), (right + inner, top), (x, top), (x, bottom),
              (left + outer, bottom), (left, bottom), (left, bottom), (left, y), (right, y)]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, Path.LINETO, Path.LINETO, *[Path.CURVE4] * 3,
             Path.CLOSEPOLY]  # fmt: skip
    ax.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.45, linewidth=0))


def _box(x: float, y: float, width: float, height: float, colour: str, alpha: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, alpha=alpha, linewidth=0)
