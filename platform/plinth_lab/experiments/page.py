"""HTML page of an experiment: question, arms, effects with intervals, curves, decisions, failures and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from plinth.evaluation.statistics import DEGENERATE
from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, WIDTH_INCHES, count, svg, tone
from plinth_lab.experiments.arms import SweepOptimum
from plinth_lab.experiments.effects import ARM, BASE, WHOLE, ArmScores, Effect, StopDecision
from plinth_lab.experiments.measure import NoiseScale
from plinth_lab.mixture import HOLDS, REFUTED, ConfirmationOutcome
from plinth_lab.mixture.proposals import MixtureProposal
from plinth_lab.scaling.ladder import AT, LadderForecast, LadderOutcome
from plinth_lab.source_value.verdict import BUY, DO_NOT_BUY, SourceGain, SourceVerdict, amount, priced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def page(
    name: str,
    question: str,
    measure: str,
    base: str,
    arms: Mapping[str, Mapping[str, Any]],
    scores: Sequence[ArmScores],
    effects: Sequence[Effect],
    decisions: Sequence[StopDecision] = (),
    shared: Mapping[str, Mapping[str, int]] | None = None,
    notes: Sequence[str] = (),
    ladder: tuple[LadderForecast, Sequence[LadderOutcome]] | None = None,
    optima: Sequence[SweepOptimum] = (),
    noise: Mapping[str, NoiseScale] | None = None,
    proposal: MixtureProposal | None = None,
    value: tuple[SourceVerdict, Mapping[str, Any]] | None = None,
    confirmation: ConfirmationOutcome | None = None,
) -> str:
    """Return the page of an experiment as HTML. The same arguments give the same bytes.

    Args:
        name, question, measure, base: properties of the experiment.
        arms: overlay of each arm, as plain data.
        scores: scores of all runs, including failed runs.
        effects, decisions: results of `effects.effects` and `effects.stopping`.
        shared: number of steps of each arm that were computed (`made`) or reused from the step cache (`reused`).
        notes: sentences about the budget and its use.
        ladder: forecast and measured losses, for an experiment with a ladder.
        optima: the best value of a sweep, by size.
        noise: gradient noise of runs, by asset.
        proposal: mixture that a swarm proposes.
        value: verdict on a source and the results of its sample.
        confirmation: result of testing a proposal in new runs.
    """
    wholes = [line for line in effects if line.slice == WHOLE]
    slices: dict[tuple[str, str], list[Effect]] = {}
    for line in effects:
        if line.slice != WHOLE:
            slices.setdefault((line.size, line.arm), []).append(line)
    return template("page.html.j2", "plinth_lab.experiments").render(
        name=name, question=question, measure=measure, base=base, notes=notes, decisions=decisions,
        facts=_facts(arms, scores, wholes),
        verdict=_verdict(wholes, None if value is None else value[0], confirmation),
        wholes=wholes,
        slices=[(*key, own) for key, own in slices.items()],
        forest=_forest(wholes, measure),
        curves=_curves(list(arms), scores, measure),
        saved=sum(one.saved_runs for one in decisions),
        failures=[one for one in scores if one.trouble],
        arms=[_arm(arm, overlay, scores, (shared or {}).get(arm, {})) for arm, overlay in arms.items()],
        methods=sorted({line.difference.method for line in effects if line.difference}),
        proposal=proposal, foretold=_foretold(proposal, measure),
        value=None if value is None else _value(*value),
        confirmation=confirmation, held=_held(confirmation),
        gap=_gap, p=_p, tone=_tone,
        optima=optima, noise=noise or {},
        ladder=None if ladder is None else _ladder(*ladder, measure),
    )  # fmt: skip


def _verdict(wholes: Sequence[Effect], value: SourceVerdict | None, confirmation: ConfirmationOutcome | None) -> str:
    """Return a one-sentence answer to the experiment's question, or an empty string if there is no answer yet."""
    if value is not None:
        return f"Verdict: {value.verdict}."
    if confirmation is not None:
        return f"Proposal: {confirmation.status}."
    better, worse = (sum(line.better == who for line in wholes) for who in (ARM, BASE))
    rest = f"{worse} worse, {len(wholes) - better - worse} not significantly different"
    return f"Effects compared with the base: {better} better, {rest}." if wholes else ""


