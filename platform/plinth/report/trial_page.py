"""The page of a canary's trial: every stream beside the champion, what was taken in, what decides; loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.style import ACCENT, INK, MUTED, PALETTE, WARNING, WARNING_INK, WIDTH_INCHES, count, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class FeedRow(Frozen):
    """One of the owner's metrics: pairs taken in, lines from before the trial, rejects by reason, and what is wrong."""

    name: str
    pairs: int
    earlier: int
    rejects: tuple[tuple[str, int], ...] = ()
    fault: str = ""


class TrialStream(Frozen):
    """A stream of a trial.

    `points` are (pairs, mean, low, high) beyond the margin, `margin` and they in `unit`; `decided_at` is the pair that
    gave the canary back.
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


#: Panels of a figure; a page lists the other streams in its table.
MOST_PANELS = 12
#: Before this share of the looks an interval is too wide to set the scale.
SETTLED = 0.2
COLOURS = {"return": WARNING, "promote": PALETTE[2], "continue": ACCENT}


def figure(streams: Sequence[TrialStream]) -> Figure:
    """A panel for each stream that has points: above 0, the boundary, the canary is worse by more than is allowed; the
    dotted line is where it equals the champion."""
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
        ax.annotate(f" given back at {count(stream.decided_at)}", (stream.decided_at, 1), color=WARNING_INK,
                    fontsize=8, xycoords=("data", "axes fraction"), va="top")  # fmt: skip
    ax.set_ylim(*_scale(stream))
    ax.set_title(stream.name, loc="left", fontsize=9, parse_math=False)
    ax.set_ylabel(f"worse, {stream.unit}" if stream.unit else "worse", fontsize=8)
    ax.set_xlabel("pairs", fontsize=8)
    ax.tick_params(length=0, labelsize=8)
    ax.grid(axis="y")
    ax.set_axisbelow(True)


def _scale(stream: TrialStream) -> tuple[float, float]:
    """Limits that show the later intervals whole, both lines and the mean."""
    settled = stream.points[int(SETTLED * len(stream.points)) :]
    low = min(0.0, -stream.margin, *(one[2] for one in settled))
    high = max(0.0, -stream.margin, *(one[3] for one in settled))
    room = 0.08 * (high - low) or 1.0
    return low - room, high + room
