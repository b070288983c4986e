"""Pages about released artifacts: the impact of an artifact on others, and the trial of a canary. The pages load no
external resources.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.style import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    PALETTE,
    SOFT_INK,
    WARNING,
    WARNING_INK,
    WIDTH_INCHES,
    count,
    svg,
)
from plinth.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Graph of everything derived from an artifact: one box per asset, inputs to the left of what is derived from them.
#
# columns   the longest path from the origin, so that every link leads to the right
# boxes     an asset with its manifests; many assets are drawn as one box by stage
# links     as thick as the number of manifests that they join, by its logarithm; those that pass columns by, as arcs

#: Inches.
COLUMN, ROW, BOX, HEIGHT, MARGIN = 2.05, 0.52, 1.55, 0.36, 0.25
ARC, HIGHEST = 0.3, 0.9  # how far a link rises for each column that it passes, and at most
MOST_BOXES = 40
LABEL = 24  # characters of a name inside a box


class ImpactBox(Frozen):
    """An asset in the impact graph, with the number of its manifests and the number of its published manifests.

    `origin` is True for the asset where the search starts.
    """

    name: str
    manifests: int
    published: int = 0
    origin: bool = False


class ImpactArrow(Frozen):
    """Link between two assets of the impact graph, with the number of derived manifests."""

    source: str
    target: str
    manifests: int


def grouped(
    boxes: Sequence[ImpactBox], arrows: Sequence[ImpactArrow], most: int = MOST_BOXES
) -> tuple[list[ImpactBox], list[ImpactArrow]]:
    """Return the impact graph. If it has more than `most` boxes, the boxes of a stage are joined over all buckets."""
    if len(boxes) <= most:
        return list(boxes), list(arrows)
    own: dict[str, list[ImpactBox]] = defaultdict(list)
    for box in boxes:
        own[_stage(box.name)].append(box)
    joined = [
        ImpactBox(
            name=name,
            manifests=sum(box.manifests for box in several),
            published=sum(box.published for box in several),
            origin=any(box.origin for box in several),
        )
        for name, several in own.items()
    ]
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for arrow in arrows:
        counts[_stage(arrow.source), _stage(arrow.target)] += arrow.manifests
    return joined, [
        ImpactArrow(source=source, target=target, manifests=number)
        for (source, target), number in sorted(counts.items())
        if source != target
    ]


def columns(boxes: Sequence[ImpactBox], arrows: Sequence[ImpactArrow]) -> dict[str, int]:
    """Return the graph column of every box: the largest column of its inputs, plus one.

    Assets may be derived from each other's versions and then form a cycle. The search ends after one round per box.
    """
    place = {box.name: 0 for box in boxes}
    for _ in boxes:
        later = dict(place)
        for arrow in arrows:
            if arrow.source != arrow.target and arrow.source in later and arrow.target in later:
                later[arrow.target] = max(later[arrow.target], place[arrow.source] + 1)
        if later == place:
            break
        place = later
    used = sorted(set(place.values()))
    return {name: used.index(column) for name, column in place.items()}


def impact_figure(boxes: Sequence[ImpactBox], arrows: Sequence[ImpactArrow], most: int = MOST_BOXES) -> Figure:
    """Draw the impact graph."""
    from matplotlib.figure import Figure

    drawn, links = grouped(boxes, arrows, most)
    spots = _spots(drawn, columns(drawn, links))
    width = MARGIN * 2 + max((x for x, _ in spots.values()), default=0) + BOX
    top = MARGIN + HIGHEST / 2
    height = top + max((y for _, y in spots.values()), default=0) + HEIGHT + MARGIN
    fig = Figure(figsize=(width, height))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set_xlim(-MARGIN, width - MARGIN)
    ax.set_ylim(height - top, -top)
    ax.axis("off")
    for arrow in links:
        if arrow.source != arrow.target and arrow.source in spots and arrow.target in spots:
            _arrow(ax, spots[arrow.source], spots[arrow.target], 0.6 + math.log10(arrow.manifests))
    for box in drawn:
        _box(ax, box, *spots[box.name])
    return fig


def _stage(name: str) -> str:
    return f"*/{name.rsplit('/', 1)[-1]}" if "/" in name else name


def _spots(boxes: Sequence[ImpactBox], place: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Return the upper left corner of every box. The boxes of each column are centered vertically."""
    rows: dict[int, list[str]] = defaultdict(list)
    for box in sorted(boxes, key=lambda box: (not box.origin, box.name)):
        rows[place[box.name]].append(box.name)
    tallest = max(map(len, rows.values()), default=0)
    return {
        name: (column * COLUMN, (row + (tallest - len(names)) / 2) * ROW)
        for column, names in rows.items()
        for row, name in enumerate(names)
    }


