"""Scaling law of loss over parameters and tokens, L(N, D) = E + A / N^alpha + B / D^beta, and its optima.

    N  parameters
    D  training tokens, including repeated tokens
    U  unique tokens; D' unique tokens that are worth as much as D tokens with repetition
    C  FLOPs: 6 N D for training (Hoffmann et al. 2203.15556), 2 N per inference token (Sardana et al. 2401.00448)

All optima share one condition. Along a curve of equal cost, parameters and tokens have equal benefit if

    alpha A N^-alpha = beta B D'^-beta (d ln D' / d ln D) (1 + I / 3D),

with I inference tokens. The left side falls with N; on a curve of equal cost, the right side rises. Therefore there is
exactly one root, which is found to rounding precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plinth.errors import RequestError
from plinth.records import Frozen

Amount = TypeVar("Amount", float, NDArray[np.float64])

#: R* of Muennighoff et al. 2305.16264: decay constant of the value of repeated text, in repetitions.
WORTH_OF_REPETITION = 15.387756
#: Range of parameter counts in which optima are searched.
FEWEST, MOST = 1.0, 1e18
#: Stands for infinity where a root is bracketed.
_VAST = 1e300


class DataReuse(Frozen):
    """Value of repeated tokens: D' = U + U R* (1 - exp(-(D/U - 1) / R*)) (Muennighoff et al. 2305.16264).

    In the same paper, surplus parameters also lose value. This effect is not implemented.
    """

    unique_tokens: float = Field(gt=0)
    worth: float = Field(WORTH_OF_REPETITION, gt=0)

    def effective(self, tokens: float) -> float:
        """Return D', the number of unique tokens that D tokens with repetition are worth."""
        if tokens <= self.unique_tokens:
            return tokens
        repeated = tokens / self.unique_tokens - 1
        return self.unique_tokens * (1 - self.worth * math.expm1(-repeated / self.worth))

    def elasticity(self, tokens: float) -> float:
        """Return d ln D' / d ln D, which is 1 until tokens repeat."""
        if tokens <= self.unique_tokens:
            return 1.0
        repeated = tokens / self.unique_tokens - 1
        return math.exp(math.log(tokens) - repeated / self.worth) / self.effective(tokens)


class Allocation(Frozen):
    """Optimal parameters and tokens for a FLOPs budget.

    The FLOPs for training and for inference are separate fields.
    """

    params: float
    tokens: float
    effective_tokens: float
    epochs: float | None  # None where text is unlimited
    loss: float
    training_flops: float
    inference_flops: float

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.params

    @property
    def flops(self) -> float:
        return self.training_flops + self.inference_flops


class ScalingLaw(Frozen):
    """Scaling law L(N, D) = E + A / N^alpha + B / D^beta, in the unit of the losses that it was fitted to."""

    E: float = Field(ge=0)
    A: float = Field(ge=0)
    B: float = Field(ge=0)
    alpha: float = Field(gt=0)
    beta: float = Field(gt=0)

    def loss(self, params: Amount, tokens: Amount) -> Amount:
        """Return the predicted loss for N parameters and D training tokens."""
        loss: Amount = self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta
        return loss

    def optimum(self, flops: float, *, inference_tokens: float = 0.0, reuse: DataReuse | None = None) -> Allocation:
        """Return the parameters and tokens with the lowest loss for a FLOPs budget, which covers training and
        inference.

        Args:
            flops: budget, 6 N D + 2 N I.
            inference_tokens: I, the tokens that the model will read and write after training.
            reuse: available unique text; if None, text is unlimited.

        Raises:
            RequestError: the budget is not above 0, or A or B is 0, so that parameters or tokens have no benefit.
        """
        if not (self.A and self.B):
            raise RequestError(
                "this scaling law has no optimum, because one of its terms is 0",
                found=f"A = {self.A:g}, B = {self.B:g}",
                remedy="fit the law to runs that differ more in parameters and in tokens",
            )
        if not (math.isfinite(flops) and flops > 0 and math.isfinite(inference_tokens) and inference_tokens >= 0):
            raise RequestError(
                "the FLOPs budget must be finite and above 0, and the inference tokens must not be negative",
                found=f"{flops:g} and {inference_tokens:g}",
            )

        def tokens(params: float) -> float:
            return flops / (6 * params) - inference_tokens / 3

        def surplus(log_params: float) -> float:
            """Return the log ratio of the benefit of additional parameters to the benefit of additional tokens, at
            equal cost. The ratio falls with N."""
            seen = tokens(math.exp(log_params))
            if seen <= 0:
                return -_VAST
            effective, worth = (seen, 1.0) if reuse is None else (reuse.effective(seen), reuse.elasticity(seen))
            if worth == 0:
                return _VAST
            left = math.log(self.alpha * self.A) - self.alpha * log_params
            right = math.log(self.beta * self.B * worth) - self.beta * math.log(effective)
            return left - right - math.log1p(inference_tokens / (3 * seen))

        from scipy.optimize import brentq

        most = flops / (2 * inference_tokens) if inference_tokens else math.inf
        low, high = math.log(FEWEST), math.log(min(MOST, most * (1 - 1e-12)))
        if not surplus(low) > 0 > surplus(high):
            raise RequestError(
                "the optimum is outside the range of feasible models",
                expected=f"between {math.exp(low):.3g} and {math.exp(high):.3g} parameters",
            )
        params = math.exp(brentq(surplus, low, high, xtol=1e-14, rtol=1e-14, maxiter=500))
        trained = tokens(params)
        effective = trained if reuse is None else reuse.effective(trained)
        return Allocation(
            params=params, tokens=trained, effective_tokens=effective,
            epochs=None if reuse is None else max(1.0, trained / reuse.unique_tokens),
            loss=self.loss(params, effective), training_flops=6 * params * trained,
            inference_flops=2 * params * inference_tokens,
        )  # fmt: skip


