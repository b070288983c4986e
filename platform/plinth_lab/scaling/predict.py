"""Prediction for a larger run: its loss, and its probe scores by a sigmoid of the loss (Bhagia et al. 2412.04403).

A prediction is stored before the run starts. When the run has ended, the prediction is compared with the measured
values. The interval is for one new run: it combines the bootstrap of the law with the residuals of the runs that the
law was fitted to. Intervals of the best parameters and tokens for a budget come from the optimum of every bootstrap
draw.

    R  runs
    K  draws
    G  candidates of a sigmoid: middle and steepness
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from plinth import fingerprint
from plinth.errors import RequestError
from plinth.evaluation.statistics import Estimate, from_replicates, prediction
from plinth.launch.devices import Device
from plinth.model.architectures import parameters
from plinth.model.parameters import PRESETS, Model
from plinth.records import Frozen
from plinth_lab.scaling.fit import FAR, FEWEST_RUNS, Fitted, ScalingFit, weights_of
from plinth_lab.scaling.law import CORRECTED, Allocation, DataReuse, Floats, ScalingLaw

LEVEL = 0.8
#: Grid of middles and steepnesses for the sigmoid search.
MIDDLES, STEEPNESSES = 33, 25
_BLOCK = 256


class PredictedOutcome(Frozen):
    """Measured value of a run, with its prediction and the relative error of the prediction."""

    measure: str
    predicted: Estimate
    truth: float
    error: float  # (predicted - truth) / truth
    inside: bool


class ScalingPrediction(Frozen):
    """Predicted loss and probe scores of a run with a certain number of parameters and tokens."""

    params: float
    tokens: float
    flops: float
    extrapolation: float  # in multiples of the largest budget that was run
    far: bool
    loss: Estimate
    probes: Mapping[str, Estimate]
    unpredicted: Mapping[str, str]  # probe -> why
    fit: ScalingFit

    @property
    def digest(self) -> str:
        """Digest that identifies the prediction."""
        return fingerprint.digest(self)

    def compare(self, loss: float, probes: Mapping[str, float] | None = None) -> tuple[PredictedOutcome, ...]:
        """Compare measured values with the prediction. The loss comes first, then the predicted probes.

        Raises:
            RequestError: a probe was not predicted, or a value is 0 or not finite.
        """
        foretold = {"loss": self.loss, **{f"probe {name}": found for name, found in self.probes.items()}}
        truths = {"loss": loss, **{f"probe {name}": value for name, value in (probes or {}).items()}}
        unknown = sorted(set(truths) - set(foretold))
        if unknown:
            raise RequestError(f"the prediction has no {unknown[0]}", expected=", ".join(foretold))
        wrong = [name for name, value in truths.items() if not np.isfinite(value) or value == 0]
        if wrong:
            raise RequestError(
                f"a relative error is not defined for {wrong[0]}", found=truths[wrong[0]], expected="not 0"
            )
        return tuple(
            PredictedOutcome(
                measure=name, predicted=foretold[name], truth=truth, error=(foretold[name].value - truth) / truth,
                inside=foretold[name].low <= truth <= foretold[name].high,
            )
            for name, truth in truths.items()
        )  # fmt: skip


def predict(fitted: Fitted, params: float, tokens: float, *, level: float = LEVEL) -> ScalingPrediction:
    """Predict loss and probes of a run with N parameters and D tokens.

    Raises:
        RequestError: the runs determine no law.
    """
    law, record = fitted.law, fitted.fit
    value, drawn = law.loss(params, tokens), fitted.losses(params, tokens)
    noise = value * np.expm1(fitted.noise)
    probes: dict[str, Estimate] = {}
    unpredicted: dict[str, str] = {}
    for name in sorted({name for run in fitted.runs for name in run.probes}):
        found = _probe(fitted, name, value, drawn, level)
        if isinstance(found, str):
            unpredicted[name] = found
        else:
            probes[name] = found
    flops = 6 * params * tokens
    return ScalingPrediction(
        params=params, tokens=tokens, flops=flops, extrapolation=fitted.extrapolation(flops),
        far=fitted.extrapolation(flops) > FAR,
        loss=_loss(fitted, value, drawn, noise, level),
        probes=probes, unpredicted=unpredicted, fit=record,
    )  # fmt: skip


def _loss(fitted: Fitted, value: float, drawn: Floats, noise: Floats, level: float) -> Estimate:
    """Return the predicted loss with its interval. The lower end of the interval allows for a law without a loss floor
    E.

    E cannot be below 0, so noise can raise the floor of a bootstrap draw but never lower it below 0. Therefore draws
    without a floor (E = 0) look too extreme among the draws with a floor. If draws without a floor reach the lower
    tail, they get an interval of their own, and the lower of the two ends is used.
    """
    record, none = fitted.fit, fitted.floorless
    found = prediction(value, drawn, noise, n=record.runs, seed=record.seed, level=level)
    if none.mean() < (1 - level) / 2:
        return found
    floorless = prediction(value, drawn[none], noise, n=record.runs, seed=record.seed, level=level)
    return found.model_copy(update={"low": min(found.low, floorless.low)})


def _probe(fitted: Fitted, name: str, loss: float, drawn: Floats, level: float) -> Estimate | str:
    """Return the predicted probe score at a loss, or the reason why there is no prediction."""
    at = [i for i, run in enumerate(fitted.runs) if name in run.probes]
    if len(at) < FEWEST_RUNS:
        return f"only {len(at)} runs have scores of this probe; at least {FEWEST_RUNS} are needed"
    runs = [fitted.runs[i] for i in at]
    losses, scores = np.array([run.loss for run in runs]), np.array([run.probes[name] for run in runs])
    record = fitted.fit
    weights = np.vstack([np.ones(len(fitted.runs)), weights_of(fitted.runs, record.draws, record.seed)])[:, at]
    values, residuals = sigmoid(losses, scores, weights, np.concatenate([[loss], drawn]))
    if not np.isfinite(values).all():
        return "no sigmoid between 0 and 1 that falls with the loss fits this probe"
    noise = residuals * np.sqrt(len(at) / (len(at) - 4))
    return prediction(float(values[0]), values[1:], noise, n=len(at), seed=record.seed, level=level)


def sigmoid(losses: Floats, scores: Floats, weights: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Predict a score at a loss by the sigmoid floor + height / (1 + exp(k (loss - middle))), fitted by least squares.

    For each middle and steepness k in a grid, floor and height are one linear problem, which is solved for all
    weightings at once. Floor and ceiling are between 0 and 1, and a score falls as the loss rises.

    Args:
        losses, scores: measured values of the runs, [R].
        weights: weights of the runs, [K, R]; the first weighting gives the residuals.
        wanted: a loss for each weighting, [K].

    Returns:
        Predicted scores [K] (not finite if no candidate is allowed), and residuals [R].
    """
    span = max(float(losses.max() - losses.min()), 1e-9)
    middles = np.linspace(losses.min() - 2 * span, losses.max() + span, MIDDLES)
    steepnesses = np.geomspace(0.5, 40, STEEPNESSES) / span
    middle, steep = (grid.ravel() for grid in np.meshgrid(middles, steepnesses))
    shapes = _logistic(losses[:, None], middle, steep)  # [R, G]
    values = np.empty(len(weights))
    residuals = np.full(len(scores), np.nan)
    for start in range(0, len(weights), _BLOCK):
        own = weights[start : start + _BLOCK]
        total, ones = own.sum(axis=1)[:, None], own @ scores
        s, ss, sy = own @ shapes, own @ shapes**2, own @ (shapes * scores[:, None])
        determinant = total * ss - s**2
        with np.errstate(divide="ignore", invalid="ignore"):
            height = (total * sy - s * ones[:, None]) / determinant
            floor = (ones[:, None] - height * s) / total
            fine = (height >= 0) & (floor >= 0) & (floor + height <= 1) & (determinant > 1e-9 * total * ss)
            explained = np.where(fine, floor * ones[:, None] + height * sy, -np.inf)
        best = explained.argmax(axis=1)
        rows = np.arange(len(own))
        at = _logistic(wanted[start : start + _BLOCK], middle[best], steep[best])
        found = floor[rows, best] + height[rows, best] * at
        values[start : start + _BLOCK] = np.where(fine[rows, best], found, np.nan)
        if start == 0:
            residuals = scores - floor[0, best[0]] - height[0, best[0]] * shapes[:, best[0]]
    return values, residuals


