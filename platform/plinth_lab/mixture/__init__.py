"""Search for a mixture: a swarm of small runs, a surrogate of their loss, and a proposal with the interval of its gain.

    surrogate  loss as a function of the shares: a log-linear law or kernel ridge, chosen by cross-validation
    proposals  the best shares under caps and their gain over the prior; a proposal as a recipe or an experiment

This module defines the mixture shares of a swarm's runs, and the confirmation of the proposed mixture.

    K  streams
    N  runs

Shares are drawn around a prior from Dirichlet distributions of several strengths. Some draws leave out streams.

The proposal was chosen from the swarm's runs, so these runs cannot confirm it. It is confirmed by new runs of the
proposal and the prior, with equal tokens and new seeds. The gain is the prior's bits per byte minus the proposal's bits
per byte, paired by seed and document (`effects`), at the size of the proposal.

    holds          the whole interval of the gain is above 0
    not confirmed  the interval includes 0, or a run has no scores
    refuted        the whole interval is below 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plinth.evaluation.statistics import DEGENERATE, DOCUMENTS_ONLY
from plinth.records import Frozen
from plinth_lab.experiments.effects import ARM, BASE, WHOLE, Effect

Floats = NDArray[np.float64]

#: Name of the arm around which the others are drawn.
PRIOR = "prior"
#: Number of digits of written shares.
DIGITS = 4


class Swarm(Frozen):
    """Settings for a swarm of runs with different mixtures: the prior, and `count` random mixtures around it."""

    prior: Mapping[str, float] = Field(
        min_length=2, description="Baseline mixture: weights by stream, as in a phase of a recipe's mixture."
    )
    count: int = Field(20, ge=4, le=4096, description="Number of random mixtures.")
    strength: tuple[float, float] = Field(
        (0.5, 8.0),
        description="Range of the Dirichlet strength (log-uniform). Low values give unbalanced mixtures.",
    )
    sparse: float = Field(0.2, ge=0, lt=1, description="Probability that a mixture omits a stream.")
    seed: int = Field(1, ge=0, description="Random seed for drawing the mixtures.")
    target_tokens: int | None = Field(
        None,
        gt=0,
        description="Number of tokens of the target run, from which the maximum shares are computed (default: the "
        "tokens of an arm).",
    )
    floor: float = Field(0.0, ge=0, lt=0.5, description="Minimum share of each stream in a proposal.")
    stay: float = Field(0.01, ge=0, description="Penalty for divergence from the prior, in bits per byte per nat.")

    @model_validator(mode="after")
    def _within(self) -> Swarm:
        if min(self.prior.values()) <= 0:
            raise ValueError("prior: weights must be above 0")
        if not 0 < self.strength[0] <= self.strength[1]:
            raise ValueError("strength: expected two numbers above 0, the lower number first")
        if self.floor * len(self.prior) > 1:
            raise ValueError(f"floor: {len(self.prior)} shares of at least {self.floor} add up to more than 1")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """Weights of the prior, normalized to shares that sum to 1."""
        whole = sum(self.prior.values())
        return {name: weight / whole for name, weight in self.prior.items()}

    def arms(self) -> dict[str, dict[str, Any]]:
        """Return the recipe overlays of the swarm's arms: the prior, and every random mixture."""
        digits = len(str(self.count))
        drawn = {f"mix-{at:0{digits}}": shares for at, shares in enumerate(draws(self), 1)}
        return {name: {"mixture": one_phase(shares)} for name, shares in {PRIOR: self.shares, **drawn}.items()}

    def base(self) -> str:
        """Return the name of the base arm, which trains on the prior."""
        return PRIOR


def draws(swarm: Swarm) -> list[dict[str, float]]:
    """Draw the random mixture shares of every run, by stream. A stream that is left out has no entry.

    The mean is `prior`, with alpha = strength x K x prior, as in RegMix and olmix (arXiv:2407.01492). No two draws are
    equal.
    """
    rng = np.random.Generator(np.random.Philox(swarm.seed))
    names, prior = list(swarm.prior), np.array(list(swarm.shares.values()))
    low, high = np.log(swarm.strength)
    found: list[dict[str, float]] = []
    while len(found) < swarm.count:
        strength = float(np.exp(rng.uniform(low, high)))
        kept = rng.random(len(names)) >= swarm.sparse
        drawn = rng.dirichlet(strength * len(names) * prior)
        shares = _rounded(np.where(kept, drawn, 0.0))
        if shares is not None:
            one = {name: float(share) for name, share in zip(names, shares, strict=True) if share > 0}
            found += [one] if one not in found else []
    return found


def one_phase(shares: Mapping[str, float]) -> dict[str, Any]:
    """Return mixture shares as recipe keys for a mixture with one phase.

    If a stream has too little text for its share, the other streams fill the rest.
    """
    weights = {name: round(share, DIGITS) for name, share in shares.items()}
    return {"over_cap": "redistribute", "phases": [{"name": "all", "fraction": 1, "weights": weights}]}