#: Runs of Hoffmann et al. 2203.15556, fitted again by Besiroglu et al. 2404.10102: the full optimum over 240 runs, as
#: their notebook prints it.
CORRECTED = ScalingLaw(E=1.81724, A=477.84, B=2143.9, alpha=0.34731, beta=0.36718)


# Newton's method on the published objective, for many weightings of the same runs at once.
#
#     sum over runs of  weight x Huber(ln L - ln(exp(p - alpha n) + exp(q - beta d) + exp(s)))
#
#     R  runs
#     K  weightings: 1 of a fit, thousands of its bootstrap
#     n, d  ln N and ln D less their means, [R], so that A hardly moves with alpha, nor B with beta
#     theta  (p, q, s, alpha, beta), [K, 5]
#
# The Hessian is exact: beyond delta Huber's function is straight, and a Gauss-Newton step would know nothing there.
# Eigenvalues count by their size, so that no step climbs to a saddle; steps that do not descend are damped
# (Levenberg-Marquardt).

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
    """Data and bounds for fitting the law: coordinates and ln L of the runs, [R], and bounds of theta, [5]."""

    n: Floats
    d: Floats
    log_loss: Floats
    low: Floats
    high: Floats

    def parts(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return the share of each term of the law in the loss, [3, K, R], and the residuals of ln L, [K, R]."""
        terms = np.empty((3, len(theta), len(self.n)))
        np.subtract(theta[:, 0, None], theta[:, 3, None] * self.n, out=terms[0])
        np.subtract(theta[:, 1, None], theta[:, 4, None] * self.d, out=terms[1])
        terms[2] = theta[:, 2, None]
        most = terms.max(axis=0)
        shares = np.exp(terms - most)
        total = shares.sum(axis=0)
        return shares / total, self.log_loss - most - np.log(total)

    def slopes(self, shares: Floats) -> Floats:
        """Return the gradient d ln L / d theta, [K, R, 5]."""
        return np.stack([*shares, -self.n * shares[0], -self.d * shares[1]], axis=-1)


def huber(residuals: Floats, delta: float) -> Floats:
    """Return Huber's function: half the square of residuals up to delta, linear above."""
    size = np.abs(residuals)
    return np.where(size <= delta, 0.5 * residuals**2, delta * (size - 0.5 * delta))


def descend(
    surface: Surface, theta: Floats, weights: Floats, deltas: tuple[float, ...]
) -> tuple[Floats, Floats, Bools]:
    """Minimize the objective of the fit for each weighting of the runs. The values in `deltas` are used one after the
    other.

    Args:
        theta: starting points, [K, 5].
        weights: weights of the runs, [K, R].
        deltas: values of Huber's delta; the last one defines the objective.

    Returns:
        theta [K, 5], the objective [K], and a mask of converged fits, [K].
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
        # if rounding keeps the objective from falling, the remaining gain shows if this is the minimum
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
    """Return the gradient of the objective [K, 5], its Hessian [K, 5, 5], and the scale of each parameter, [K, 5]."""
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
    """Return the damped Newton step, [K, 5]. If the gradient pushes a parameter beyond its bound, the parameter does
    not move."""
    free = ~stuck
    scaled = hessian / (scale[:, :, None] * scale[:, None, :]) * (free[:, :, None] & free[:, None, :])
    scaled += np.eye(5) * np.where(stuck, 1.0, damping[:, None])[:, :, None]
    values, vectors = np.linalg.eigh(scaled)
    along = np.matmul(vectors.transpose(0, 2, 1), (gradient / scale * free)[..., None])[..., 0]
    moved = np.matmul(vectors, (along / np.maximum(np.abs(values), FLATTEST))[..., None])[..., 0]
    return np.asarray(-moved / scale)