def _box(ax: Axes, box: ImpactBox, x: float, y: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    colour = WARNING if box.origin else ACCENT if box.published else MUTED
    shape = "round,pad=0,rounding_size=0.06"
    ax.add_patch(FancyBboxPatch((x, y), BOX, HEIGHT, boxstyle=shape, facecolor=colour, alpha=0.16, linewidth=0))
    ax.add_patch(FancyBboxPatch((x, y), BOX, HEIGHT, boxstyle=shape, facecolor="none", edgecolor=colour, linewidth=0.9))
    ax.text(x + 0.08, y + 0.12, _short(box.name), fontsize=8, va="center", color=INK, parse_math=False)
    notes = [counted(box.manifests, "manifest")]
    notes += [f"{count(box.published)} published"] if box.published else []
    ax.text(x + 0.08, y + 0.265, ", ".join(notes), fontsize=6.5, va="center", color=SOFT_INK)


def _short(name: str) -> str:
    return name if len(name) <= LABEL else f"{name[: LABEL - 1]}…"


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], width: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    x0, y0, x1, y1 = start[0] + BOX, start[1] + HEIGHT / 2, end[0], end[1] + HEIGHT / 2
    bend = max(0.25, (x1 - x0) / 2)
    rise = min(HIGHEST, ARC * max(0, round((x1 - start[0]) / COLUMN) - 1))
    points = [(x0, y0), (x0 + bend, y0 - rise), (x1 - bend, y1 - rise), (x1, y1)]
    path = Path(points, [Path.MOVETO, *[Path.CURVE4] * 3])
    ax.add_patch(PathPatch(path, facecolor="none", edgecolor=FAINT, linewidth=width, zorder=0))


#: Manifests listed one by one; the command's JSON has all.
LISTED = 500
#: Width of a graph column at which its labels are readable. Wider graphs scroll.
COLUMN_PIXELS = 165


class ImpactRow(Frozen):
    """One manifest in the list of an impact page."""

    steps: int
    asset: str
    digest: str
    state: str


class VersionRow(Frozen):
    """A model version that derives from the artifact, with its aliases."""

    model: str
    version: str
    checkpoint: str
    aliases: tuple[str, ...] = ()


class ConsumerRow(Frozen):
    """A service or model that uses a release, with its owner."""

    name: str
    owner: str
    uses: str


class ExportRow(Frozen):
    """An export of an affected model, or of affected text or tokens, with its target and time."""

    name: str
    status: str
    to: str
    at: str


