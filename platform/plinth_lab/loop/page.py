"""Summary of a loop, for JSON, and its page: tries, interim analyses, spent error budget, cost of multiplicity."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from plinth.compute.context import Context
from plinth.evaluation.statistics import DEGENERATE, spending_level, spent_alpha
from plinth.report.page import template
from plinth.report.style import count, svg
from plinth.storage.atomic import write_bytes
from plinth_lab.experiments.effects import ARM, BASE, SHARPEST
from plinth_lab.experiments.page import EffectRow, forest
from plinth_lab.loop.decision import HOLDS, LOWER, POWER, RULED_OUT, detectable, interval, power
from plinth_lab.loop.question import Loop
from plinth_lab.loop.tries import ACCEPTED, CONFIRMED, SUPPORTED, WITHDRAWN, LoopState, Try

TONES = {CONFIRMED: "better", ACCEPTED: "better", SUPPORTED: "better", WITHDRAWN: "worse", RULED_OUT: "worse"}


def summary(loop: Loop, state: LoopState, stopped: str) -> dict[str, Any]:
    """Return what a loop has done, as plain data.

    `multiplicity` compares the level of the next try with an uncorrected test, and the margins that four of five such
    tests detect, in standard deviations of the gain over seeds. `power` of a try is that for a gain of twice its
    smallest effect, at the noise of all tries.
    """
    tries, number = len(state.tries), len(state.tries) + 1
    level = spending_level(number, loop.alpha)
    return {
        "name": loop.name,
        "stopped": stopped,
        "tries": tries,
        "analyses": state.analyses,
        "base": state.base,
        "accepted": [one.name for one in state.accepted],
        "withdrawn": [one.name for one in state.tries if one.verdict == WITHDRAWN],
        "alpha": loop.alpha,
        "spent_alpha": spent_alpha(tries, loop.alpha),
        "tokens": state.tokens,
        "flops": state.flops,
        "budget": loop.budget.model_dump(mode="json"),
        "multiplicity": {
            "next_level": level,
            "uncorrected_level": loop.alpha,
            "next_margin": detectable(level, loop.seeds),
            "uncorrected_margin": detectable(loop.alpha, loop.seeds),
            "only_uncorrected": [one.name for one in state.tries if _only_uncorrected(one)],
        },
        "results": [_row(loop, one, _noise(state)) for one in state.tries],
    }


def _only_uncorrected(one: Try) -> bool:
    """Return True if a try was not accepted, but would have been without correction for multiplicity."""
    return bool(one.decision and one.decision.outcome != HOLDS and one.decision.uncorrected == HOLDS)


def _noise(state: LoopState) -> float | None:
    """Return the standard deviation of a gain over seeds, pooled over all tries."""
    own = [one.decision for one in state.tries if one.decision and one.decision.noise is not None]
    freedom = sum(len(one.seeds) - 1 for one in own)
    return math.sqrt(sum((one.noise or 0) ** 2 * (len(one.seeds) - 1) for one in own) / freedom) if freedom else None


def _row(loop: Loop, one: Try, noise: float | None) -> dict[str, Any]:
    decided, confirmed, least = one.decision, one.confirmation, one.proposal.predicts.at_least
    return {
        "number": one.number,
        "name": one.name,
        "by": one.proposal.by,
        "predicts": one.proposal.predicts.model_dump(mode="json"),
        "base": one.base,
        "verdict": one.verdict,
        "reason": decided.reason if decided else "no analysis yet",
        "analyses": one.analyses,
        "level": one.level,
        "p": decided.p if decided else None,
        "gain": decided.gain.model_dump(mode="json") if decided and decided.gain else None,
        "only_uncorrected": _only_uncorrected(one),
        "power": power(least / noise, one.level, loop.seeds) if noise and least else None,
        "preregistration": one.preregistration.model_dump(mode="json") if one.preregistration else None,
        "confirmation": confirmed.model_dump(mode="json") if confirmed else None,
    }


def path_of(ctx: Context, loop: Loop) -> Path:
    """Return the path of a loop's page."""
    return ctx.workspace.reports / f"loop-{loop.name}.html"


def show(ctx: Context, loop: Loop, state: LoopState, stopped: str) -> Path:
    """Write the page of a loop and return its path."""
    target = path_of(ctx, loop)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, page(loop, state, stopped).encode())
    return target


def page(loop: Loop, state: LoopState, stopped: str) -> str:
    """Return the page of a loop as HTML."""
    found = summary(loop, state, stopped)
    overlays = {
        one.name: yaml.safe_dump(dict(one.proposal.overlay), sort_keys=False, allow_unicode=True).strip()
        for one in state.tries
    }
    return template("page.html.j2", "plinth_lab.loop").render(
        loop=loop,
        found=found,
        tries=list(zip(state.tries, found["results"], strict=True)),
        overlays=overlays,
        facts=_facts(loop, found),
        tones=TONES,
        interval=interval,
        sharpest=SHARPEST,
        power=POWER,
        forest=_forest(state),
    )


def _facts(loop: Loop, found: dict[str, Any]) -> list[tuple[str, str, str]]:
    budget = loop.budget
    return [
        ("tries", str(found["tries"]), f"of {budget.tries}"),
        ("interim analyses", str(found["analyses"]), "after the second seed of a try and each later seed"),
        ("accepted", str(len(found["accepted"])), ", ".join(found["accepted"]) or "none"),
        ("withdrawn", str(len(found["withdrawn"])), ", ".join(found["withdrawn"]) or "none"),
        ("error budget spent", f"{found['spent_alpha']:.3f}", f"of {loop.alpha:g}"),
        ("tokens trained", count(found["tokens"]), f"of {count(budget.tokens)}" if budget.tokens else ""),
        ("FLOPs", f"{found['flops']:.3g}", f"of {budget.flops:.3g}" if budget.flops else ""),
    ]


def _forest(state: LoopState) -> str:
    """Return the figure of the gains, drawn as arm minus base like the effects of an experiment."""
    rows = []
    for one in state.tries:
        gain = one.decision.gain if one.decision else None
        if gain is None:
            continue
        sign = -1 if one.proposal.predicts.direction == LOWER else 1
        low, high = sorted((sign * gain.low, sign * gain.high))
        ends = {} if DEGENERATE in gain.flags else {"value": sign * gain.value, "low": low, "high": high}
        won = {CONFIRMED: ARM, ACCEPTED: ARM, SUPPORTED: BASE, WITHDRAWN: BASE}.get(one.verdict, "")
        rows.append(EffectRow(panel="tries with a bounded interval", name=one.name, better=won, **ends))
    rows = [row for row in rows if row.value is not None]
    title = "Gains of the tries, with always-valid intervals"
    return svg(forest, rows, "bits per byte", True, title=title) if rows else ""