def _logistic(losses: Floats, middle: Floats, steep: Floats) -> Floats:
    """Return 1 / (1 + exp(k (loss - middle))) without overflow."""
    return np.asarray(0.5 - 0.5 * np.tanh(0.5 * steep * (losses - middle)))


class Optimum(Frozen):
    """Best numbers of parameters and tokens for a budget. `draws` is the number of bootstrap draws that have an
    optimum."""

    flops: float
    params: Estimate
    tokens: Estimate
    draws: int


def optimum(
    fitted: Fitted, flops: float, *, inference_tokens: float = 0.0, reuse: DataReuse | None = None, level: float = 0.95
) -> Optimum:
    """Return the optimal parameters N* and tokens D* for a budget, with intervals.

    Bootstrap draws whose A or B is 0 have no optimum, and are left out.

    Raises:
        RequestError: the runs determine no law, or neither the law nor any draw has an optimum.
    """
    best = fitted.law.optimum(flops, inference_tokens=inference_tokens, reuse=reuse)
    if inference_tokens == 0 and reuse is None:
        found = _closed(fitted.drawn, flops)
    else:
        found = _searched(fitted, flops, inference_tokens, reuse)
    if not len(found):
        raise RequestError("no bootstrap draw has an optimum", remedy="add runs of other sizes")

    def interval(value: float, drawn: Floats) -> Estimate:
        own = value * (drawn / value) ** fitted.spread
        made = from_replicates(value, own, n=fitted.fit.runs, seed=fitted.fit.seed, level=level)
        return made.model_copy(update={"method": "percentile bootstrap, fractional weights"})

    params, tokens = found.T
    return Optimum(
        flops=flops, params=interval(best.params, params), tokens=interval(best.tokens, tokens), draws=len(found)
    )


