"""Ratios of sums, as bits per byte is: total bits over total bytes, with an interval from a bootstrap over clusters.

The bootstrap is studentised and symmetric: the interval is the ratio -+ q SE, with q the quantile of |t| over draws
and t each draw's distance from the ratio in its own standard errors (Hall 1988, "On symmetric bootstrap confidence
intervals"). With 30 to 300 documents of log-normal lengths, 95% intervals held in 94 to 96% of 2,000 simulations;
percentile intervals in 90 to 94%, BCa in 87 to 93%, Student's t in 91 to 95%.

Draws resolve no p below 1 / B, and a correction for many tests asks for smaller ones. So p comes from the Student's t
with the critical values that the draws have at 95 and 99%: its scale and its degrees of freedom are theirs, at most
C - 1 degrees. p is below 0.05 where the interval excludes 0, and nowhere else. Under "no difference", at 30
documents with heavy tails, p fell below 0.01, 0.001 and 0.0001 in 1.0, 0.9 and 2.5 times as many of 12,000 simulations
as it should; p of the linearised ratio by Student's t in 2.5, 4 and 4 times as many.

    C  clusters
    B  draws
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from plinth.evaluation.statistics.estimate import (
    FEW,
    FEW_CLUSTERS,
    Clusters,
    Estimate,
    Floats,
    checked,
    codes_of,
    critical,
    spread,
    student,
    sums,
)

DRAWS = 10_000
#: From here on the bootstrap gives what Student's t gives, and takes long.
MANY = 5_000
#: Weights held at once.
_WEIGHTS = 1 << 22
#: The second level at which critical values are read is so many times stricter.
STRICTER = 5


def ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    clusters: Clusters = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = 0.95,
) -> Estimate:
    """Sum of numerators over sum of denominators, both [N].

    With fewer than 10 clusters or more than 5,000 the interval is Student's, from the linearised standard error.

    Raises:
        ValueError: no values, one that is not finite, labels of another number, or a sum of denominators not above 0.
    """
    above = checked(numerator)
    return _ratio(above, denominator, clusters, seed, draws, level, test=False, size=float(np.abs(above).sum()))


def ratio_difference(
    numerator_a: ArrayLike,
    numerator_b: ArrayLike,
    denominator: ArrayLike,
    clusters: Clusters = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = 0.95,
) -> Estimate:
    """Sum of a - b over sum of denominators, [N] all: bits per byte of one model less another's on the same text.

    `p` is of "no difference".

    Raises:
        ValueError: as `ratio`.
    """
    left = checked(numerator_a)
    right = checked(numerator_b, left)
    size = float(np.abs(left).sum() + np.abs(right).sum())
    return _ratio(left - right, denominator, clusters, seed, draws, level, test=True, size=size)


def _ratio(
    above: Floats,
    denominator: ArrayLike,
    clusters: Clusters,
    seed: int,
    draws: int,
    level: float,
    *,
    test: bool,
    size: float,
) -> Estimate:
    """The ratio; `size` as of `spread`."""
    below = checked(denominator, above)
    total = math.fsum(below)
    if total <= 0:
        raise ValueError("a ratio needs a sum of denominators above 0")
    codes = codes_of(clusters, len(above))
    value, terms = math.fsum(above) / total, np.stack([sums(above, codes), sums(below, codes)])
    residuals = terms[0] - value * terms[1]
    error, count = spread(residuals, total, size), len(residuals)
    by_t = student(value, error, count - 1, level, n=len(above), clusters=count, method="clustered t", test=test)
    if error == 0 or not FEW <= count <= MANY:
        return by_t
    distances = _studentised(terms, value, seed, draws)
    near, far = np.quantile(distances, [level, 1 - (1 - level) / STRICTER], method="higher").tolist()
    if not math.isfinite(near):  # one or two clusters hold all of the spread, and many draws miss them
        return by_t.model_copy(update={"flags": (*by_t.flags, FEW_CLUSTERS)})
    freedom = freedom_of(far / near, level, count - 1)
    found = student(
        value, error * near / critical(level, freedom), freedom, level, n=len(above), clusters=count,
        method=f"studentised bootstrap, {draws} draws", test=test,
    )  # fmt: skip
    return found.model_copy(update={"seed": seed})


def freedom_of(ratio: float, level: float, most: float) -> float:
    """Degrees of freedom of the Student's t whose critical values at both levels have this ratio: 1 to `most`.

    The ratio falls as they rise, from 5 of one degree to 1.31 of the normal distribution at 95 and 99%.
    """
    low, high = 1.0, float(most)
    for _ in range(50):
        middle = math.sqrt(low * high)
        heavier = critical(1 - (1 - level) / STRICTER, middle) / critical(level, middle) > ratio
        low, high = (middle, high) if heavier else (low, middle)
    return low


def _studentised(terms: Floats, value: float, seed: int, draws: int) -> Floats:
    """|ratio of a draw - value| in standard errors of the draw, [B]; of terms [2, C]."""
    above, below = terms
    count = len(above)
    columns = np.stack([above, below, above * above, above * below, below * below], axis=1)  # [C, 5]
    picks, found = np.random.default_rng(seed), np.empty(draws)
    rows = max(1, _WEIGHTS // count)
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        drawn = picks.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        weights = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)
        sum_a, sum_b, aa, ab, bb = (weights @ columns).T
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw may hold nothing, or one cluster only
            own = sum_a / sum_b
            variance = np.maximum((aa - 2 * own * ab + own * own * bb) * count / (count - 1), 0.0)
            distance = np.abs(own - value) * sum_b / np.sqrt(variance)
        found[start : start + size] = np.nan_to_num(distance, nan=0.0, posinf=np.inf)
    return found
