"""Matplotlib figures from plain data. The functions are called by `style.svg` and `style.png`, which set style and
output format.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from plinth.report.style import (
    ACCENT,
    ACCENT_INK,
    FAINT,
    INK,
    MUTED,
    SOFT_INK,
    WARNING,
    WARNING_INK,
    WIDTH_INCHES,
    colours,
    count,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Names that read better than the keys of the statistics.
STAGE_NAMES = {
    "documents": "parsed", "policy": "quality, license", "exact": "exact duplicates", "near": "near duplicates",
    "semantic": "look-alikes", "lines": "repeated lines", "substring": "repeated passages", "holdout": "held out",
    "contamination": "contaminated", "protected": "protected sets", "curated": "for training",
}  # fmt: skip

#: Events of a run that are marked on its loss curve, with their color.
INTERVENTIONS = {"restart": WARNING, "refused": WARNING, "signal": MUTED, "failed": WARNING, "stopped": WARNING}

#: The moving mean covers a thirtieth of the run, so that it is smooth but does not lag.
RUN_PER_MEAN = 30


def funnel(stats: Mapping[str, Any]) -> Figure:
    """Draw one bar per stage with the documents that remain after it, stacked by bucket. Bands connect the bars of a
    bucket."""
    buckets = sorted(stats["buckets"])
    stages = [row["stage"] for row in stats["total"]["stages"]]
    left = [_left(stats["buckets"][bucket]["stages"]) for bucket in buckets]
    names = ["in", *stages] if _rejected(stats["total"]["stages"]) else stages
    left = [row if len(names) > len(stages) else row[1:] for row in left]
    fig = _figure(0.62 * len(names) + 0.75)
    ax = fig.subplots()
    palette, rows = colours(buckets), range(len(names))
    starts = [0.0] * len(names)
    for bucket, values in zip(buckets, left, strict=True):
        for row, value in enumerate(values):
            ax.barh(row, value, left=starts[row], height=0.52, color=palette[bucket], label=bucket if not row else None)
        _streams(ax, starts, values, palette[bucket])
        starts = [start + value for start, value in zip(starts, values, strict=True)]
    for row in rows:
        share = percent(starts[row] / starts[0]) if starts[0] else "0%"
        ax.text(starts[row] + 0.012 * starts[0], row, f"{count(starts[row])}  ({share})", va="center", fontsize=8.5)
    ax.set_yticks(list(rows), [_stage_name(name, row == 0) for row, name in enumerate(names)])
    ax.set_xlim(0, 1.24 * max(starts[0], 1))
    ax.invert_yaxis()
    ax.set_xticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    _legend(ax, len(buckets))
    return fig


def mixture(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw two bars per phase: the planned and the realized shares of the buckets."""
    phases = list(dict.fromkeys(str(row["phase"]) for row in rows))
    buckets = sorted({str(row["bucket"]) for row in rows})
    palette = colours(buckets)
    fig = _figure(0.78 * len(phases) + 0.85)
    ax = fig.subplots()
    labels: list[tuple[float, str]] = []
    for number, phase in enumerate(phases):
        own = {str(row["bucket"]): row for row in rows if str(row["phase"]) == phase}
        for kind, offset in (("weight", -0.2), ("share", 0.2)):
            start = 0.0
            for bucket in buckets:
                value = float(own[bucket][kind]) if bucket in own else 0.0
                label = bucket if not number and kind == "weight" else None
                ax.barh(number + offset, value, left=start, height=0.34, color=palette[bucket], label=label)
                if value > 0.09:
                    ax.text(start + value / 2, number + offset, percent(value), **_inside(palette[bucket]))
                start += value
        labels += [(number - 0.2, f"{phase}  planned"), (number + 0.2, "realized")]
    ax.set_yticks([at for at, _ in labels], [text for _, text in labels])
    ax.set_xlim(0, 1)
    ax.invert_yaxis()
    ax.set_xticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    _legend(ax, len(buckets))
    return fig


