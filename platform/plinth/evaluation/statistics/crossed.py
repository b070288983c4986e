"""A paired difference of ratios where seeds and documents are crossed: each pair of runs is scored on the same text.

The difference of seed k on document j, in bits, is w_j (effect + seed_k) + document_j + rest_kj. The estimate varies
with the seeds that were trained and with the documents that were drawn:

    V_seeds      variance of the K differences of whole runs, over K; the rest is in it. K - 1 degrees of freedom
    V_documents  that of the ratio over documents of the mean over seeds (`ratios`), less the rest, counted already

The 95% interval is the value -+ sqrt(t_seeds^2 V_seeds + t_documents^2 V_documents), each variance with the critical
value of its own degrees of freedom (Banerjee 1960, "Approximate confidence interval for linear functions of means of k
populations"). In 1,500 simulations each, of 100 documents of log-normal lengths and seeds' noise from none to 30 times
what documents give, it held the truth in 93.4 to 98.9% with 2 seeds, 94.7 to 97.7% with 3, 93.6 to 96.8% with 5 and 10
(standard error 0.6). The sum of components (Cameron, Gelbach and Miller 2011) with Satterthwaite's
degrees of freedom held in 86.8% at worst with 2 seeds and 91.3% with 3: it believes a small variance of seeds.

    K  seeds
    D  documents
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from plinth.evaluation.statistics.estimate import (
    Estimate,
    Floats,
    rounded,
    spread,
    student,
    student_quantile,
    unrounded,
)
from plinth.evaluation.statistics.means import DRAWS, STRICTER, freedom_of, ratio

#: The interval is of other documents, not of other trainings: there is one seed, or seeds change nothing at all.
DOCUMENTS_ONLY = "documents_only"

#: ln p of the smallest p that is told from 0.
_LEAST = -600.0


def crossed_difference(
    a: ArrayLike,
    b: ArrayLike,
    weights: ArrayLike,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = 0.95,
) -> Estimate:
    """Mean over seeds of sum(a - b) / sum(weights); `n` are seeds times documents, `clusters` documents.

    Args:
        a, b: bits of both sides, [K, D], row by row of the same seed; scores of items, where weights are 1.
        weights: bytes of the documents, [D].
        seed, draws, level: of the interval (`ratio`).

    Raises:
        ValueError: other shapes, a value that is not finite, or weights whose sum is not above 0.
    """
    left, right = _table(a), _table(b)
    below = np.asarray(weights, dtype=np.float64)
    if left.shape != right.shape or below.shape != left.shape[1:]:
        raise ValueError(f"scores of {left.shape} and {right.shape} seeds and documents beside {below.shape} weights")
    gaps, size = left - right, float(np.abs(left).sum() + np.abs(right).sum())
    seeds, documents = gaps.shape
    mean = gaps.mean(axis=0)
    text = ratio(mean, below, seed=seed, draws=draws, level=level)
    total = math.fsum(below)
    runs = np.array([math.fsum(row) for row in gaps]) / total
    value = math.fsum(runs) / seeds
    own = spread(mean - value * below, total, size / seeds)
    if own == 0 or text.unit is None or text.freedom is None:
        return student(value, 0.0, 1, level, n=gaps.size, clusters=documents, method=text.method, test=True)
    of_runs = float(runs.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else 0.0
    of_runs = unrounded(of_runs * total, size / seeds) / total
    rest = _rest(gaps, mean, runs - value, below) if of_runs else 0.0
    of_text = text.unit * math.sqrt(max(0.0, 1 - rest / own**2))
    scale, freedom = of_text, text.freedom

    def half_width(alpha: float) -> float:
        by_runs = student_quantile(seeds - 1, alpha / 2) * of_runs if of_runs else 0.0
        return math.hypot(by_runs, student_quantile(freedom, alpha / 2) * scale)

    near, far = half_width(1 - level), half_width((1 - level) / STRICTER)
    fitted = freedom_of(far / near, level, documents - 1)
    unit = near / -student_quantile(fitted, (1 - level) / 2)
    found = student(value, unit, fitted, level, n=gaps.size, clusters=documents, method=text.method, test=False)
    method = f"{seeds} seeds by {text.method}" if of_runs else text.method
    flags = (*found.flags, *(() if of_runs else (DOCUMENTS_ONLY,)))
    return found.model_copy(
        update={"p": rounded(_p(abs(value), half_width)), "method": method, "seed": text.seed, "flags": flags}
    )


def _table(values: ArrayLike) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        raise ValueError("crossed scores are finite numbers of seeds by documents, at least one of each")
    return found


def _rest(gaps: Floats, mean: Floats, runs: Floats, below: Floats) -> float:
    """Variance that neither seeds nor documents explain, as it is in the estimate; `runs` less the value."""
    seeds, documents = gaps.shape
    left, total = gaps - mean - np.outer(runs, below), float(below.sum())
    return float((left**2).sum() / (seeds * (seeds - 1)) * documents / (documents - 1) / total**2)


def _p(distance: float, half_width: Callable[[float], float]) -> float:
    """The level at which the interval just reaches 0, by bisection of its logarithm."""
    low, high = _LEAST, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if half_width(math.exp(middle)) > distance else (low, middle)
    return math.exp(high)
