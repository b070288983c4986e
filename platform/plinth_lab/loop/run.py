"""The loop: one try after the other, until there is no new proposal or the budget is spent.

    next_step   what follows from a state: a confirming analysis, an analysis, a new try, or the reason to stop
    follow      take steps until there is a reason to stop; every step is in the log before the next one starts
    Trained     scores of real runs, by the machinery of experiments

`follow` takes its scores from any `Scorer`, so a simulated search goes through the same steps, log and decisions.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import dagster as dg

from plinth.compute.context import Context
from plinth.compute.progress import for_terminal
from plinth.compute.select_engine import Compute
from plinth.errors import BudgetError, ExtensionError, RecipeError, RequestError
from plinth.evaluation.statistics import spending_level
from plinth.recipe.load import fingerprint as recipe_fingerprint
from plinth.storage.workspace import Workspace
from plinth.trust.dsse import EVALUATOR
from plinth.trust.root import Trust
from plinth_lab.experiments.effects import ArmScores, by_run
from plinth_lab.experiments.measure import common_scores
from plinth_lab.experiments.run import bring_up_to_date, exists
from plinth_lab.loop import question
from plinth_lab.loop.decision import INVALID, OPEN, DecisionRule, TryDecision, decide
from plinth_lab.loop.question import BASE, ArmPair, Loop, RecipeProposal, merged
from plinth_lab.loop.tries import ACCEPTED, LoopState, Preregistration, Try, TryLog, require_rule, require_unchanged

#: First analysis: a single difference has no variance.
FIRST_ANALYSIS = 2
Say = Callable[[str], None]
Draw = Callable[[int], int]


@dataclass(frozen=True)
class RunCost:
    """Planned cost of one run."""

    tokens: float
    flops: float


@dataclass(frozen=True)
class PairScores:
    """Scores of a pair by seed."""

    base: Mapping[int, ArmScores]
    arm: Mapping[int, ArmScores]


class Scorer(Protocol):
    """Source of scores: real runs, or a simulation."""

    def plan(self, pair: ArmPair) -> dict[str, RunCost]:
        """Return the cost of every run of a pair, by a name that is the same in every pair.

        Raises:
            RecipeError: the overlay of the arm is invalid.
        """
        ...

    def score(self, pair: ArmPair) -> PairScores:
        """Train and score what is missing."""
        ...


@dataclass(frozen=True)
class LoopStep:
    """Next step of a loop. `proposal` is given for a new try; otherwise the step is an analysis of the newest try."""

    kind: Literal["try", "preregistration", "analysis", "confirming analysis"]
    proposal: RecipeProposal | None = None


def next_step(state: LoopState, loop: Loop, proposals: Sequence[RecipeProposal]) -> LoopStep | str:
    """Return the next step, or the reason to stop. An acceptance is confirmed before anything else is tried."""
    last = state.tries[-1] if state.tries else None
    if last and last.verdict == OPEN:
        return LoopStep("analysis")
    if last and last.verdict == ACCEPTED:
        return LoopStep("confirming analysis" if last.preregistration else "preregistration")
    tried = {one.name for one in state.tries}
    fresh = next((one for one in proposals if one.name not in tried), None)
    if fresh is None:
        return "no new proposals"
    if len(state.tries) >= loop.budget.tries:
        return f"the budget is spent: {len(state.tries)} of {loop.budget.tries} tries"
    return LoopStep("try", fresh)


def follow(
    ctx: Context, loop: Loop, path: Path, recipe: str, scorer: Scorer, say: Say, draw: Draw = secrets.randbelow
) -> tuple[LoopState, str]:
    """Follow a loop. Return its state and the reason why it stopped.

    Args:
        path: loop file. The proposals are read again before each step, since others may append to them.
        recipe: fingerprint of the base recipe.
        draw: source of seeds: a number below its argument.

    Raises:
        SignatureError, IntegrityError: a try was changed or removed; the message names it.
        RequestError: the rule has changed since the first try.
    """
    log = TryLog(loop.name)
    state = log.state(ctx)
    require_rule(state, loop, recipe)
    while True:
        given = question.proposals(loop, path)
        require_unchanged(state.tries, given)
        step = next_step(state, loop, given)
        if isinstance(step, str):
            return state, step
        if state.rule is None:
            state = log.append(ctx, state, "loop", "", {"rule": loop.rule, "recipe": recipe})
        if step.kind in ("analysis", "confirming analysis"):
            after = _analysis(ctx, log, state, loop, scorer, step.kind == "confirming analysis", say)
            if isinstance(after, str):
                return state, after
            state = after
        elif step.proposal:
            made = _try(state, loop, step.proposal, draw)
            say(f"try {made.number}: {made.name}, level {made.level:.2g}")
            state = log.append(ctx, state, "try", made.name, {"try": made.model_dump(mode="json")})
        else:
            preregistration, name = _preregistration(state, loop, draw), state.tries[-1].name
            state = log.append(
                ctx, state, "preregistration", name, {"preregistration": preregistration.model_dump(mode="json")}
            )


def _try(state: LoopState, loop: Loop, proposal: RecipeProposal, draw: Draw) -> Try:
    """Return the record of a new try. Tries of one base share its seeds, unless the base is trained for each try."""
    last = state.tries[-1] if state.tries else None
    if last and loop.base_runs == "shared":
        seeds = last.preregistration.seeds if last.preregistration else last.seeds
    else:
        seeds = _seeds(loop, draw)
    number = len(state.tries) + 1
    level = spending_level(number, loop.alpha)
    return Try(number=number, proposal=proposal, base=state.base, seeds=seeds, level=level)


def _preregistration(state: LoopState, loop: Loop, draw: Draw) -> Preregistration:
    """Return the prediction of the newest try for seeds that no run has used."""
    last = state.tries[-1]
    assert last.decision is not None
    assert last.decision.gain is not None
    return Preregistration(
        prediction=last.proposal.predicts, base=last.base, size=loop.size_of(True), seeds=_seeds(loop, draw),
        level=loop.alpha, accepted_gain=last.decision.gain,
    )  # fmt: skip


def _seeds(loop: Loop, draw: Draw) -> tuple[int, ...]:
    """Return new random seeds. They are unknown before, so no proposal can be selected by its runs with them."""
    first = draw(2**31 - loop.seeds)
    return tuple(range(first, first + loop.seeds))


def _analysis(
    ctx: Context, log: TryLog, state: LoopState, loop: Loop, scorer: Scorer, confirming: bool, say: Say
) -> LoopState | str:
    """Train one more seed and decide. Return the state after the analysis, or the reason why the budget forbids it."""
    last = state.tries[-1]
    analyses = last.confirming_analyses if confirming else last.analyses
    rule = rule_of(loop, last, confirming)
    kind, runs = ("confirming analysis" if confirming else "analysis"), dict[str, RunCost]()
    try:
        pair = pair_of(state, loop, last, analyses + FIRST_ANALYSIS, confirming)
        runs = {name: one for name, one in scorer.plan(pair).items() if name not in state.runs}
    except (BudgetError, ExtensionError):
        raise
    except RecipeError as error:
        decision = TryDecision(outcome=INVALID, reason=str(error).strip())
    else:
        if reason := over_budget(state, loop, runs):
            return reason
        scores = scorer.score(pair)
        decision = decide(scores.base, scores.arm, rule)
    say(f"{last.name}{', confirming' if confirming else ''}: {decision.outcome}; {decision.reason}")
    cost = {name: sum(getattr(one, name) for one in runs.values()) for name in ("tokens", "flops")}
    body = {"decision": decision.model_dump(mode="json"), "runs": sorted(runs), **cost}
    return log.append(ctx, state, kind, last.name, body)


def rule_of(loop: Loop, one: Try, confirming: bool) -> DecisionRule:
    """Return the rule that decides a try or its confirmation.

    A confirmation is tested at the uncorrected level, because it cannot accept what the try did not accept.
    """
    level = loop.alpha if confirming else one.level
    return DecisionRule(prediction=one.proposal.predicts, level=level, uncorrected=loop.alpha, seeds=loop.seeds)


def pair_of(state: LoopState, loop: Loop, one: Try, count: int, confirming: bool) -> ArmPair:
    """Return the runs that an analysis needs: the arm and its base with its first seeds."""
    before = state.overlay(without=one.name)
    seeds = one.preregistration.seeds if confirming and one.preregistration else one.seeds
    return ArmPair(
        base=one.base, base_overlay=before, arm=one.name, overlay=merged(before, one.proposal.overlay),
        size=loop.size_of(confirming), seeds=seeds[:count],
    )  # fmt: skip


def over_budget(state: LoopState, loop: Loop, runs: Mapping[str, RunCost]) -> str:
    """Return the reason why the budget does not allow further runs, or an empty string."""
    for name, most in (("tokens", loop.budget.tokens), ("flops", loop.budget.flops)):
        spent, needed = getattr(state, name), sum(getattr(one, name) for one in runs.values())
        if most is not None and spent + needed > most:
            return f"the budget is spent: {spent:,.4g} of {most:,.4g} {name}; the next analysis needs {needed:,.4g}"
    return ""


@dataclass(frozen=True)
class Trained:
    """Scores of real runs. Their Dagster assets are `experiment/LOOP/ARM/SIZE-sSEED`."""

    ctx: Context
    loop: Loop
    path: Path
    compute: Compute
    side_by_side: int
    say: Say

    def plan(self, pair: ArmPair) -> dict[str, RunCost]:
        _, arms = question.compared(self.loop, self.path, pair)
        return {one.asset: RunCost(one.tokens, one.flops) for one in arms}

    def score(self, pair: ArmPair) -> PairScores:
        experiment, arms = question.compared(self.loop, self.path, pair)
        ctx = Context(self.ctx.workspace, progress=self.ctx.progress)
        bring_up_to_date(ctx, experiment, arms, self.compute, self.side_by_side, self.say)
        scores = by_run(common_scores(ctx, [ctx.refs.current(one.asset) for one in arms]))[pair.size]
        return PairScores(scores[pair.base], scores[pair.arm])

    def base_recipe(self) -> str:
        """Return the fingerprint of the base recipe at every size.

        Raises:
            RecipeError: it is invalid.
        """
        pairs = [ArmPair(BASE, {}, "none", {}, size, (1,)) for size in self.loop.sizes]
        return " ".join(recipe_fingerprint(question.compared(self.loop, self.path, one)[1][0].recipe) for one in pairs)


def require_own_name(ctx: Context, name: str) -> None:
    """Require that no experiment has the name of a loop, because a loop has the assets of an experiment.

    Raises:
        RequestError: the name belongs to an experiment.
    """
    if exists(ctx, name) and not TryLog(name).state(ctx).tries:
        raise RequestError(
            f"loop {name} has the name of an experiment",
            found=f"an experiment {name} in this workspace",
            expected="a name that no experiment has",
            remedy="change `name` in the loop file",
        )


@contextmanager
def _locked(space: Workspace, path: Path) -> Iterator[None]:
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    with space.locked(f"plinth experiment loop {path}"):
        yield


def run(workspace: Path, path: Path, *, compute: Compute, side_by_side: int, say: Say) -> tuple[Loop, LoopState, str]:
    """Try the new proposals of a loop file. Return the loop, its state, and the reason why it stopped.

    An interrupted loop continues where it stopped.

    Raises:
        RecipeError, MissingError: the loop, its base recipe or a proposal is invalid; nothing was started.
        RequestError: an experiment has the name of the loop, or its rule has changed.
        SignatureError: no root is pinned, there is no evaluator key, or a try was changed or removed.
        StageError: Dagster could not run an experiment. A failed run of an arm is a result and raises no error.
    """
    loop = question.load(path)
    space = Workspace(workspace).ensure()
    Trust.of(space).signer(EVALUATOR)
    with _locked(space, path):
        ctx = Context(space, progress=for_terminal())
        require_own_name(ctx, loop.name)
        scorer = Trained(ctx, loop, path, compute, side_by_side, say)
        state, reason = follow(ctx, loop, path, scorer.base_recipe(), scorer, say)
    return loop, state, reason


def shown(ctx: Context, path: Path) -> tuple[Loop, LoopState, str]:
    """Return a loop, its verified state, and what the next run would do first. Nothing is trained.

    Raises:
        RequestError: an experiment has the name of the loop.
        SignatureError, IntegrityError: a try was changed or removed; the message names it.
    """
    loop = question.load(path)
    require_own_name(ctx, loop.name)
    state, given = TryLog(loop.name).state(ctx), question.proposals(loop, path)
    require_unchanged(state.tries, given)
    step = next_step(state, loop, given)
    return loop, state, step if isinstance(step, str) else f"interrupted; the next step is a {step.kind}"
