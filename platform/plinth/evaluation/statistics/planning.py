"""How much could be seen, how much is needed, and what remains of many tests."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from plinth.evaluation.statistics.estimate import Floats, checked, normal_quantile


def holm(p_values: ArrayLike) -> Floats:
    """p-values [T] adjusted for their number (Holm 1979): below alpha, the chance of any false finding is below alpha.

    Raises:
        ValueError: no values, or one outside [0, 1].
    """
    given = checked(p_values)
    if ((given < 0) | (given > 1)).any():
        raise ValueError("p-values lie between 0 and 1")
    order = np.argsort(given, kind="stable")
    stepped = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def smallest_effect(error: float, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true effect that a two-sided test finds with this power, given the standard error of its estimate.

    Raises:
        ValueError: an error that is not above 0 says nothing of what could be seen; power or alpha is no probability.
    """
    _check(power, alpha)
    if not 0 < error < math.inf:
        raise ValueError("what could be seen is unknown where the standard error is 0")
    return (normal_quantile(1 - alpha / 2) + normal_quantile(power)) * error


def sample_size(
    effect: float,
    variance: float,
    *,
    noise_a: float = 0.0,
    noise_b: float = 0.0,
    samples_a: int = 1,
    samples_b: int = 1,
    power: float = 0.8,
    alpha: float = 0.05,
) -> int:
    """Items that a paired comparison needs to find `effect` (Miller 2411.00640, equation 9).

    Args:
        effect: the difference of means to be found.
        variance: over items, of the difference of the models' expected scores.
        noise_a, noise_b: variance of one sample's score about its item's expectation.
        samples_a, samples_b: samples an item.
        power, alpha: of the two-sided test.

    Raises:
        ValueError: no effect, no variance, a variance below 0, or a number that is not finite; fewer than one sample an
            item; power or alpha is no probability.
    """
    _check(power, alpha)
    variances = (variance, noise_a, noise_b)
    if min(samples_a, samples_b) < 1 or not all(0 <= one < math.inf for one in variances):
        raise ValueError("variances are finite and not below 0, and an item has one sample or more")
    whole = variance + noise_a / samples_a + noise_b / samples_b
    if not math.isfinite(effect) or not effect or not whole:
        raise ValueError("a number of items follows from an effect and a variance above 0, both finite")
    return math.ceil((normal_quantile(1 - alpha / 2) + normal_quantile(power)) ** 2 * whole / effect**2)


def _check(power: float, alpha: float) -> None:
    if not (0 < power < 1 and 0 < alpha < 1):
        raise ValueError(f"power and alpha lie between 0 and 1, not {power} and {alpha}")
