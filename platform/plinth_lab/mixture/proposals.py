"""Best mixture shares according to a surrogate, with caps on repetition, and their gain over the prior.

The shares have the lowest expected loss, but they are chosen from noisy runs, so the surrogate overestimates their
gain. A bootstrap over runs estimates this bias: each draw chooses shares again and evaluates the choice with the fit to
all runs. The gain is corrected by the bias. If the interval of the gain includes 0, nothing is proposed. A proposal is
written as a recipe that extends the base recipe, and as the experiment that confirms the proposal.

    K  streams
    N  runs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from plinth.errors import MissingError, RequestError, StageError
from plinth.records import Frozen
from plinth_lab.experiments.arms import Experiment
from plinth_lab.mixture import HOLDS, ConfirmationOutcome, ConfirmationQuestion, Swarm, one_phase
from plinth_lab.mixture.surrogate import FEWEST, FittedSurrogate, Floats, LogLinear, Surrogate, again, fit

DRAWS, LEVEL = 200, 0.95
#: Keeps the logarithm of a share of 0 finite.
LEAST = 1e-9


class MixtureProposal(Frozen):
    """Mixture shares that a swarm proposes, with the interval of their gain. If there is no proposal, it has the
    reason.

    Args:
        prior, shares: shares by stream; `shares` is empty if nothing is proposed.
        caps: maximum share of each stream in the target run, from its amount of text.
        family: the chosen surrogate; `errors` are the leave-one-out errors of all surrogates, in bits per byte.
        gain, low, high: reduction in bits per byte against the prior, corrected for selection bias, with its 95%
            interval.
        refusal: reason if nothing is proposed.
        runs: shares, loss, and the loss that the surrogate predicted without the run, for the plot on the page.
    """

    prior: Mapping[str, float]
    shares: Mapping[str, float]
    caps: Mapping[str, float]
    family: str
    errors: Mapping[str, float]
    gain: float
    low: float
    high: float
    refusal: str = ""
    runs: Sequence[tuple[Mapping[str, float], float, float]] = ()


def propose(
    swarm: Swarm, runs: Sequence[tuple[Mapping[str, float], float]], caps: Mapping[str, float]
) -> MixtureProposal:
    """Propose mixture shares from the runs of a swarm.

    Args:
        runs: for each run, the shares that it was trained on and its bits per byte, including the prior's run.
        caps: maximum share of each stream.

    Raises:
        RequestError: the caps add up to less than 1.
    """
    names = list(swarm.prior)
    if len(runs) < FEWEST:
        return MixtureProposal(
            prior=swarm.shares, shares={}, caps={}, family="mean", errors={}, gain=0.0, low=0.0, high=0.0,
            refusal=f"{len(runs)} runs have scores, and a surrogate needs {FEWEST}",
        )  # fmt: skip
    shares = np.array([[one.get(name, 0.0) for name in names] for one, _ in runs]).reshape(len(runs), len(names))
    losses = np.array([loss for _, loss in runs])
    prior = np.array(list(swarm.shares.values()))
    most = np.minimum([caps.get(name, 1.0) for name in names], 1.0)
    if most.sum() < 1 or (most < swarm.floor).any():
        raise RequestError(
            "with the caps on repetition, there is less text than the run needs",
            found=", ".join(f"{name} {share:.3g}" for name, share in zip(names, most, strict=True)),
            expected=f"maximum shares that add up to at least 1, each at least the floor {swarm.floor:g}",
            remedy="use fewer `target_tokens`, a lower floor, more text, or a higher mixture.max_epochs",
        )
    fitted = fit(shares, losses)
    facts: dict[str, Any] = {
        "prior": dict(zip(names, prior.tolist(), strict=True)),
        "caps": dict(zip(names, most.tolist(), strict=True)),
        "family": fitted.family,
        "errors": {name: round(error, 9) for name, error in fitted.errors.items()},
        "runs": [
            (dict(zip(names, row.tolist(), strict=True)), float(loss), round(float(held), 9))
            for row, loss, held in zip(shares, losses, fitted.held_out, strict=True)
        ],
    }
    if fitted.family == "mean":
        reason = "neither surrogate predicts unseen runs much better than the mean loss does"
        return MixtureProposal(**facts, shares={}, gain=0.0, low=0.0, high=0.0, refusal=reason)
    chosen = best_shares(fitted.loss, prior, most, swarm)
    gain, low, high = _gain(fitted, shares, losses, chosen, prior, most, swarm)
    interval = f"{gain:+.3g} ({low:+.3g} to {high:+.3g})"
    refusal = f"the interval of the proposal's gain includes 0: {interval}" if low <= 0 else ""
    found = {} if refusal else {name: round(float(share), 4) for name, share in zip(names, chosen, strict=True)}
    gain, low, high = (round(value, 9) for value in (gain, low, high))
    return MixtureProposal(**facts, shares=found, gain=gain, low=low, high=high, refusal=refusal)


def best_shares(
    loss: Surrogate, prior: Floats, most: Floats, swarm: Swarm, starts: Sequence[Floats] | None = None
) -> Floats:
    """Return the best mixture shares [K] according to a surrogate, within floor and caps.

    They minimize the loss plus `stay` times the divergence from the prior. The log-linear law is convex: without `stay`
    the problem is a linear program, and with `stay` any local optimum is global. For the kernel, the best result of
    several descents is used. By default, the descents start from the prior and near each corner.
    """
    from scipy.optimize import linprog, minimize

    bounds = [(swarm.floor, float(high)) for high in most]
    if isinstance(loss, LogLinear) and swarm.stay == 0:
        return np.asarray(linprog(loss.slopes, A_eq=np.ones((1, len(prior))), b_eq=[1.0], bounds=bounds).x)

    def cost(at: Floats) -> float:
        return float(loss(at) + swarm.stay * np.sum(at * np.log(np.maximum(at, LEAST) / prior)))

    def slope(at: Floats) -> Floats:
        found: Floats = loss.slope(at) + swarm.stay * (np.log(np.maximum(at, LEAST) / prior) + 1)
        return found

    if starts is None:
        corners = [] if isinstance(loss, LogLinear) else list(np.eye(len(prior)) * 0.9 + 0.1 / len(prior))
        starts = [prior, *corners]
    whole = {"type": "eq", "fun": lambda at: at.sum() - 1, "jac": np.ones_like}
    solved = [
        minimize(cost, _within(one, swarm.floor, most), jac=slope, method="SLSQP", bounds=bounds, constraints=whole)
        for one in starts
    ]
    best = min((one.x for one in solved), key=cost)
    return _within(np.asarray(best), swarm.floor, most)


def _within(shares: Floats, floor: float, most: Floats) -> Floats:
    """Return the shares closest to `shares` that add up to 1 and respect floor and caps (a projection by an equal
    shift)."""
    low, high = shares.min() - 1 - most.max(), 2.0
    for _ in range(80):
        shift = (low + high) / 2
        low, high = (shift, high) if np.clip(shares + shift, floor, most).sum() < 1 else (low, shift)
    found: Floats = np.clip(shares + high, floor, most)
    return found


def _gain(
    fitted: FittedSurrogate, shares: Floats, losses: Floats, chosen: Floats, prior: Floats, most: Floats, swarm: Swarm
) -> tuple[float, float, float]:
    """Return the gain of the chosen shares over the prior, corrected for selection bias, and its bootstrap interval.

    The bootstrap draws runs instead of residuals. With a kernel that nearly interpolates, intervals from residuals
    cover the true gain less often (63% instead of 80%, in swarms of 20 runs with one run far off the surface). The
    surrogate keeps its settings in every draw.
    """
    rng, loss = np.random.Generator(np.random.Philox([swarm.seed, 1])), fitted.loss
    gains, optimism = list[float](), list[float]()
    while len(gains) < DRAWS:
        drawn = rng.integers(0, len(losses), len(losses))
        if len(np.unique(drawn)) < max(FEWEST, len(losses) // 2):
            continue
        other = again(loss, shares[drawn], losses[drawn])
        own = best_shares(other, prior, most, swarm, (chosen, prior))
        optimism.append(float(other(prior) - other(own)) - float(loss(prior) - loss(own)))
        gains.append(float(other(prior) - other(chosen)))
    bias = float(np.mean(optimism))
    low, high = np.quantile(gains, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) - bias
    return float(loss(prior) - loss(chosen)) - bias, float(low), float(high)


SEEDS = 3
CONFIRM, LONGEST = "-confirm", 24


def required(name: str, proposal: MixtureProposal | None) -> MixtureProposal:
    """Return the mixture proposal of a swarm experiment, and raise an error if there is none.

    Raises:
        MissingError: the experiment has no swarm.
        StageError: the experiment's runs support no proposal.
    """
    if proposal is None:
        raise MissingError(f"experiment {name} has no swarm", expected="a key `swarm` in the experiment file")
    if proposal.refusal:
        raise StageError(
            f"the runs of {name} do not support a proposal",
            found=proposal.refusal,
            remedy="use more runs (`swarm.count`), longer runs, or more test text",
        )
    return proposal


def recipe(
    experiment: Experiment, file: Path, proposal: MixtureProposal, outcome: ConfirmationOutcome | None = None
) -> str:
    """Return a recipe that extends the experiment's recipe with the proposed mixture.

    The first line of the recipe states the evidence for the mixture.

    Raises:
        StageError: new runs did not confirm the proposal.
    """
    if outcome is not None and outcome.status != HOLDS:
        raise StageError(
            f"the proposal of {experiment.name} is {outcome.status}",
            found=outcome.reason,
            remedy="use more seeds to confirm, or a larger swarm; or write the mixture into a recipe yourself",
        )
    base = experiment.recipe
    beside = file.parent / base
    data = {
        "extends": str(beside.absolute()) if beside.is_file() else base,
        "mixture": one_phase(proposal.shares),
    }
    gain = (
        f"predicted to save {proposal.gain:.3g} bits per byte against the prior (95%: {proposal.low:.3g} to "
        f"{proposal.high:.3g})"
    )
    known = f"confirmed by new runs: {outcome.reason}." if outcome else f"{gain}, not confirmed yet."
    return f"# Proposed by experiment {experiment.name}: {known}\n{_yaml(data)}"


def name_of(experiment: str) -> str:
    """Return the name of the experiment that confirms the mixture proposal of a swarm."""
    return f"{experiment[: LONGEST - len(CONFIRM)].rstrip('-')}{CONFIRM}"


def question(experiment: Experiment, proposal: MixtureProposal, answer: str) -> ConfirmationQuestion:
    """Return the settings of the experiment that confirms a mixture proposal.

    Args:
        answer: digest of the effects manifest that the proposal is derived from.
    """
    return ConfirmationQuestion(
        experiment=experiment.name, answer=answer, seeds=experiment.seeds, prior=proposal.prior,
        shares=proposal.shares, gain=proposal.gain, low=proposal.low, high=proposal.high,
    )  # fmt: skip


def confirmation(experiment: Experiment, file: Path, proposal: MixtureProposal, answer: str) -> str:
    """Return an experiment file that trains on the proposal and on the prior, with seeds that the swarm did not use.

    Args:
        answer: digest of the effects manifest that the proposal is derived from.
    """
    beside = file.parent / experiment.recipe
    first = max(experiment.seeds) + 1
    given = experiment.model_dump(mode="json", include={"test", "common", "sizes"}, exclude_unset=True)
    data = {
        "name": name_of(experiment.name),
        "question": f"Is the mixture that {experiment.name} proposes better than its prior?",
        "recipe": str(beside.absolute()) if beside.is_file() else experiment.recipe,
        **given,
        "confirms": question(experiment, proposal, answer).model_dump(mode="json"),
        "seeds": list(range(first, first + SEEDS)),
    }
    return _yaml(data)


def _yaml(data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110))