def _closed(drawn: Floats, flops: float) -> Floats:
    """Return the optimal N* and D* of each bootstrap draw, [K, 2], in closed form.

    The formulas are G (C / 6)^a and (C / 6)^(1 - a) / G (Hoffmann et al. 2203.15556, equation 4).
    """
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


# The best model for a sum of money on a fleet, at the lowest and the highest utilization that the fleet may reach.
#
#     dollars -> device hours (price) -> FLOPs (peak x utilization) -> parameters and tokens (law) -> loss
#
# A law of one's own runs predicts the loss with an interval. Published constants belong to other text and another
# tokenizer: they divide the money between parameters and tokens, and say little about the loss.

#: Share of the devices' peak that published runs, most of 1B to 8B parameters, reach with bubble and communication.
UTILISATION = (0.38, 0.48)


class BoughtModel(Frozen):
    """Best model for a budget, at one utilization of the devices.

    If the law was not fitted to the user's own runs, `loss` and `extrapolation` are None.
    """

    utilisation: float
    flops: float
    best: Allocation
    preset: str = Field(description="Model preset whose number of parameters is closest to that of `best`.")
    preset_parameters: int
    loss: Estimate | None = None
    extrapolation: float | None = None


class Purchase(Frozen):
    """Device hours and wall-clock time that a budget buys, and the best model at the lowest and at the highest
    utilization."""

    devices: int
    dollars: float
    price_hour: float
    device_hours: float
    seconds: float
    models: tuple[BoughtModel, ...]


def purchase(
    dollars: float,
    count: int,
    device: Device,
    *,
    spot: bool = False,
    tokens: float | None = None,
    inference_tokens: float = 0.0,
    reuse: DataReuse | None = None,
    fitted: Fitted | None = None,
) -> Purchase:
    """Return the best model that a budget in dollars buys on a number of devices.

    Args:
        spot: True to use the price of preemptible devices.
        tokens: exact number of training tokens; if None, the optimum of the law.
        inference_tokens: tokens that the model will read and write later. Their FLOPs affect the optimum, but the
            budget does not pay for them.
        reuse: available unique text; if None, text is unlimited.
        fitted: law fitted to the user's own runs; if None, `CORRECTED`.

    Raises:
        RequestError: the device has no price, the runs determine no law, or the law has no optimum.
    """
    price = device.spot_hour if spot else device.on_demand_hour
    if price <= 0:
        raise RequestError("the device has no price", found=f"{price:g} per hour", remedy="set it in --device-table")
    hours = dollars / price
    peak = hours * 3600 * device.bf16_flops
    found = (_bought(share, share * peak, tokens, inference_tokens, reuse, fitted) for share in UTILISATION)
    return Purchase(
        devices=count, dollars=dollars, price_hour=price, device_hours=hours,
        seconds=hours * 3600 / count, models=tuple(found),
    )  # fmt: skip


def _bought(
    share: float,
    budget: float,
    tokens: float | None,
    inference_tokens: float,
    reuse: DataReuse | None,
    fitted: Fitted | None,
) -> BoughtModel:
    law = fitted.law if fitted else CORRECTED
    if tokens is None:
        best = law.optimum(budget, inference_tokens=inference_tokens, reuse=reuse)
    else:
        params, effective = budget / (6 * tokens), reuse.effective(tokens) if reuse else tokens
        best = Allocation(
            params=params, tokens=tokens, effective_tokens=effective,
            epochs=max(1.0, tokens / reuse.unique_tokens) if reuse else None,
            loss=law.loss(params, effective), training_flops=budget,
            inference_flops=2 * params * inference_tokens,
        )  # fmt: skip
    name, size = min(_presets().items(), key=lambda item: abs(math.log(item[1] / best.params)))
    foretold = predict(fitted, best.params, best.effective_tokens) if fitted else None
    return BoughtModel(
        utilisation=share, flops=budget, best=best, preset=name, preset_parameters=size,
        loss=foretold.loss if foretold else None, extrapolation=foretold.extrapolation if foretold else None,
    )  # fmt: skip


def _presets() -> dict[str, int]:
    """Return the number of parameters of every dense model preset, with the preset's own vocabulary."""
    return {
        name: parameters(Model.model_validate(shape.fields()), shape.vocab_size).total
        for name, shape in PRESETS.items()
        if shape.experts is None
    }