def loss(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]] = (), final: float | None = None
) -> Figure:
    """Draw the loss with its moving average, interventions and checkpoints, and the learning rate in a panel below.

    Args:
        steps: events with step, loss and learning rate.
        events: other events of the timeline.
        final: the run's final loss (`training.telemetry.timeline`), printed at the end of the curve.
    """
    at = [int(row["step"]) for row in steps]
    values = [float(row["loss"]) for row in steps]
    rates = [float(row["lr"]) for row in steps if "lr" in row]
    fig = _figure(3.3)
    ax, below = fig.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    ax.plot(at, values, color=ACCENT, alpha=0.28, linewidth=0.9, label="loss")
    ax.plot(at, _moving(values), color=ACCENT, linewidth=1.9, label="moving mean")
    ax.set_ylabel("loss (nats per token)")
    ax.grid(axis="y")
    _marks(ax, at, events)
    if values and final is not None:
        ax.annotate(
            f"{final:.3f}", (at[-1], final), (6, 0), textcoords="offset points",
            va="center", fontweight="bold", color=ACCENT_INK, annotation_clip=False,
        )  # fmt: skip
    ax.legend(loc="upper right", fontsize=8.5)
    if len(rates) == len(at) and any(rates):
        below.fill_between(at, rates, color=MUTED, alpha=0.35, linewidth=0)
        below.plot(at, rates, color=MUTED, linewidth=1.0)
        below.set_ylim(0, 1.15 * max(rates))
        below.set_yticks([0, max(rates)], ["0", f"{max(rates):.2g}"])
    below.set_ylabel("rate", rotation=0, ha="right", va="center")
    below.set_xlabel("optimizer step")
    return fig


