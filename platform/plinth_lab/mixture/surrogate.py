"""Surrogates: the loss of a small run as a function of its mixture shares, fitted to a swarm.

    K  streams
    N  runs

There are two surrogate families: a log-linear law, and kernel ridge regression on shares and their logarithms. The
third option is the mean loss, which means that shares have no effect. The family and the kernel's settings are chosen
by leave-one-out error on the runs themselves, so no run is reserved for a separate test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from plinth.errors import RequestError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Features of a mixture: its shares times `own`, and the logarithms of (shares + `least`) times `logarithm`.

    A factor of 0 removes the features that it multiplies. `least` keeps the logarithm finite for a share of 0. A stream
    with a share far below `least` counts as left out.
    """

    own: float
    logarithm: float
    least: float

    def __call__(self, shares: Floats) -> Floats:
        """Return the features [..., 2K] of shares [..., K]."""
        parts = [self.own * shares, self.logarithm * np.log(shares + self.least)]
        found: Floats = np.concatenate(parts, axis=-1)
        return found

    def slope(self, shares: Floats, by_feature: Floats) -> Floats:
        """Return the gradient of a function by shares, [K]. The argument is its gradient by features, [2K]."""
        own, logarithm = np.split(by_feature, 2)
        found: Floats = self.own * own + self.logarithm * logarithm / (shares + self.least)
        return found


#: Settings of kernel ridge that leave-one-out chooses among.
LEAST_SHARES = (2e-4, 2e-3, 2e-2)
FEATURES = (
    Features(2.0, 0.0, LEAST_SHARES[0]),
    *(Features(own, 0.5, least) for own, least in product((0.0, 2.0), LEAST_SHARES)),
)
WIDTHS, RIDGES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Kernel:
    """Ridge regression with a Gaussian kernel on the features of mixture shares; `weights` [N], `points` [N, 2K]."""

    features: Features
    width: float
    ridge: float
    points: Floats
    weights: Floats
    mean: float

    def __call__(self, shares: Floats) -> Floats:
        found: Floats = self.mean + _gaussian(self.features(shares), self.points, self.width) @ self.weights
        return found

    def slope(self, shares: Floats) -> Floats:
        at = self.features(shares)
        each = _gaussian(at, self.points, self.width) * self.weights
        return self.features.slope(shares, (each[:, None] * (self.points - at)).sum(0) / self.width**2)

    def again(self, shares: Floats, losses: Floats) -> Kernel:
        """Return a kernel model with the same settings, fitted to other runs."""
        return _fit_kernel(self.features, self.width, self.ridge, shares, losses)


def choose(shares: Floats, losses: Floats) -> tuple[Kernel, Floats]:
    """Choose the kernel settings with the lowest squared leave-one-out error.

    Return the kernel with these settings, fitted to all runs, and its leave-one-out prediction for each run, [N].
    """
    features, width, ridge, held = min(
        _kernel_left_out(shares, losses), key=lambda tried: float(np.mean((tried[3] - losses) ** 2))
    )
    return _fit_kernel(features, width, ridge, shares, losses), held


def _kernel_left_out(shares: Floats, losses: Floats) -> Iterator[tuple[Features, float, float, Floats]]:
    """Yield each kernel setting with its leave-one-out predictions for all runs.

    The predictions come from the closed form residual / (1 - leverage). All ridge strengths share one
    eigendecomposition of a Gram matrix, and no matrix of leverages is computed.
    """
    for features, width in product(FEATURES, WIDTHS):
        points = features(shares)
        values, vectors = np.linalg.eigh(_gaussian(points, points, width))
        values, squares = np.maximum(values, 0.0), vectors**2
        ones, projected = vectors.sum(0), vectors.T @ losses
        for ridge in RIDGES:
            kept = values / (values + ridge)
            lost = (1 - vectors @ (kept * ones)) / len(points)  # the mean is fitted too
            fitted = vectors @ (kept * projected) + lost * losses.sum()
            yield features, width, ridge, losses - (losses - fitted) / (1 - squares @ kept - lost)


