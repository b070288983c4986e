"""Intervals of the best parameters and tokens for a budget, from the optimum of every bootstrap draw of a law."""

from __future__ import annotations

import numpy as np

from plinth.errors import RequestError
from plinth.evaluation.statistics import Estimate, from_replicates
from plinth.experiment.scaling.descent import Floats
from plinth.experiment.scaling.fit import Fitted
from plinth.experiment.scaling.law import DataReuse, ScalingLaw
from plinth.records import Frozen


class Optimum(Frozen):
    """Parameters and tokens that a budget is best spent on; `draws` of the bootstrap had such an optimum."""

    flops: float
    params: Estimate
    tokens: Estimate
    draws: int


def optimum(
    fitted: Fitted, flops: float, *, inference_tokens: float = 0.0, reuse: DataReuse | None = None, level: float = 0.95
) -> Optimum:
    """N* and D* with intervals. Draws whose A or B is 0 have no optimum; they are left out and not counted.

    Raises:
        RequestError: the runs determine no law, or neither it nor any draw has an optimum.
    """
    best = fitted.law.optimum(flops, inference_tokens=inference_tokens, reuse=reuse)
    if inference_tokens == 0 and reuse is None:
        found = _closed(fitted.drawn, flops)
    else:
        found = _searched(fitted, flops, inference_tokens, reuse)
    if not len(found):
        raise RequestError("no draw of the bootstrap has an optimum", remedy="add runs of other sizes")

    def interval(value: float, drawn: Floats) -> Estimate:
        own = value * (drawn / value) ** fitted.spread
        made = from_replicates(value, own, n=fitted.fit.runs, seed=fitted.fit.seed, level=level)
        return made.model_copy(update={"method": "percentile bootstrap, fractional weights"})

    params, tokens = found.T
    return Optimum(
        flops=flops, params=interval(best.params, params), tokens=interval(best.tokens, tokens), draws=len(found)
    )


def _closed(drawn: Floats, flops: float) -> Floats:
    """N* and D* of draws, [K, 2]: G (C / 6)^a and (C / 6)^(1 - a) / G (Hoffmann et al. 2203.15556, equation 4)."""
    _, A, B, alpha, beta = drawn[(drawn[:, 1:3] > 0).all(axis=1)].T
    params = (alpha * A / (beta * B)) ** (1 / (alpha + beta)) * (flops / 6) ** (beta / (alpha + beta))
    return np.stack([params, flops / (6 * params)], axis=1)


def _searched(fitted: Fitted, flops: float, inference_tokens: float, reuse: DataReuse | None) -> Floats:
    found = []
    for E, A, B, alpha, beta in fitted.drawn.tolist():
        law = ScalingLaw(E=E, A=A, B=B, alpha=alpha, beta=beta)
        try:
            own = law.optimum(flops, inference_tokens=inference_tokens, reuse=reuse)
        except RequestError:
            continue
        found.append((own.params, own.tokens))
    return np.array(found).reshape(-1, 2)
