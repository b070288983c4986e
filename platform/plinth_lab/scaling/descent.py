"""Newton's method on the published objective, for many weightings of the same runs at once.

    sum over runs of  weight x Huber(ln L - ln(exp(p - alpha n) + exp(q - beta d) + exp(s)))

    R  runs
    K  weightings: 1 of a fit, thousands of its bootstrap
    n, d  ln N and ln D less their means, [R], so that A hardly moves with alpha, nor B with beta
    theta  (p, q, s, alpha, beta), [K, 5]

The Hessian is exact: beyond delta Huber's function is straight, and a Gauss-Newton step would know nothing there.
Eigenvalues count by their size, so that no step climbs to a saddle; steps that do not descend are damped
(Levenberg-Marquardt).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ITERATIONS = 200
#: Change of every parameter at which a descent ends.
STEP = 1e-10
#: Eigenvalues of the scaled Hessian count as at least this.
FLATTEST = 1e-10
#: Residuals held at once, so that they stay in a processor's cache.
_VALUES = 1 << 14


@dataclass(frozen=True)
class Surface:
    """What does not change during a descent: coordinates and ln L, [R], and bounds of theta, [5]."""

    n: Floats
    d: Floats
    log_loss: Floats
    low: Floats
    high: Floats

    def parts(self, theta: Floats) -> tuple[Floats, Floats]:
        """Shares of the three terms in the loss, [3, K, R], and residuals of ln L, [K, R]."""
        terms = np.empty((3, len(theta), len(self.n)))
        np.subtract(theta[:, 0, None], theta[:, 3, None] * self.n, out=terms[0])
        np.subtract(theta[:, 1, None], theta[:, 4, None] * self.d, out=terms[1])
        terms[2] = theta[:, 2, None]
        most = terms.max(axis=0)
        shares = np.exp(terms - most)
        total = shares.sum(axis=0)
        return shares / total, self.log_loss - most - np.log(total)

    def slopes(self, shares: Floats) -> Floats:
        """d ln L / d theta, [K, R, 5]."""
        return np.stack([*shares, -self.n * shares[0], -self.d * shares[1]], axis=-1)


def huber(residuals: Floats, delta: float) -> Floats:
    """Half the square up to delta, straight beyond it."""
    size = np.abs(residuals)
    return np.where(size <= delta, 0.5 * residuals**2, delta * (size - 0.5 * delta))


def descend(
    surface: Surface, theta: Floats, weights: Floats, deltas: tuple[float, ...]
) -> tuple[Floats, Floats, Bools]:
    """Minima for each weighting, through a row of deltas that ends with the one that counts.

    Args:
        theta: where each begins, [K, 5].
        weights: [K, R].

    Returns:
        theta [K, 5], the objective [K], and whether each has converged, [K].
    """
    rows = max(1, _VALUES // max(1, len(surface.n)))
    found = []
    for start in range(0, len(theta), rows):
        at, own = theta[start : start + rows], weights[start : start + rows]
        for delta in deltas:
            at, value, done = _descend(surface, at, own, delta)
        found.append((at, value, done))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    return columns[0], columns[1], columns[2]


def _descend(surface: Surface, theta: Floats, weights: Floats, delta: float) -> tuple[Floats, Floats, Bools]:
    theta = theta.copy()
    damping, converged, active = np.full(len(theta), 1e-3), np.zeros(len(theta), bool), np.arange(len(theta))
    value = (weights * huber(surface.parts(theta)[1], delta)).sum(axis=1)
    for _ in range(ITERATIONS):
        now, own = theta[active], weights[active]
        gradient, hessian, scale = _curvature(surface, now, own, delta)
        stuck = ((now <= surface.low) & (gradient > 0)) | ((now >= surface.high) & (gradient < 0))
        step = _step(gradient, hessian, scale, damping[active], stuck)
        then = np.clip(now + step, surface.low, surface.high)
        after = (own * huber(surface.parts(then)[1], delta)).sum(axis=1)
        better = after <= value[active]
        # where rounding keeps the objective from falling, what is left to gain says whether this is the minimum
        left = -(gradient * (then - now)).sum(axis=1)
        small = np.abs(then - now).max(axis=1) < STEP
        done = small | (left <= 1e-13 * value[active])
        theta[active[better]] = then[better]
        value[active[better]] = after[better]
        damping[active] = np.clip(np.where(better, damping[active] / 5, damping[active] * 8), 1e-12, 1e12)
        converged[active[done]] = True
        active = active[~(done | (damping[active] >= 1e12))]
        if not len(active):
            break
    return theta, value, converged


def _curvature(surface: Surface, theta: Floats, weights: Floats, delta: float) -> tuple[Floats, Floats, Floats]:
    """Gradient [K, 5], Hessian [K, 5, 5], and the scale of each parameter, [K, 5]."""
    shares, residuals = surface.parts(theta)
    slopes = surface.slopes(shares)
    pull = weights * np.clip(residuals, -delta, delta)
    gradient = -np.matmul(slopes.transpose(0, 2, 1), pull[..., None])[..., 0]
    # ln of a sum of exponentials curves by its shares, less the product of its slopes
    near = weights * (np.abs(residuals) <= delta) + pull
    hessian = np.matmul((slopes * near[..., None]).transpose(0, 2, 1), slopes)
    for term, (place, coordinate) in enumerate(((3, -surface.n), (4, -surface.d))):
        curved = pull * shares[term]
        hessian[:, term, term] -= curved.sum(axis=1)
        across = (curved * coordinate).sum(axis=1)
        hessian[:, term, place] -= across
        hessian[:, place, term] -= across
        hessian[:, place, place] -= (curved * coordinate**2).sum(axis=1)
    hessian[:, 2, 2] -= (pull * shares[2]).sum(axis=1)
    bent = weights * delta / np.maximum(np.abs(residuals), delta)
    scale = np.sqrt(np.matmul((slopes**2).transpose(0, 2, 1), bent[..., None])[..., 0])
    return gradient, hessian, np.maximum(scale, 1e-150)


def _step(gradient: Floats, hessian: Floats, scale: Floats, damping: Floats, stuck: Bools) -> Floats:
    """The damped Newton step, [K, 5]; parameters that press against a bound stay."""
    free = ~stuck
    scaled = hessian / (scale[:, :, None] * scale[:, None, :]) * (free[:, :, None] & free[:, None, :])
    scaled += np.eye(5) * np.where(stuck, 1.0, damping[:, None])[:, :, None]
    values, vectors = np.linalg.eigh(scaled)
    along = np.matmul(vectors.transpose(0, 2, 1), (gradient / scale * free)[..., None])[..., 0]
    moved = np.matmul(vectors, (along / np.maximum(np.abs(values), FLATTEST))[..., None])[..., 0]
    return np.asarray(-moved / scale)
