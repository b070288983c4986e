"""The page of a canary's trial: every stream beside the champion, what was taken in, what decides; loads nothing."""

from __future__ import annotations

from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.render import svg
from plinth.report.trial_figure import MOST_PANELS, TrialStream, figure


class FeedRow(Frozen):
    """One of the owner's metrics: pairs taken in, lines from before the trial, rejects by reason, and what is wrong."""

    name: str
    pairs: int
    earlier: int
    rejects: tuple[tuple[str, int], ...] = ()
    fault: str = ""


class TrialData(Frozen):
    """Contents of the page. `manifests` are digests of the signed measurements by asset; `small` streams that were too
    small to judge; `missing` why nothing signed was paired."""

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


def page(data: TrialData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    title = f"{data.release}: canary version {data.canary}, champion version {data.champion}"
    drawn = any(one.points for one in data.streams)
    plot = svg(figure, data.streams, title=title) if drawn else ""
    return template("trial_page.html.j2").render(data=data, title=title, plot=plot, most=MOST_PANELS)
