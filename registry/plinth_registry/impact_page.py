"""Page of an impact: everything derived from an artifact, as a graph and as lists, without external resources."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plinth.provenance.impact import AssetLink
from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.style import ACCENT, FAINT, INK, MUTED, SOFT_INK, WARNING, count, svg
from plinth.text import counted
from plinth_registry.consumers import Impact

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


def grouped(
    boxes: Sequence[ImpactBox], arrows: Sequence[AssetLink], most: int = MOST_BOXES
) -> tuple[list[ImpactBox], list[AssetLink]]:
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
        AssetLink(source, target, number) for (source, target), number in sorted(counts.items()) if source != target
    ]


def columns(boxes: Sequence[ImpactBox], arrows: Sequence[AssetLink]) -> dict[str, int]:
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


def impact_figure(boxes: Sequence[ImpactBox], arrows: Sequence[AssetLink], most: int = MOST_BOXES) -> Figure:
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


def boxes(found: Impact) -> list[ImpactBox]:
    """Return the boxes of the impact graph, in the order of the manifests."""
    first = {each.asset for each in found.manifests if each.steps == 0}
    saved = Counter(each.asset for each in found.manifests)
    published = Counter(each.asset for each in found.manifests if each.state == "published")
    return [
        ImpactBox(name=name, manifests=saved[name], published=published[name], origin=name in first) for name in saved
    ]


def impact_page(found: Impact) -> str:
    """Return the impact page as HTML. The same impact gives the same bytes."""
    title = f"Artifacts derived from {found.origin.kind} {found.origin.target}"
    drawn = boxes(found)
    plot = svg(impact_figure, drawn, found.links, title=title) if drawn else ""
    across = 1 + max(columns(*grouped(drawn, found.links)).values(), default=0)
    return template("impact_page.html.j2", __package__).render(
        found=found, title=title, plot=plot, width=across * COLUMN_PIXELS, verdict=_verdict(found), listed=LISTED
    )


def _verdict(found: Impact) -> str:
    """Return a sentence with the numbers of manifests, runs, versions, consumers and exports that are derived from the
    artifact."""
    kinds = {
        "manifest": found.manifests, "run": found.runs, "model version": found.versions,
        "consumer": found.consumers, "export": found.exports,
    }  # fmt: skip
    return ", ".join(counted(len(of_kind), kind) for kind, of_kind in kinds.items()) + "."
