"""The page of an impact: what came of something, as a graph and as lists; loads nothing."""

from __future__ import annotations

from plinth.records import Frozen
from plinth.report.impact_figure import ImpactArrow, ImpactBox, columns, figure, grouped
from plinth.report.page import template
from plinth.report.render import svg

#: Manifests listed one by one; the command's JSON has all.
LISTED = 500
#: A column of the graph at the size at which its labels can be read; wider graphs scroll.
COLUMN_PIXELS = 165


class ImpactRow(Frozen):
    """One manifest in the list of a page."""

    steps: int
    asset: str
    digest: str
    state: str


class VersionRow(Frozen):
    """A version of a model that was made of it, with its aliases."""

    model: str
    version: str
    checkpoint: str
    aliases: tuple[str, ...] = ()


class ConsumerRow(Frozen):
    """A service or a model made of a release, with who answers for it."""

    name: str
    owner: str
    uses: str


class ImpactData(Frozen):
    """Contents of the page. `manifests` are the nearest `LISTED` of `count`; `marks` are sentences; `gaps` name parts
    that could not be searched."""

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


def page(data: ImpactData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    title = f"What came of {data.kind} {data.target}"
    plot = svg(figure, data.boxes, data.arrows, title=title) if data.boxes else ""
    shown, links = grouped(data.boxes, data.arrows)
    across = 1 + max(columns(shown, links).values(), default=0)
    return template("impact_page.html.j2").render(data=data, title=title, plot=plot, width=across * COLUMN_PIXELS)