def _facts(
    arms: Mapping[str, Any], scores: Sequence[ArmScores], wholes: Sequence[Effect]
) -> list[tuple[str, str, str]]:
    sizes = list(dict.fromkeys(one.size for one in scores))
    lost = sum(bool(one.trouble) for one in scores)
    seeds = sorted({one.seed for one in scores})
    better = ("arms better than the base", f"{sum(line.better == ARM for line in wholes)} of {len(wholes)}",
              f"{sum(line.better == BASE for line in wholes)} worse")  # fmt: skip
    return [
        *([better] if wholes else []),
        ("arms", str(len(arms)), ""),
        ("sizes", str(len(sizes)), ", ".join(sizes)),
        ("seeds", str(len(seeds)), ", ".join(map(str, seeds[:12])) + (" …" if len(seeds) > 12 else "")),
        ("runs", str(len(scores)), f"{lost} without scores" if lost else "all scored"),
        ("tokens trained", count(sum(one.tokens for one in scores)), ""),
        ("FLOPs", f"{sum(one.flops for one in scores):.3g}", ""),
        ("rank-hours", f"{sum(one.seconds for one in scores) / 3600:.3g}", ""),
    ]  # fmt: skip


def _arm(
    name: str, overlay: Mapping[str, Any], scores: Sequence[ArmScores], steps: Mapping[str, int]
) -> dict[str, Any]:
    own = [one for one in scores if one.arm == name]
    return {
        "name": name,
        "overlay": yaml.safe_dump(dict(overlay), sort_keys=False, allow_unicode=True).strip() if overlay else "",
        "runs": len(own),
        "tokens": sum(one.tokens for one in own),
        "flops": sum(one.flops for one in own),
        "hours": sum(one.seconds for one in own) / 3600,
        "made": steps.get("made", "–"),
        "reused": steps.get("reused", "–"),
    }


def _forest(wholes: Sequence[Effect], measure: str) -> str:
    rows = [EffectRow(panel=f"size {line.size}", name=line.arm, better=line.better, **_ends(line)) for line in wholes]
    fewer = all(line.fewer_is_better for line in wholes)
    return svg(forest, rows, measure, fewer, title="Effects of the arms, with intervals") if rows else ""


def _ends(line: Effect) -> dict[str, float]:
    gap = line.difference
    return {} if gap is None or DEGENERATE in gap.flags else {"value": gap.value, "low": gap.low, "high": gap.high}


def _curves(arms: Sequence[str], scores: Sequence[ArmScores], measure: str) -> str:
    runs = [
        RunCurve(panel=f"size {one.size}", arm=one.arm, steps=tuple(step for step, _, _ in one.curve),
                 values=tuple(value for _, _, value in one.curve))
        for one in scores
        if one.curve
    ]  # fmt: skip
    names = list(dict.fromkeys([*arms, *(one.arm for one in scores)]))
    return svg(curves, runs, names, measure, title=f"{measure} by optimizer step, for each arm") if runs else ""


def _ladder(foretold: LadderForecast, truths: Sequence[LadderOutcome], measure: str) -> dict[str, Any]:
    law = foretold.fit.law if foretold.fit else None
    points = [
        LadderPoint(params=one.params, tokens=one.tokens, loss=one.loss, held_out=held)
        for held, runs in ((False, foretold.runs), (True, [one.run for one in truths]))
        for one in runs
    ]
    known = {one.run.tokens: one.outcome for one in truths}
    rows = [
        (one, next((own for tokens, own in known.items() if abs(tokens - one.tokens) <= AT * one.tokens), None))
        for one in foretold.predictions
    ]
    drawn = {"isoflop": "", "surface": ""}
    if law is not None and points:
        curve = LawCurve(**law.model_dump())
        drawn = {
            "isoflop": svg(isoflop, points, curve, measure, title=f"{measure} at equal compute"),
            "surface": svg(surface, points, curve, measure, title=f"{measure} under the law"),
        }
    return {"forecast": foretold, "rows": rows, **drawn}


