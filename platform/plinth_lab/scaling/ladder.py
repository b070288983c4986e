"""A scaling ladder as an experiment: a law fitted to the smaller sizes predicts the held-out size.

    runs of the smaller sizes -> horizons -> law -> forecast, stored before the held-out size starts
    run of the held-out size -> horizons -> measured loss next to the forecast

A run that decays at several horizons (`training.optimizer.horizons`) gives a point for the law at each horizon and at
its end. Checkpoints between horizons give no points, because their learning rate has not decayed.

With a mixture of experts, N is the number of active parameters. The joint law of Ludziejewski et al. 2502.05172,
L(N, D, E) with E experts, is the fitted law of N and D if E is the same in all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plinth.errors import RequestError
from plinth.model.architectures import parameters
from plinth.records import Frozen, Manifest
from plinth_lab.experiments.arms import Arm
from plinth_lab.scaling.fit import DRAWS, ScalingFit, ScalingRun, fit
from plinth_lab.scaling.predict import Optimum, PredictedOutcome, ScalingPrediction, optimum, predict

#: Steps and shares of tokens are both rounded: a checkpoint this near to a horizon, as a share of it, is at it.
AT = 0.005
#: Draws of a backtest, which has 80% intervals alone.
BACKTEST_DRAWS = 1_000


class LadderOutcome(Frozen):
    """Measured loss of a model size at a horizon, with the prediction from the other sizes."""

    run: ScalingRun
    outcome: PredictedOutcome


class LadderForecast(Frozen):
    """Prediction of the losses of the held-out size from the other sizes, by horizon.

    If `fit` is None, `why` has the reason.
    """

    held_out: str
    runs: tuple[ScalingRun, ...]
    why: str = ""
    fit: ScalingFit | None = None
    predictions: tuple[ScalingPrediction, ...] = ()
    optimum: Optimum | None = None  # of the held-out run's own budget
    backtest: tuple[LadderOutcome, ...] = ()  # the largest of the smaller sizes, predicted by those below it


def horizons(arm: Arm, made: Manifest) -> list[ScalingRun]:
    """Return the points (parameters, tokens, loss) that a run gives for the law, one per horizon.

    The list is empty if the run did not finish.
    """
    if made.stats["status"] != "finished":
        return []
    found = []
    for tokens in arm.horizons:
        near = [(one, loss) for _, one, loss in made.stats["curve"] if abs(one - tokens) <= AT * tokens]
        if near:
            at, loss = min(near, key=lambda point: abs(point[0] - tokens))
            found.append(ScalingRun(params=size(arm), tokens=at, loss=loss, trunk=arm.branch))
    return found


def size(arm: Arm) -> int:
    """Return the number of parameters that a token uses in a run's model, for the vocabulary size in the recipe."""
    return parameters(arm.recipe.training.model, arm.recipe.tokenizer.vocab_size).active


def forecast(arms: Sequence[Arm], made: Mapping[str, Manifest], held_out: str, *, draws: int = DRAWS) -> LadderForecast:
    """Fit the scaling law to the runs of all other sizes, and predict the loss of the held-out size at every horizon.

    Args:
        arms: all runs of the experiment.
        made: manifests of the runs of the other sizes, by asset.
        draws: number of bootstrap draws.
    """
    runs = tuple(point for one in arms if one.size != held_out for point in horizons(one, made[one.asset]))
    target = next(one for one in arms if one.size == held_out)
    try:
        fitted = fit(runs, draws=draws)
        predictions = tuple(predict(fitted, size(target), tokens) for tokens in target.horizons)
        best = optimum(fitted, predictions[-1].flops)
    except RequestError as error:
        return LadderForecast(held_out=held_out, runs=runs, why=error.brief)
    return LadderForecast(
        held_out=held_out, runs=runs, fit=fitted.fit, predictions=predictions, optimum=best,
        backtest=backtest(runs, draws=min(draws, BACKTEST_DRAWS)),
    )  # fmt: skip


def backtest(runs: Sequence[ScalingRun], *, draws: int = BACKTEST_DRAWS) -> tuple[LadderOutcome, ...]:
    """Predict the largest size in `runs` from the smaller sizes, and compare the prediction with its measured losses.

    This shows how good a forecast is before the forecast's own result is known. The result is empty if the smaller
    sizes determine no law.
    """
    largest = max(run.params for run in runs)
    try:
        fitted = fit([run for run in runs if run.params < largest], draws=draws)
        known = [(run, predict(fitted, run.params, run.tokens)) for run in runs if run.params == largest]
    except RequestError:
        return ()
    return tuple(LadderOutcome(run=run, outcome=one.compare(run.loss)[0]) for run, one in known)


def outcomes(foretold: LadderForecast, arms: Sequence[Arm], made: Mapping[str, Manifest]) -> list[LadderOutcome]:
    """Return the measured losses of the held-out size at every horizon, each with its prediction."""
    held = [point for one in arms if one.size == foretold.held_out for point in horizons(one, made[one.asset])]
    return [
        LadderOutcome(run=point, outcome=outcome)
        for point in held
        for one in foretold.predictions
        if abs(one.tokens - point.tokens) <= AT * one.tokens
        for outcome in one.compare(point.loss)
    ]
