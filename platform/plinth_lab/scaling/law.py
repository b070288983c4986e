"""The law of loss over parameters and tokens, L(N, D) = E + A / N^alpha + B / D^beta, and what it makes optimal.

    N  parameters
    D  tokens trained on, repeated ones included
    U  unique tokens; D' tokens that are worth as much as D when no token is repeated
    C  FLOPs: 6 N D of training (Hoffmann et al. 2203.15556), 2 N of a token of inference (Sardana et al. 2401.00448)

All optima share one condition. Along a curve of equal cost, parameters and tokens bring the same where

    alpha A N^-alpha = beta B D'^-beta (d ln D' / d ln D) (1 + I / 3D),

with I the tokens of inference. Its left side falls with N; on a curve of equal cost, or of equal loss, its right side
rises. So there is one root, and it is found to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plinth.errors import RequestError
from plinth.records import Frozen

Amount = TypeVar("Amount", float, NDArray[np.float64])

#: R* of Muennighoff et al. 2305.16264: so many repetitions, at most, are worth as much as new text.
WORTH_OF_REPETITION = 15.387756
#: Optima are looked for between these numbers of parameters.
FEWEST, MOST = 1.0, 1e18
#: Stands for infinity where a root is bracketed.
_VAST = 1e300


class DataReuse(Frozen):
    """What repeated tokens are worth: D' = U + U R* (1 - exp(-(D/U - 1) / R*)) (Muennighoff et al. 2305.16264).

    The same paper lets surplus parameters lose worth too; that half of it is left out here.
    """

    unique_tokens: float = Field(gt=0)
    worth: float = Field(WORTH_OF_REPETITION, gt=0)

    def effective(self, tokens: float) -> float:
        """D' of D."""
        if tokens <= self.unique_tokens:
            return tokens
        repeated = tokens / self.unique_tokens - 1
        return self.unique_tokens * (1 - self.worth * math.expm1(-repeated / self.worth))

    def tokens(self, effective: float) -> float:
        """D of D'; infinite from `limit` on."""
        if effective <= self.unique_tokens:
            return effective
        if effective >= self.limit:
            return math.inf
        repeated = -self.worth * math.log1p(-(effective / self.unique_tokens - 1) / self.worth)
        return self.unique_tokens * (1 + repeated)

    @property
    def limit(self) -> float:
        """What any number of repetitions stays below."""
        return self.unique_tokens * (1 + self.worth)

    def elasticity(self, tokens: float) -> float:
        """d ln D' / d ln D: 1 until tokens repeat."""
        if tokens <= self.unique_tokens:
            return 1.0
        repeated = tokens / self.unique_tokens - 1
        return math.exp(math.log(tokens) - repeated / self.worth) / self.effective(tokens) if tokens < math.inf else 0.0