def _fit_kernel(features: Features, width: float, ridge: float, shares: Floats, losses: Floats) -> Kernel:
    points, mean = features(shares), float(losses.mean())
    gram = _gaussian(points, points, width) + ridge * np.eye(len(points))
    weights = np.asarray(np.linalg.solve(gram, losses - mean), np.float64)
    return Kernel(features, width, ridge, points, weights, mean)


def _gaussian(left: Floats, right: Floats, width: float) -> Floats:
    """Return the Gaussian kernel exp(-|l - r|^2 / 2 width^2), with [..., M, F] and [N, F] as inputs and [..., M, N] as
    output."""
    squares = (left**2).sum(-1)[..., None] + (right**2).sum(-1) - 2 * left @ right.T
    found: Floats = np.exp(-np.maximum(squares, 0.0) / (2 * width**2))
    return found


Family = Literal["mean", "log-linear", "kernel"]

#: Minimum number of runs for a surrogate.
FEWEST = 4
#: A family must have at most this share of the mean's squared leave-one-out error, or shares explain nothing.
EXPLAINS = 0.5
#: Maximum number of runs for exact leave-one-out fits of the law.
REFITTED = 64
#: Bound of the law's constant and slopes.
LIMIT = 50.0


class Surrogate(Protocol):
    """Interface for a surrogate, which predicts the loss from mixture shares."""

    def __call__(self, shares: Floats) -> Floats:
        """Return the predicted losses [...] for mixture shares [..., K]."""

    def slope(self, shares: Floats) -> Floats:
        """Return the gradient [K] of the predicted loss at mixture shares [K]."""


@dataclass(frozen=True)
class LogLinear:
    """Log-linear law of data mixing, c + exp(w . t), convex in the shares w (arXiv:2403.16952). `slopes` is t, [K]."""

    least: float
    slopes: Floats

    def __call__(self, shares: Floats) -> Floats:
        found: Floats = self.least + np.exp(shares @ self.slopes)
        return found

    def slope(self, shares: Floats) -> Floats:
        found: Floats = np.exp(shares @ self.slopes) * self.slopes
        return found


@dataclass(frozen=True)
class Mean:
    """Surrogate that predicts the mean loss of all runs for any shares."""

    value: float

    def __call__(self, shares: Floats) -> Floats:
        return np.full(np.shape(shares)[:-1], self.value)

    def slope(self, shares: Floats) -> Floats:
        return np.zeros(len(shares))


@dataclass(frozen=True)
class FittedSurrogate:
    """Surrogate fitted to the runs of a swarm, with the errors by which it was chosen.

    Args:
        family: the chosen family; `mean` if no other family explains the runs.
        errors: root mean squared leave-one-out error of each family, in bits per byte.
        held_out: leave-one-out prediction of the chosen family for each run, [N].
    """

    loss: Surrogate
    family: Family
    errors: Mapping[Family, float]
    held_out: Floats


def fit(shares: Floats, losses: Floats) -> FittedSurrogate:
    """Fit all surrogate families, and return the family with the lowest leave-one-out error, fitted to all runs.

    Args:
        shares: mixture shares of each run, [N, K]; rows add up to 1.
        losses: bits per byte of each run, [N].

    Raises:
        RequestError: there are fewer than `FEWEST` runs, or a loss is not a number.
    """
    if len(shares) < FEWEST or not np.isfinite(losses).all():
        raise RequestError(
            f"a surrogate needs at least {FEWEST} runs with losses",
            found=f"{int(np.isfinite(losses).sum())} of {len(losses)}",
        )
    kernel, left_out = choose(shares, losses)
    held: dict[Family, Floats] = {
        "mean": (losses.sum() - losses) / (len(losses) - 1),
        "kernel": left_out,
        "log-linear": _left_out(shares, losses),
    }
    errors = {name: float(np.sqrt(np.mean((found - losses) ** 2))) for name, found in held.items()}
    best = min(held, key=lambda name: errors[name])
    if errors[best] ** 2 > EXPLAINS * errors["mean"] ** 2:
        best = "mean"
    fitted: Surrogate = Mean(float(losses.mean()))
    if best == "kernel":
        fitted = kernel
    elif best == "log-linear":
        fitted = _log_linear(shares, losses)
    return FittedSurrogate(fitted, best, errors, held[best])