def bits_per_byte(slices: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw three bars per slice. Shorter is better. The model's bar has the accent color, and the best value is
    bold."""
    names = sorted(slices)
    fig = _figure(0.66 * len(names) + 0.8)
    ax = fig.subplots()
    kinds = (("model", ACCENT, -0.25), ("trigram", MUTED, 0.0), ("gzip", FAINT, 0.25))
    for kind, colour, offset in kinds:
        values = [float(slices[name][kind]) for name in names]
        places = [row + offset for row in range(len(names))]
        ax.barh(places, values, height=0.22, color=colour, label="gzip -9" if kind == "gzip" else kind)
        for name, place, value in zip(names, places, values, strict=True):
            weight = "bold" if value == min(float(slices[name][each]) for each, _, _ in kinds) else "normal"
            ax.text(value, place, f" {value:.2f}", va="center", fontsize=8, fontweight=weight)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.set_xlabel("bits per byte of held-out text (shorter is better)")
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
    _legend(ax, 3)
    return fig


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_INCHES, height), layout="constrained")


def _left(stages: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the number of documents that enter the first stage, followed by the number that remain after each
    stage."""
    return [float(stages[0]["documents_in"]), *(float(row["documents_out"]) for row in stages)]


def _rejected(stages: Sequence[Mapping[str, Any]]) -> bool:
    return bool(stages and stages[0]["removed"])


def _stage_name(name: str, first: bool) -> str:
    if name == "in":
        return "records found"
    shown = STAGE_NAMES.get(name, name)
    return shown if first or name in ("documents", "curated") else f"− {shown}"


def _streams(ax: Axes, starts: Sequence[float], values: Sequence[float], colour: str) -> None:
    """Connect the bars of one bucket. The band between two bars gets narrower by the documents that the stage
    removed."""
    for row in range(len(values) - 1):
        corners = [(starts[row], row + 0.26), (starts[row] + values[row], row + 0.26)]
        after = row + 1
        corners += [(starts[after] + values[after], after - 0.26), (starts[after], after - 0.26)]
        ax.fill(*zip(*corners, strict=True), color=colour, alpha=0.22, linewidth=0)


def _marks(ax: Axes, at: Sequence[int], events: Sequence[Mapping[str, Any]]) -> None:
    """Draw checkpoints as small triangles on the axis, and interventions as lines with their name."""
    shown = [event for event in events if "step" in event or "lost_steps" in event]
    saved = [int(event["step"]) for event in shown if event["event"] == "checkpoint"]
    if saved:
        ax.plot(saved, [0.0] * len(saved), "^", color=MUTED, markersize=4, transform=ax.get_xaxis_transform(),
                clip_on=False, label="checkpoint")  # fmt: skip
    position = at[0] if at else 0
    for event in events:
        position = int(event.get("step") or position + int(event.get("lost_steps", 0)))
        colour = INTERVENTIONS.get(str(event["event"]))
        if colour:
            ax.axvline(position, color=colour, linewidth=1.1, linestyle=(0, (3, 2)))
            ax.text(position, 1.0, f" {event['event']}", transform=ax.get_xaxis_transform(),
                    color=WARNING_INK if colour == WARNING else SOFT_INK,
                    fontsize=8, va="top", rotation=90, ha="right")  # fmt: skip


def _moving(values: Sequence[float]) -> list[float]:
    """Return the exponential moving average, with the bias correction of Adam (Kingma and Ba)."""
    keep, total, weight, out = 1 - 2 / (2 + max(2, len(values) // RUN_PER_MEAN)), 0.0, 0.0, []
    for value in values:
        if not math.isfinite(value):  # the raw line shows the gap; the mean goes on
            out.append(value)
            continue
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(total / weight)
    return out


def _inside(colour: str) -> dict[str, Any]:
    """Return the style of text on a bar of this color: white or black, whichever has the higher contrast."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # of WCAG; black and white differ alike from 0.179
    return {"ha": "center", "va": "center", "fontsize": 8.5, "color": "white" if light < 0.179 else "black"}


def _legend(ax: Axes, columns: int) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=max(1, min(columns, 6)), fontsize=9, borderaxespad=0.2,
              handlelength=0.9, columnspacing=1.3, handletextpad=0.5)  # fmt: skip


# The mixture along a run: realized and planned shares in every interval of the run. Drawn inside `render`.
#
# A bucket that is divided by axes has up to a thousand streams, too many for a legend, so `gathered` keeps only the
# largest by name.

#: Maximum number of names in a legend, including `REST`. Each has its own color (`style.tone`).
MOST = 12
REST = "others"


def mixture_shares(rows: Sequence[Mapping[str, Any]], sequence_tokens: int) -> Figure:
    """Draw the realized shares of the streams over tokens, stacked. Dashes show the boundaries that the planned shares
    would have.

    Args:
        rows: rows of `apportion.shares_over_run`: `first` and `stop` (sequences), `phase`, and by stream `asked` and
            `realised`.
        sequence_tokens: tokens per sequence.
    """
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    ax = fig.subplots()
    names = sorted(rows[0]["realised"])
    palette = colours(names)
    edges = [row["first"] * sequence_tokens for row in rows] + [rows[-1]["stop"] * sequence_tokens]
    before = [0.0] * len(rows)
    for name in names:
        top = [low + row["realised"][name] for low, row in zip(before, rows, strict=True)]
        ax.stairs(top, edges, baseline=before, fill=True, color=palette[name], label=name)
        before = top
    for row in rows:
        middle = (row["first"] + row["stop"]) / 2 * sequence_tokens
        for line in list(accumulate(row["asked"][name] for name in names))[:-1]:
            ax.plot(middle, line, marker="_", markersize=4, color=INK, markeredgewidth=0.8)
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    for phase in phases[1:]:
        first = next(row["first"] for row in rows if row["phase"] == phase)
        ax.axvline(first * sequence_tokens, color=INK, linewidth=0.8)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: count(value))
    ax.yaxis.set_major_formatter(lambda value, _: percent(value))
    ax.set_xlabel("tokens trained (marks: planned shares)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(names), 4), fontsize=8)
    return fig


def gathered(rows: Sequence[Mapping[str, Any]], most: int = MOST) -> list[Mapping[str, Any]]:
    """Keep the `most` largest names in the `realised` shares of each row, and sum the shares of the others as `REST`.

    The rows are from `apportion.shares_over_run`. The largest names are chosen by their shares over all rows, so every
    row has the same names.
    """
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update({name: float(share) for name, share in row["realised"].items()})
    if len(totals) <= most:
        return list(rows)
    largest = sorted(totals, key=lambda name: (-totals[name], name))[: most - 1]
    found: list[Mapping[str, Any]] = []
    for row in rows:
        shares = {name: row["realised"].get(name, 0.0) for name in largest}
        rest = sum(share for name, share in row["realised"].items() if name not in shares)
        found.append({**row, "realised": {**shares, REST: rest}})
    return found


def gate_rates(stats: Mapping[str, Any]) -> Figure:
    """Draw recall and false positive rate per slice with 95% intervals, from the statistics of `slices/{gate}`.

    A high recall and a low false positive rate are better. Dashed lines are the limits in the recipe.
    """
    from matplotlib.figure import Figure

    slices, bounds = stats["slices"], stats["bounds"]
    names = list(slices)
    fig = Figure(figsize=(WIDTH_INCHES, 0.34 * len(names) + 1.0), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True)
    _gate_panel(left, slices, "recall", ACCENT, bounds["min_recall"])
    _gate_panel(right, slices, "false_positive", WARNING, bounds["max_false_positive"])
    left.set_xlim(0, 1.02)
    right.set_xlim(0, max([0.1, *(row["false_positive_high"] or 0.0 for row in slices.values())]) * 1.05)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("fraction of bad text removed")
    right.set_xlabel("fraction of good text removed")
    return fig


def _gate_panel(ax: Axes, slices: Mapping[str, Mapping[str, Any]], name: str, colour: str, bound: float) -> None:
    for row, values in enumerate(slices.values()):
        share = values[name]
        if share is None:
            ax.text(0.01, row, "none", va="center", fontsize=8, color=SOFT_INK)
            continue
        ax.plot([values[f"{name}_low"], values[f"{name}_high"]], [row, row], color=colour, alpha=0.35, linewidth=4)
        ax.plot([share], [row], "o", color=colour, markersize=5, clip_on=False)
    if 0 < bound < 1:
        ax.axvline(bound, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def probe_scores(probes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the signal of each probe on the left, and its accuracy above chance on the right."""
    from matplotlib.figure import Figure

    drawn = {name: row for name, row in probes.items() if row["items"]}
    fig = Figure(figsize=(WIDTH_INCHES, 0.36 * len(drawn) + 1.0), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True)
    _probe_panel(left, drawn, "signal", "signal: bits per byte saved by the prompt")
    _probe_panel(right, drawn, "accuracy", "accuracy above chance")
    left.set_yticks(range(len(drawn)), [f"{name} ({row['items']})" for name, row in drawn.items()])
    left.invert_yaxis()
    return fig


def _probe_panel(ax: Axes, probes: Mapping[str, Mapping[str, Any]], name: str, label: str) -> None:
    for at, row in enumerate(probes.values()):
        found = row.get(name)
        if found is None:
            ax.text(0, at, " none", va="center", fontsize=8, color=SOFT_INK)
            continue
        colour = ACCENT if found["low"] > 0 else MUTED  # an interval that has 0 in it shows nothing
        ax.plot([found["low"], found["high"]], [at, at], color=colour, alpha=0.35, linewidth=4, solid_capstyle="butt")
        ax.plot([found["value"]], [at], "o", color=colour, markersize=5)
    ax.axvline(0, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.set_xlabel(label)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