def _value(found: SourceVerdict, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page section about a source: verdict, gains with a figure, changes, prices, and the sample."""
    rows = [
        EffectRow(name=one.use, value=one.gain.value, low=one.gain.low, high=one.gain.high, better=_side(one, found))
        for one in found.gains
        if one.gain and one.claims
    ]
    drawn = svg(gains, rows, found.least_gain, title="Gain in bits per byte, by use of the source") if rows else ""
    return {
        "found": found, "sample": sample, "drawn": drawn,
        "tone": {BUY: "better", DO_NOT_BUY: "worse"}.get(found.verdict, ""),
        "worse": sum(one.worse for one in found.changes),
        "amount": amount,
        "money": lambda price, scale=1.0: priced(price, found.currency, scale),
        "share": lambda one: f"{one['value']:.1%} ({one['low']:.1%} to {one['high']:.1%})",
        "range": lambda one: f"{one.value:+.3g} ({one.low:+.3g} to {one.high:+.3g})",
    }  # fmt: skip


def _side(one: SourceGain, found: SourceVerdict) -> str:
    assert one.gain is not None
    return ARM if one.gain.low > found.least_gain else BASE if one.gain.high <= found.least_gain else ""


def _held(confirmation: ConfirmationOutcome | None) -> str:
    return {HOLDS: "better", REFUTED: "worse"}.get(confirmation.status, "") if confirmation else ""


def _foretold(proposal: MixtureProposal | None, measure: str) -> str:
    if proposal is None or not proposal.runs:
        return ""
    points = [(held, loss) for _, loss, held in proposal.runs]
    return svg(predictions, points, measure, title=f"{measure}: leave-one-out prediction against measurement")


def _gap(line: Effect) -> str:
    gap = line.difference
    if gap is None:
        return "–"
    return f"{gap.value:+.3g} ({gap.low:+.3g} to {gap.high:+.3g})" if gap.low < gap.high else f"{gap.value:+.3g}"


def _p(line: Effect) -> str:
    if line.adjusted is None:
        return "–"
    return "< 0.001" if line.adjusted < 0.001 else f"{line.adjusted:.3g}"


def _tone(line: Effect) -> str:
    return {ARM: "better", BASE: "worse"}.get(line.better, "")


# Figures of an experiment: effects of its arms with intervals, and curves of its runs. A ladder also has curves of
# equal compute, and the surface of the law with its runs.
#
# Minima of curves of equal compute are drawn from the law; no parabola through them decides anything.

COLOURS = {"arm": ACCENT, "base": WARNING, "": MUTED}
LONGEST = 30


class EffectRow(Frozen):
    """Row of a plot: an arm's difference from the base, or the gain from one use of a source. If the effect was not
    measured, the row has no numbers."""

    name: str
    panel: str = ""
    better: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None


class RunCurve(Frozen):
    """Measured values of one run by optimizer step, for a plot. All runs of an arm have the same color."""

    panel: str
    arm: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def forest(rows: Sequence[EffectRow], measure: str, fewer_is_better: bool) -> Figure:
    """Plot the effects of the arms as a forest plot, with one panel per size and one row per arm.

    A row is blue if the arm is better, orange if the base is better, and gray otherwise.
    """
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(row.panel for row in rows))
    own = [[row for row in rows if row.panel == panel] for panel in panels]
    heights = [len(one) + 1.2 for one in own]
    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * sum(heights) + 0.6), layout="constrained")
    axes = fig.subplots(len(panels), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax, panel, found in zip(axes, panels, own, strict=True):
        draw_rows(ax, found)
        ax.set_title(panel, loc="left", fontsize=9.5, color=SOFT_INK)
    side = "left" if fewer_is_better else "right"
    axes[-1].set_xlabel(f"{measure}, arm minus base: {side} of 0, the arm is better", fontsize=8.5)
    return fig


def draw_rows(ax: Axes, rows: Sequence[EffectRow]) -> None:
    """Draw one row per effect, with its interval, its value in digits and its color."""
    ax.axvline(0, color=FAINT, linewidth=1.2)
    for at, row in enumerate(rows):
        colour = COLOURS[row.better]
        if row.value is None or row.low is None or row.high is None:
            ax.text(0, at, " not measured", fontsize=8, va="center", color=SOFT_INK)
            continue
        ax.plot([row.low, row.high], [at, at], color=colour, alpha=0.4, linewidth=4, solid_capstyle="butt")
        ax.plot([row.value], [at], "o", color=colour, markersize=5)
        ax.text(1.01, at, f"{row.value:+.3g}", transform=ax.get_yaxis_transform(), va="center", fontsize=8)
    ax.set_yticks(range(len(rows)), [_short(row.name) for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def gains(rows: Sequence[EffectRow], least: float) -> Figure:
    """Plot the gain in bits per byte for each use of a source.

    A row is blue if the gain is above the minimum gain, orange if it cannot be above the minimum, and gray otherwise.
    """
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * (len(rows) + 1.2) + 0.6), layout="constrained")
    ax = fig.subplots()
    draw_rows(ax, rows)
    if least:
        ax.axvline(least, color=WARNING, linewidth=1.2, linestyle="--")
    mark = f"; dashed: the minimum gain, {least:g}" if least else ""
    ax.set_xlabel(f"bits per byte gained; to the right of 0, the source helps{mark}", fontsize=8.5)
    return fig


def curves(runs: Sequence[RunCurve], arms: Sequence[str], measure: str) -> Figure:
    """Plot the measure by optimizer step, with one panel per size and one thin line per run in its arm's color.

    If a value is NaN, the line has a gap.
    """
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(run.panel for run in runs))
    fig = Figure(figsize=(WIDTH_INCHES, 2.5 * len(panels) + 0.4), layout="constrained")
    axes = fig.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, panel in zip(axes, panels, strict=True):
        named = set[str]()
        for run in (one for one in runs if one.panel == panel):
            label = None if run.arm in named else _short(run.arm)
            named.add(run.arm)
            values = [value if math.isfinite(value) else math.nan for value in run.values]
            mark = "o" if len(values) == 1 else "none"
            ax.plot(run.steps, values, marker=mark, color=tone(arms.index(run.arm)), linewidth=0.9, label=label)
        ax.set_title(panel, loc="left", fontsize=9.5, color=SOFT_INK, pad=22)
        ax.set_ylabel(measure)
        ax.grid(axis="y")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, borderaxespad=0.2, handlelength=0.9)
    axes[-1].set_xlabel("optimizer step")
    return fig


def _short(name: str) -> str:
    """Shorten a name for a plot and escape dollar signs, which would start a formula. The tables show the full name."""
    cut = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return cut.replace("$", r"\$")


def predictions(points: Sequence[tuple[float, float]], measure: str) -> Figure:
    """Plot each run as a point: leave-one-out prediction of its loss (x) and measured loss (y)."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, WIDTH_INCHES / 2.6), layout="constrained")
    ax = fig.subplots()
    both = [value for point in points for value in point]
    ends = (min(both), max(both))
    ax.plot(ends, ends, color=FAINT, linewidth=1.2)
    ax.scatter([across for across, _ in points], [up for _, up in points], s=14, color=ACCENT)
    ax.set_xlabel(f"{measure}, leave-one-out prediction", fontsize=8.5)
    ax.set_ylabel("measured", fontsize=8.5)
    return fig


CURVES = 5
#: Margin on either side of the runs, as a factor.
MARGIN = 1.6


class LadderPoint(Frozen):
    """Run of a scaling ladder: number of parameters, tokens, loss, and True if the law had to predict the loss."""

    params: float
    tokens: float
    loss: float
    held_out: bool = False


class LawCurve(Frozen):
    """Parameters of the scaling law E + A / N^alpha + B / D^beta."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta)

    def best_params(self, flops: np.ndarray) -> np.ndarray:
        """Return N*, the number of parameters with the lowest loss for a budget of 6 N D FLOPs."""
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return np.asarray(ratio * (flops / 6) ** (self.beta / (self.alpha + self.beta)))


def isoflop(points: Sequence[LadderPoint], law: LawCurve, measure: str) -> Figure:
    """Plot the loss predicted by the law over parameters, with one curve per compute budget.

    The point of a run has the color of the nearest curve.
    """
    from matplotlib.figure import Figure

    flops = np.array([6 * one.params * one.tokens for one in points])
    levels = np.geomspace(flops.min(), flops.max(), CURVES)
    params = np.array([one.params for one in points])
    across = np.geomspace(params.min() / MARGIN, params.max() * MARGIN, 200)
    fig = Figure(figsize=(WIDTH_INCHES, 3.6), layout="constrained")
    ax = fig.subplots()
    for at, level in enumerate(levels):
        ax.plot(across, law.loss(across, level / (6 * across)), color=tone(at), linewidth=1, label=f"{level:.2g}")
        best = law.best_params(level)
        if across[0] <= best <= across[-1]:
            ax.plot([best], [law.loss(best, level / (6 * best))], marker="|", markersize=11, color=tone(at))
    nearest = np.abs(np.log(flops)[:, None] - np.log(levels)).argmin(axis=1)
    for one, at in zip(points, nearest.tolist(), strict=True):
        ax.plot([one.params], [one.loss], "D" if one.held_out else "o", color=tone(at), markersize=5)
    losses = np.array([one.loss for one in points])
    room = 0.15 * (losses.max() - losses.min())
    ax.set_ylim(losses.min() - room, losses.max() + room)
    ax.set_xscale("log")
    ax.set_xlabel("parameters (diamonds: held-out size; vertical marks: optimum of the law)", fontsize=8.5)
    ax.set_ylabel(measure)
    ax.grid(axis="y")
    ax.legend(title="FLOPs", loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, title_fontsize=8)
    return fig


def surface(points: Sequence[LadderPoint], law: LawCurve, measure: str) -> Figure:
    """Plot the loss predicted by the law as contours over parameters and tokens, with the runs and the optimum per
    budget."""
    from matplotlib.figure import Figure

    params, tokens = (np.array([getattr(one, name) for one in points]) for name in ("params", "tokens"))
    x = np.geomspace(params.min() / MARGIN, params.max() * MARGIN, 80)
    y = np.geomspace(tokens.min() / MARGIN, tokens.max() * MARGIN, 80)
    fig = Figure(figsize=(WIDTH_INCHES, 3.9), layout="constrained")
    ax = fig.subplots()
    found = ax.contour(x, y, law.loss(x[None, :], y[:, None]), levels=12, cmap="viridis", linewidths=0.9)
    ax.clabel(found, fontsize=7, fmt="%.2f")
    flops = np.geomspace(6 * x[0] * y[0], 6 * x[-1] * y[-1], 100)
    best = law.best_params(flops)
    inside = (best >= x[0]) & (best <= x[-1]) & (flops / (6 * best) >= y[0]) & (flops / (6 * best) <= y[-1])
    ax.plot(best[inside], (flops / (6 * best))[inside], "--", color=MUTED, linewidth=1, label="optimum of a budget")
    for held, mark, colour, label in ((False, "o", MUTED, "fitted"), (True, "D", WARNING, "held out")):
        own = np.array([one.held_out is held for one in points])
        ax.plot(params[own], tokens[own], mark, color=colour, markersize=4.5, label=label, linestyle="none")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("parameters")
    ax.set_ylabel("tokens")
    ax.set_title(measure, loc="left", fontsize=9.5, color=SOFT_INK)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return fig