class ImpactData(Frozen):
    """Contents of an impact page.

    `manifests` are the `LISTED` manifests nearest to the origin, of `count` in total. `marks` is a list of
    sentences, one per taint. `gaps` names the parts that could not be searched.
    """

    kind: str
    target: str
    marks: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    boxes: tuple[ImpactBox, ...] = ()
    arrows: tuple[ImpactArrow, ...] = ()
    manifests: tuple[ImpactRow, ...] = ()
    count: int = 0
    runs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    versions: tuple[VersionRow, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    exports: tuple[ExportRow, ...] = ()


def impact_page(data: ImpactData) -> str:
    """Return the impact page as HTML. The same data gives the same bytes."""
    title = f"Artifacts derived from {data.kind} {data.target}"
    plot = svg(impact_figure, data.boxes, data.arrows, title=title) if data.boxes else ""
    shown, links = grouped(data.boxes, data.arrows)
    across = 1 + max(columns(shown, links).values(), default=0)
    return template("impact_page.html.j2").render(
        data=data, title=title, plot=plot, width=across * COLUMN_PIXELS, verdict=_verdict(data)
    )


def _verdict(data: ImpactData) -> str:
    """Return a sentence with the numbers of manifests, runs, versions, consumers and exports that are derived from the
    artifact."""
    kinds = [("manifest", data.count), ("run", len(data.runs)), ("model version", len(data.versions))]
    kinds += [("consumer", len(data.consumers)), ("export", len(data.exports))]
    return ", ".join(counted(number, kind) for kind, number in kinds) + "."


# The page of a canary's trial: every stream compared with the champion, accepted data, and the decision.


class FeedRow(Frozen):
    """A custom metric in a canary's trial: number of accepted pairs, number of lines from before the trial, rejects by
    reason, and error."""

    name: str
    pairs: int
    earlier: int
    rejects: tuple[tuple[str, int], ...] = ()
    fault: str = ""


class TrialStream(Frozen):
    """A stream of paired measurements in a canary's trial.

    `points` are (pairs, mean, low, high); the margin is subtracted from the last three. `points` and `margin` are in
    `unit`. `decided_at` is the number of the pair at which the canary was rolled back.
    """

    name: str
    role: str
    decision: str
    finding: str
    unit: str = ""
    margin: float = 0.0
    points: tuple[tuple[int, float, float, float], ...] = ()
    decided_at: int | None = None


class TrialData(Frozen):
    """Contents of the page of a canary's trial.

    `manifests` are digests of the signed measurements, by asset. `small` names streams that were skipped because n is
    too small. `missing` is the reason why there is no paired evidence.
    """

    release: str
    canary: str
    champion: str
    since: str
    decision: str
    next: str
    margin: float
    level: float
    policy: str
    streams: tuple[TrialStream, ...] = ()
    small: tuple[str, ...] = ()
    missing: str = ""
    feeds: tuple[FeedRow, ...] = ()
    manifests: tuple[tuple[str, str], ...] = ()


def trial_page(data: TrialData) -> str:
    """Return the page of a canary's trial as HTML. The same data gives the same bytes."""
    title = f"{data.release}: canary version {data.canary}, champion version {data.champion}"
    drawn = any(one.points for one in data.streams)
    plot = svg(trial_figure, data.streams, title=title) if drawn else ""
    return template("trial_page.html.j2").render(data=data, title=title, plot=plot, most=MOST_PANELS)


#: Panels of a figure; a page lists the other streams in its table.
MOST_PANELS = 12
#: Intervals before this share of the evaluations are too wide to set the scale.
SETTLED = 0.2
COLOURS = {"return": WARNING, "promote": PALETTE[2], "continue": ACCENT}


def trial_figure(streams: Sequence[TrialStream]) -> Figure:
    """Draw one panel for each stream that has points.

    Above 0, the canary is worse than the champion by more than the margin. The dotted line marks no difference.
    """
    from matplotlib.figure import Figure

    shown = [one for one in streams if one.points][:MOST_PANELS]
    columns = 2 if len(shown) > 1 else 1
    rows = max(1, -(-len(shown) // columns))
    fig = Figure(figsize=(WIDTH_INCHES, 1.75 * rows + 0.35), layout="constrained")
    panels = fig.subplots(rows, columns, squeeze=False).ravel()
    for ax, stream in zip(panels, shown, strict=False):
        _panel(ax, stream)
    for ax in panels[len(shown) :]:
        ax.set_axis_off()
    return fig


def _panel(ax: Axes, stream: TrialStream) -> None:
    pairs, mean, low, high = zip(*stream.points, strict=True)
    colour = COLOURS.get(stream.decision, ACCENT)
    ax.axhline(0, color=INK, linewidth=1.0)
    ax.axhline(-stream.margin, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)))
    ax.fill_between(pairs, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(pairs, mean, color=colour, linewidth=1.6)
    if stream.decided_at is not None:
        ax.axvline(stream.decided_at, color=WARNING, linewidth=1.2, linestyle=(0, (3, 2)))
        ax.annotate(f" rolled back at {count(stream.decided_at)}", (stream.decided_at, 1), color=WARNING_INK,
                    fontsize=8, xycoords=("data", "axes fraction"), va="top")  # fmt: skip
    ax.set_ylim(*_scale(stream))
    ax.set_title(stream.name, loc="left", fontsize=9, parse_math=False)
    ax.set_ylabel(f"worse, {stream.unit}" if stream.unit else "worse", fontsize=8)
    ax.set_xlabel("pairs", fontsize=8)
    ax.tick_params(length=0, labelsize=8)
    ax.grid(axis="y")
    ax.set_axisbelow(True)


def _scale(stream: TrialStream) -> tuple[float, float]:
    """Return the limits of the vertical axis. They include 0, the dotted line and the later intervals."""
    settled = stream.points[int(SETTLED * len(stream.points)) :]
    low = min(0.0, -stream.margin, *(one[2] for one in settled))
    high = max(0.0, -stream.margin, *(one[3] for one in settled))
    room = 0.08 * (high - low) or 1.0
    return low - room, high + room
