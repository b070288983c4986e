"""The page of an experiment: question, arms, effects with intervals, curves, decisions, failures and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from plinth.evaluation.statistics import DEGENERATE
from plinth.report.page import template
from plinth.report.style import count, svg
from plinth_lab.experiments import figures
from plinth_lab.experiments.effects import ARM, BASE, WHOLE, ArmScores, Effect, StopDecision
from plinth_lab.experiments.figures import EffectRow, GainRow, LadderPoint, LawCurve, RunCurve
from plinth_lab.experiments.measure import NoiseScale
from plinth_lab.experiments.sweep import SweepOptimum
from plinth_lab.mixture.proposals import MixtureProposal
from plinth_lab.mixture.swarm import HOLDS, REFUTED, ConfirmationOutcome
from plinth_lab.scaling.ladder import AT, LadderForecast, LadderOutcome
from plinth_lab.source_value.verdict import BUY, DO_NOT_BUY, SourceGain, SourceVerdict, amount, priced


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
    """The page as HTML. The same arguments give the same bytes.

    Args:
        name, question, measure, base: of the experiment.
        arms: overlay of each arm, as plain data.
        scores: of all runs, those that failed too.
        effects, decisions: what `effects.effects` and `stopping.stopping` made of them.
        shared: steps of each arm in the step cache: `made` and `reused`.
        notes: sentences about the budget and its use.
        ladder: forecast and truth, of an experiment that is a ladder.
        optima: the best value of a sweep, by size.
        noise: gradient noise of runs, by asset.
        proposal: of a swarm of mixtures.
        value: of a source, the verdict and what its sample showed.
        confirmation: of a proposal, whether it holds in new runs.
    """
    wholes = [line for line in effects if line.slice == WHOLE]
    slices: dict[tuple[str, str], list[Effect]] = {}
    for line in effects:
        if line.slice != WHOLE:
            slices.setdefault((line.size, line.arm), []).append(line)
    return template("page.html.j2", "plinth_lab.experiments").render(
        name=name, question=question, measure=measure, base=base, notes=notes, decisions=decisions,
        facts=_facts(arms, scores, wholes),
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
    return svg(figures.forest, rows, measure, fewer, title="Effects of the arms, with intervals") if rows else ""


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
    return svg(figures.curves, runs, names, measure, title=f"{measure} by optimizer step, by arm") if runs else ""


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
            "isoflop": svg(figures.isoflop, points, curve, measure, title=f"{measure} at equal compute"),
            "surface": svg(figures.surface, points, curve, measure, title=f"{measure} under the law"),
        }
    return {"forecast": foretold, "rows": rows, **drawn}


def _value(found: SourceVerdict, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The section of a source: verdict, gains drawn, changes, prices, and the sample."""
    rows = [
        GainRow(name=one.use, value=one.gain.value, low=one.gain.low, high=one.gain.high, better=_side(one, found))
        for one in found.gains
        if one.gain and one.claims
    ]
    drawn = svg(figures.gains, rows, found.least_gain, title="Bits per byte gained by use") if rows else ""
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
    return svg(figures.foretold, points, measure, title=f"{measure}: foretold without the run, and measured")


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