class Allocation(Frozen):
    """How a budget is spent, or a loss is reached, at least cost; FLOPs of training and of inference apart."""

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
    """L(N, D) = E + A / N^alpha + B / D^beta, in the unit of the losses that it was fitted to."""

    E: float = Field(ge=0)
    A: float = Field(ge=0)
    B: float = Field(ge=0)
    alpha: float = Field(gt=0)
    beta: float = Field(gt=0)

    def loss(self, params: Amount, tokens: Amount) -> Amount:
        """Loss of N parameters after D tokens."""
        loss: Amount = self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta
        return loss

    @property
    def exponent(self) -> float:
        """a of N* ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def ratio(self) -> float:
        """G of N* = G (C/6)^a and D* = (C/6)^(1 - a) / G."""
        self._has_optimum()
        return float((self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta)))

    def optimum(self, flops: float, *, inference_tokens: float = 0.0, reuse: DataReuse | None = None) -> Allocation:
        """The lowest loss that a budget of FLOPs buys, training and inference together.

        Args:
            flops: 6 N D + 2 N I.
            inference_tokens: I, tokens that the model will read and write once trained.
            reuse: how much text there is; None: enough.

        Raises:
            RequestError: the budget is not above 0, or A or B is 0, so that one of N and D costs and brings nothing.
        """
        self._has_optimum()
        if not (math.isfinite(flops) and flops > 0 and math.isfinite(inference_tokens) and inference_tokens >= 0):
            raise RequestError(
                "a budget of FLOPs is a finite number above 0, tokens of inference one not below 0",
                found=f"{flops:g} and {inference_tokens:g}",
            )

        def tokens(params: float) -> float:
            return flops / (6 * params) - inference_tokens / 3

        most = flops / (2 * inference_tokens) if inference_tokens else math.inf
        params = self._balanced(tokens, FEWEST, min(MOST, most * (1 - 1e-12)), inference_tokens, reuse)
        return self._allocated(params, tokens(params), inference_tokens, reuse)

    def cheapest(self, loss: float, *, inference_tokens: float = 0.0, reuse: DataReuse | None = None) -> Allocation:
        """The fewest FLOPs that reach a loss (Sardana et al. 2401.00448 with `inference_tokens`).

        Raises:
            RequestError: no number of parameters and tokens reaches the loss, or A or B is 0.
        """
        self._has_optimum()
        floor = self.E + (0.0 if reuse is None else self.B * reuse.limit**-self.beta)
        if not loss > floor:
            text = "" if reuse is None else f" with {reuse.unique_tokens:.3g} unique tokens, however often repeated"
            raise RequestError(f"no model reaches this loss{text}", found=f"{loss:g}", expected=f"above {floor:.6g}")

        def tokens(params: float) -> float:
            left = loss - self.E - self.A * params**-self.alpha
            if left <= 0:
                return math.inf
            effective = (self.B / left) ** (1 / self.beta)
            return effective if reuse is None else reuse.tokens(effective)

        fewest = (self.A / (loss - floor)) ** (1 / self.alpha)
        params = self._balanced(tokens, fewest * (1 + 1e-12), max(MOST, 1e6 * fewest), inference_tokens, reuse)
        return self._allocated(params, tokens(params), inference_tokens, reuse)

    def _has_optimum(self) -> None:
        if not (self.A and self.B):
            raise RequestError(
                "this law has no optimum: one of its terms is 0",
                found=f"A = {self.A:g}, B = {self.B:g}",
                remedy="fit it to runs that differ more in parameters and in tokens",
            )

    def _balanced(
        self,
        tokens: Callable[[float], float],
        fewest: float,
        most: float,
        inference_tokens: float,
        reuse: DataReuse | None,
    ) -> float:
        """N at which more parameters and more tokens bring the same for their cost."""

        def surplus(log_params: float) -> float:
            """ln of what parameters bring over what tokens bring; falls with N."""
            seen = tokens(math.exp(log_params))
            if seen <= 0:
                return -_VAST
            effective, worth = (seen, 1.0) if reuse is None else (reuse.effective(seen), reuse.elasticity(seen))
            if math.isinf(seen) or worth == 0:
                return _VAST
            left = math.log(self.alpha * self.A) - self.alpha * log_params
            right = math.log(self.beta * self.B * worth) - self.beta * math.log(effective)
            return left - right - math.log1p(inference_tokens / (3 * seen))

        from scipy.optimize import brentq

        low, high = math.log(fewest), math.log(most)
        if not surplus(low) > 0 > surplus(high):
            raise RequestError(
                "the optimum lies outside of every model that could be made",
                expected=f"between {math.exp(low):.3g} and {math.exp(high):.3g} parameters",
            )
        return math.exp(brentq(surplus, low, high, xtol=1e-14, rtol=1e-14, maxiter=500))

    def _allocated(
        self, params: float, tokens: float, inference_tokens: float, reuse: DataReuse | None
    ) -> Allocation:
        effective = tokens if reuse is None else reuse.effective(tokens)
        return Allocation(
            params=params, tokens=tokens, effective_tokens=effective,
            epochs=None if reuse is None else max(1.0, tokens / reuse.unique_tokens),
            loss=self.loss(params, effective), training_flops=6 * params * tokens,
            inference_flops=2 * params * inference_tokens,
        )  # fmt: skip


#: Hoffmann et al. 2203.15556 as published, with the digits of their source.
HOFFMANN = ScalingLaw(
    E=math.exp(0.5267228), A=math.exp(6.0073404), B=math.exp(6.0179186), alpha=0.33917084, beta=0.2849083
)
#: Their runs fitted again by Besiroglu et al. 2404.10102: the full optimum over 240 runs, as their notebook prints it.
CORRECTED = ScalingLaw(E=1.81724, A=477.84, B=2143.9, alpha=0.34731, beta=0.36718)
