"""Shares of the runs of a swarm, drawn around a prior: Dirichlet of several strengths, some with streams left out.

K  streams
N  runs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plinth.records import Frozen

Floats = NDArray[np.float64]

#: The arm that the others are drawn around.
PRIOR = "prior"
#: Shares are written with so many digits; the last ones are the swarm's, not the model's.
DIGITS = 4


class Swarm(Frozen):
    """Arms of an experiment that are drawn, not written: `count` mixtures around a prior, and the prior itself."""

    prior: Mapping[str, float] = Field(
        min_length=2, description="Weights by stream, as in a phase of the mixture: the base that a proposal must beat."
    )
    count: int = Field(20, ge=4, le=4096, description="Mixtures drawn.")
    strength: tuple[float, float] = Field(
        (0.5, 8.0),
        description="Bounds of the Dirichlet's strength, drawn log-uniformly: low ones give lopsided mixtures.",
    )
    sparse: float = Field(0.2, ge=0, lt=1, description="Probability that a draw leaves a stream out.")
    seed: int = Field(1, ge=0, description="Of the draws.")
    target_tokens: int | None = Field(
        None, gt=0, description="Tokens of the run that the proposal is for; its caps follow. Unless said: as the arms."
    )
    floor: float = Field(0.0, ge=0, lt=0.5, description="Least share of each stream in a proposal.")
    stay: float = Field(
        0.01, ge=0, description="Bits per byte that a proposal pays for each nat of divergence from the prior."
    )

    @model_validator(mode="after")
    def _within(self) -> Swarm:
        if min(self.prior.values()) <= 0:
            raise ValueError("prior: weights must be above 0")
        if not 0 < self.strength[0] <= self.strength[1]:
            raise ValueError("strength: two numbers above 0, the lower one first")
        if self.floor * len(self.prior) > 1:
            raise ValueError(f"floor: {len(self.prior)} streams of {self.floor} are more than the whole")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The prior as shares, which add up to 1."""
        whole = sum(self.prior.values())
        return {name: weight / whole for name, weight in self.prior.items()}


    def arms(self) -> dict[str, dict[str, Any]]:
        """Overlays of the arms: the prior, and every draw."""
        digits = len(str(self.count))
        drawn = {f"mix-{at:0{digits}}": shares for at, shares in enumerate(draws(self), 1)}
        return {name: {"mixture": one_phase(shares)} for name, shares in {PRIOR: self.shares, **drawn}.items()}

    def base(self) -> str:
        """The arm that the others are compared with."""
        return PRIOR


def draws(swarm: Swarm) -> list[dict[str, float]]:
    """Shares by stream of every run; a stream that was left out has none.

    Mean `prior`, alpha = strength x K x prior (RegMix and olmix draw so; arXiv:2407.01492). No two draws are alike.
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
    """Shares as keys of a recipe's mixture. Where a stream has too little text, the others make up for it."""
    weights = {name: round(share, DIGITS) for name, share in shares.items()}
    return {"over_cap": "redistribute", "phases": [{"name": "all", "fraction": 1, "weights": weights}]}


def _rounded(drawn: Floats) -> Floats | None:
    """Shares of `DIGITS` digits that add up to 1; None where nothing is left."""
    if drawn.sum() <= 0:
        return None
    units = np.floor(drawn / drawn.sum() * 10**DIGITS)
    units[np.argmax(units)] += 10**DIGITS - units.sum()
    shares: Floats = np.round(units / 10**DIGITS, DIGITS)
    return shares
