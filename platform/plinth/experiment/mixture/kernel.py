"""Kernel ridge regression of losses on shares and their logarithms, with all its settings chosen by leave-one-out.

K  streams
N  runs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Coordinates of a mixture: its shares times `own`, and logarithms of shares + `least` times `logarithm`.

    A factor of 0 leaves the coordinates out. `least` keeps the logarithm of a share of 0 finite: below it, streams
    count as left out.
    """

    own: float
    logarithm: float
    least: float

    def __call__(self, shares: Floats) -> Floats:
        """Shares [..., K] to features [..., 2K]."""
        parts = [self.own * shares, self.logarithm * np.log(shares + self.least)]
        found: Floats = np.concatenate(parts, axis=-1)
        return found

    def slope(self, shares: Floats, by_feature: Floats) -> Floats:
        """The gradient by shares, [K], of a function whose gradient by features, [2K], is known."""
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
    """Ridge regression with a Gaussian kernel on the features of shares; `weights` [N], `points` [N, 2K]."""

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
        """The same settings fitted to other runs."""
        return _fit(self.features, self.width, self.ridge, shares, losses)


def choose(shares: Floats, losses: Floats) -> tuple[Kernel, Floats]:
    """The settings with the least squared leave-one-out error, fitted to all runs, and what it foretells of each
    run without it, [N]."""
    features, width, ridge, held = min(
        _left_out(shares, losses), key=lambda tried: float(np.mean((tried[3] - losses) ** 2))
    )
    return _fit(features, width, ridge, shares, losses), held


def _left_out(shares: Floats, losses: Floats) -> Iterator[tuple[Features, float, float, Floats]]:
    """Each setting with what it foretells of every run without it; closed: residual / (1 - leverage).

    One eigendecomposition of a Gram matrix serves all ridges, and no matrix of leverages is formed.
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


def _fit(features: Features, width: float, ridge: float, shares: Floats, losses: Floats) -> Kernel:
    points, mean = features(shares), float(losses.mean())
    gram = _gaussian(points, points, width) + ridge * np.eye(len(points))
    weights = np.asarray(np.linalg.solve(gram, losses - mean), np.float64)
    return Kernel(features, width, ridge, points, weights, mean)


def _gaussian(left: Floats, right: Floats, width: float) -> Floats:
    """exp(-|l - r|^2 / 2 width^2), [..., M, F] and [N, F] to [..., M, N]."""
    squares = (left**2).sum(-1)[..., None] + (right**2).sum(-1) - 2 * left @ right.T
    found: Floats = np.exp(-np.maximum(squares, 0.0) / (2 * width**2))
    return found