def _rounded(drawn: Floats) -> Floats | None:
    """Round shares to `DIGITS` digits so that they still add up to 1. Return None if all shares are 0."""
    if drawn.sum() <= 0:
        return None
    units = np.floor(drawn / drawn.sum() * 10**DIGITS)
    units[np.argmax(units)] += 10**DIGITS - units.sum()
    shares: Floats = np.round(units / 10**DIGITS, DIGITS)
    return shares


#: Name of the arm that is trained on the proposed mixture.
PROPOSED: Final = "proposed"
HOLDS: Final = "holds"
NOT_CONFIRMED: Final = "not confirmed"
REFUTED: Final = "refuted"
Status = Literal["holds", "not confirmed", "refuted"]


class ConfirmationQuestion(Frozen):
    """Settings of an experiment that compares a proposed mixture with its prior.

    `plinth experiment propose --confirm` writes such an experiment.
    """

    experiment: str = Field(min_length=1, description="Name of the swarm experiment.")
    answer: str = Field(description="Digest of the effects manifest that contains the proposal.")
    seeds: tuple[int, ...] = Field(
        min_length=1, description="Seeds that the swarm used. The confirmation must use different seeds."
    )
    prior: Mapping[str, float] = Field(min_length=2, description="Share of each stream in the mixture to beat.")
    shares: Mapping[str, float] = Field(min_length=2, description="Proposed shares by stream.")
    gain: float = Field(allow_inf_nan=False, description="Predicted reduction in bits per byte against the prior.")
    low: float = Field(allow_inf_nan=False, description="Lower end of the 95% interval of `gain`.")
    high: float = Field(allow_inf_nan=False, description="Upper end of the 95% interval of `gain`.")

    @model_validator(mode="after")
    def _alike(self) -> ConfirmationQuestion:
        if set(self.prior) != set(self.shares):
            raise ValueError("shares: expected the same streams as in `prior`")
        return self

    def arms(self) -> dict[str, dict[str, Any]]:
        """Return the recipe overlays of the two arms, the prior and the proposal."""
        return {name: {"mixture": one_phase(of)} for name, of in ((PRIOR, self.prior), (PROPOSED, self.shares))}

    def base(self) -> str:
        """Return the name of the base arm, which trains on the prior."""
        return PRIOR


class ConfirmationOutcome(Frozen):
    """Result of testing a proposed mixture in new runs.

    Args:
        status, reason: result, and its explanation in words.
        size: name of the model size of the runs.
        gain, low, high: reduction in bits per byte against the prior, with its 95% interval, or None if no pair has
            scores.
        smallest: the gain that an experiment of this kind detects with a probability of 80%.
        seeds, documents: seeds of the pairs, and the number of documents.
        trained: shares that the proposal's runs were trained on.
    """

    status: Status
    reason: str
    size: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    seeds: tuple[int, ...] = ()
    documents: int = 0
    trained: Mapping[str, float] = Field(default_factory=dict)


def confirmed(
    question: ConfirmationQuestion, effects: Sequence[Effect], size: str, trained: Mapping[str, float]
) -> ConfirmationOutcome:
    """Return the outcome of the runs that test a proposed mixture.

    Args:
        effects: effects of the experiment (`effects.effects`).
        size: size for which the proposal was made.
        trained: shares that the proposal's runs were trained on; empty if no run finished.
    """
    line = next(one for one in effects if (one.arm, one.size, one.slice) == (PROPOSED, size, WHOLE))
    known: dict[str, Any] = {"size": size, "seeds": line.seeds, "documents": line.documents, "trained": trained}
    gap = line.difference
    if gap is None:
        return ConfirmationOutcome(status=NOT_CONFIRMED, reason=line.finding, **known)
    gain, low, high = 0.0 - gap.value, 0.0 - gap.high, 0.0 - gap.low
    status, why = _decided(line)
    found = f"the proposal gained {gain:+.3g} bits per byte over the prior (95%: {low:+.3g} to {high:+.3g})"
    reason = f"{why}{found}; predicted {question.gain:+.3g} ({question.low:+.3g} to {question.high:+.3g})"
    return ConfirmationOutcome(
        status=status, reason=reason, gain=gain, low=low, high=high, smallest=line.smallest, **known
    )


def _decided(line: Effect) -> tuple[Status, str]:
    """Return the status of a proposed mixture, and an explanation in words.

    If a run has no scores, the proposal is not confirmed, because it may have caused the failure.
    """
    assert line.difference is not None
    if line.lacking:
        return NOT_CONFIRMED, f"some runs have no scores ({'; '.join(line.lacking)}): "
    if line.better == ARM:
        return HOLDS, ""
    if line.better == BASE:
        return REFUTED, "the prior is better: "
    if DOCUMENTS_ONLY in line.difference.flags:
        return NOT_CONFIRMED, "training noise cannot be estimated from one seed: "
    if DEGENERATE in line.difference.flags:
        return NOT_CONFIRMED, "no variation, or too few documents: "
    seen = "" if line.smallest is None else f" (minimum detectable effect {line.smallest:.2g})"
    return NOT_CONFIRMED, f"the interval of the proposal's gain includes 0{seen}: "
