"""Page of a canary's trial: every stream compared with the champion, accepted data, and the decision. The page loads no
external resources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.style import ACCENT, INK, MUTED, PALETTE, WARNING, WARNING_INK, WIDTH_INCHES, count, svg
from plinth_registry.canary import CanaryStatus
from plinth_registry.gates.settings import TrialPolicy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def trial_page(status: CanaryStatus, rules: TrialPolicy, streams: Sequence[TrialStream]) -> str:
    """Return the page of a canary's trial as HTML. The same trial gives the same bytes."""
    champion = status.champion or "none"
    title = f"{status.release}: canary version {status.canary}, champion version {champion}"
    plot = svg(trial_figure, streams, title=title) if any(one.points for one in streams) else ""
    return template("trial_page.html.j2", __package__).render(
        status=status, champion=champion, rules=rules, streams=streams, title=title, plot=plot, most=MOST_PANELS
    )


#: Panels of a figure; a page lists the other streams in its table.
MOST_PANELS = 12
#: Intervals before this share of the evaluations are too wide to set the scale.
SETTLED = 0.2
COLOURS = {"return": WARNING, "promote": PALETTE[2], "continue": ACCENT}


def trial_figure(streams: Sequence[TrialStream]) -> Figure:
    """Draw one panel for each stream that has points.

    Above 0, the canary is worse than the champion by more than the margin. On the dotted line, both are equal.
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