def again(known: Surrogate, shares: Floats, losses: Floats) -> Surrogate:
    """Refit a surrogate to other runs, with the same family and settings. The bootstrap uses this.

    If a bootstrap draw contains a run twice, leave-one-out on the draw would choose settings that overfit.
    """
    if isinstance(known, LogLinear):
        return _log_linear(shares, losses, known)
    if isinstance(known, Kernel):
        return known.again(shares, losses)
    return Mean(float(losses.mean()))


def _log_linear(shares: Floats, losses: Floats, start: LogLinear | None = None) -> LogLinear:
    """Fit the log-linear law to mixture shares and losses by least squares.

    The fit starts from linear solutions of log(loss - c) for several c, refines each of them, and keeps the best.
    """
    spread = max(float(np.ptp(losses)), 1e-6)
    starts = [start] if start else []
    for part in (0.1, 0.5, 2.0) if start is None else ():
        least = float(losses.min()) - part * spread
        slopes, *_ = np.linalg.lstsq(shares, np.log(losses - least), rcond=None)
        starts.append(LogLinear(least, np.asarray(slopes, np.float64)))
    # slopes that the runs do not decide stay small
    tether = 1e-3 * spread

    centring = tether * (np.eye(shares.shape[1]) - 1 / shares.shape[1])

    def residuals(at: Floats) -> Floats:
        return np.concatenate([at[0] + np.exp(shares @ at[1:]) - losses, centring @ at[1:]])

    def jacobian(at: Floats) -> Floats:
        rows = np.exp(shares @ at[1:])[:, None] * shares
        top = np.concatenate([np.ones((len(shares), 1)), rows], axis=1)
        return np.concatenate([top, np.concatenate([np.zeros((len(centring), 1)), centring], axis=1)])

    from scipy.optimize import least_squares

    solved = [
        least_squares(residuals, np.clip(np.r_[one.least, one.slopes], -LIMIT, LIMIT), jacobian, bounds=(-LIMIT, LIMIT))
        for one in starts
    ]
    best = min(solved, key=lambda one: one.cost)
    return LogLinear(float(best.x[0]), best.x[1:])


def _left_out(shares: Floats, losses: Floats) -> Floats:
    """Return leave-one-out predictions of the log-linear law, [N].

    If there are many runs, the law is not refitted: the predictions are computed from the leverage of its
    linearization.
    """
    whole = _log_linear(shares, losses)
    if len(losses) > REFITTED:
        return _by_leverage(whole, shares, losses)
    found = np.empty(len(losses))
    for at in range(len(losses)):
        keep = np.arange(len(losses)) != at
        found[at] = _log_linear(shares[keep], losses[keep], whole)(shares[at])
    return found


def _by_leverage(law: LogLinear, shares: Floats, losses: Floats) -> Floats:
    """Return leave-one-out predictions by residual / (1 - leverage), with the law linearized around its fit.

    The approximation is accurate for many runs, because leaving out one of many runs hardly changes the fit.
    """
    slopes = np.concatenate([np.ones((len(shares), 1)), np.exp(shares @ law.slopes)[:, None] * shares], axis=1)
    ridge = (1e-3 * max(float(np.ptp(losses)), 1e-6)) ** 2 * np.eye(slopes.shape[1])
    leverage = (slopes * np.linalg.solve(slopes.T @ slopes + ridge, slopes.T).T).sum(1)
    found: Floats = losses - (losses - law(shares)) / (1 - leverage)
    return found
