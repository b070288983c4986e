"""Summary of a loop, for JSON, and its page: tries, interim analyses, spent error budget, cost of multiplicity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from plinth.compute.context import Context
from plinth.evaluation.statistics import DEGENERATE, spending_level, spent_alpha
from plinth.report.page import template
from plinth.report.style import SOFT_INK, WIDTH_INCHES, count, svg
from plinth.storage.atomic import write_bytes
from plinth.text import counted
from plinth_lab.experiments.effects import ARM, BASE, SHARPEST
from plinth_lab.experiments.page import EffectRow, draw_rows
from plinth_lab.loop.decision import HOLDS, POWER, RULED_OUT, detectable, interval, power
from plinth_lab.loop.question import Loop
from plinth_lab.loop.tries import ACCEPTED, CONFIRMED, SUPPORTED, WITHDRAWN, LoopState, Try

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of tries in the figure, newest last. The table has all tries.
DRAWN = 40
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
        verdict=_verdict(found),
        findings=_findings(found),
        tones=TONES,
        interval=interval,
        sharpest=SHARPEST,
        power=POWER,
        drawn=DRAWN,
        figure=_figure(state),
    )


def _verdict(found: dict[str, Any]) -> str:
    """Return the result of a loop as a sentence or two."""
    by_verdict = _by_verdict(found)
    confirmed, waiting = by_verdict.get(CONFIRMED, []), by_verdict.get(ACCEPTED, [])
    if not found["tries"]:
        return "No proposal was tried."
    said = f"{len(confirmed) or 'None'} of {counted(found['tries'], 'proposal')} became part of the base"
    said += f": {', '.join(confirmed)}." if confirmed else "."
    return said + (f" New runs must still confirm {', '.join(waiting)}." if waiting else "")


def _findings(found: dict[str, Any]) -> dict[str, str]:
    """Return the headings of the page's sections, by section."""
    by_verdict, cost = _by_verdict(found), found["multiplicity"]
    ended = [one for one in found["results"] if one["verdict"] in (CONFIRMED, WITHDRAWN)]
    held = len(by_verdict.get(CONFIRMED, ()))
    margins = [f"{one:.2g}" if one is not None else "none" for one in (cost["next_margin"], cost["uncorrected_margin"])]
    return {
        "tries": ", ".join(f"{len(names)} {verdict}" for verdict, names in by_verdict.items()),
        "preregistrations": f"{held} of {counted(len(ended), 'acceptance')} held in new runs" if ended else
        "No acceptance was confirmed or withdrawn",
        "multiplicity": f"Detectable margin of the next try: {margins[0]} standard deviations; without correction: "
        f"{margins[1]}",
    }  # fmt: skip


def _by_verdict(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the tries by verdict; the most frequent verdict is first."""
    names: dict[str, list[str]] = {}
    for one in found["results"]:
        names.setdefault(one["verdict"], []).append(one["name"])
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def _facts(loop: Loop, found: dict[str, Any]) -> list[tuple[str, str, str]]:
    budget, names = loop.budget, {key: ", ".join(found[key]) for key in ("accepted", "withdrawn")}
    tokens = f"of {count(budget.tokens)}; " if budget.tokens else ""
    flops = f" of {count(budget.flops)}" if budget.flops else ""
    return [
        ("tries", str(found["tries"]), f"of {budget.tries:,}"),
        ("interim analyses", str(found["analyses"]), "of tries and confirmations"),
        ("accepted", str(len(found["accepted"])), names["accepted"]),
        ("withdrawn", str(len(found["withdrawn"])), names["withdrawn"]),
        ("error budget spent", f"{found['spent_alpha']:.2g}", f"of {loop.alpha:g}"),
        ("tokens trained", count(found["tokens"]), f"{tokens}{count(found['flops'])}{flops} FLOPs"),
    ]


def _figure(state: LoopState) -> str:
    """Return the figure of the newest gains; a gain without a bounded interval is not drawn."""
    rows, least = [], []
    for one in state.tries:
        gain = one.decision.gain if one.decision else None
        if gain is None or DEGENERATE in gain.flags:
            continue
        won = {CONFIRMED: ARM, ACCEPTED: ARM, SUPPORTED: ARM, WITHDRAWN: BASE, RULED_OUT: BASE}.get(one.verdict, "")
        rows.append(EffectRow(name=one.name, better=won, value=gain.value, low=gain.low, high=gain.high))
        least.append(one.proposal.predicts.at_least)
    title = "Gains of the tries, with always-valid intervals"
    return svg(_gains, rows[-DRAWN:], least[-DRAWN:], title=title) if rows else ""


def _gains(rows: Sequence[EffectRow], least: Sequence[float]) -> Figure:
    """Plot one gain per try, and the smallest effect that its proposal predicts."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 0.28 * (len(rows) + 1.2) + 0.6), layout="constrained")
    ax = fig.subplots()
    draw_rows(ax, rows)
    for at, effect in enumerate(least):
        ax.plot([effect, effect], [at - 0.35, at + 0.35], color=SOFT_INK, linewidth=1.4)
    ax.set_xlabel("gain in bits per byte; line: predicted smallest effect", fontsize=8.5)
    return fig
