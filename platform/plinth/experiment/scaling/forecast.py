"""A ladder as an experiment: the law of its smaller sizes, and what it foretells of the one that is held out.

    runs of the smaller sizes -> horizons -> law -> forecast, stored before the held-out size is begun
    run of the held-out size -> horizons -> the truth beside the forecast

A run that decays at several horizons (`training.optimizer.horizons`) gives a point of the law at each of them, and at
its end; checkpoints between them, of a rate that has not fallen, are no points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plinth.errors import RequestError
from plinth.experiment.arms import Arm
from plinth.experiment.scaling.fit import DRAWS, ScalingFit, ScalingRun, fit
from plinth.experiment.scaling.optima import Optimum, optimum
from plinth.experiment.scaling.predict import PredictedOutcome, ScalingPrediction, predict
from plinth.model.flops import parameters
from plinth.records import Frozen, Manifest

#: Steps and shares of tokens are both rounded: a checkpoint this near to a horizon, as a share of it, is at it.
AT = 0.005
#: Draws of a backtest, which has 80% intervals alone.
BACKTEST_DRAWS = 1_000


class LadderOutcome(Frozen):
    """The truth of a size at a horizon, beside what was foretold without it."""

    run: ScalingRun
    outcome: PredictedOutcome


class LadderForecast(Frozen):
    """What the smaller sizes say of the held-out one, by horizon; without `fit`, `why` says what is missing."""

    held_out: str
    runs: tuple[ScalingRun, ...]
    why: str = ""
    fit: ScalingFit | None = None
    predictions: tuple[ScalingPrediction, ...] = ()
    optimum: Optimum | None = None  # of the held-out run's own budget
    backtest: tuple[LadderOutcome, ...] = ()  # the largest of the smaller sizes, foretold by those below it


def horizons(arm: Arm, made: Manifest) -> list[ScalingRun]:
    """Points of the law that a finished run of an experiment gives; none if it did not finish."""
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
    """N of a run: all its parameters, by the vocabulary that the recipe asks for."""
    return parameters(arm.recipe.training.model, arm.recipe.tokenizer.vocab_size).total


def forecast(
    arms: Sequence[Arm], made: Mapping[str, Manifest], held_out: str, *, draws: int = DRAWS
) -> LadderForecast:
    """Fit the law to the runs of all other sizes, and foretell every horizon of the one that is held out.

    Args:
        arms: all runs of the experiment.
        made: manifests of those of the other sizes, by asset.
        draws: of the bootstrap.
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
    """The largest size of these runs, foretold by the others: how far to trust a forecast, before its truth is known.

    Empty where the others determine no law.
    """
    largest = max(run.params for run in runs)
    try:
        fitted = fit([run for run in runs if run.params < largest], draws=draws)
        known = [(run, predict(fitted, run.params, run.tokens)) for run in runs if run.params == largest]
    except RequestError:
        return ()
    return tuple(LadderOutcome(run=run, outcome=one.compare(run.loss)[0]) for run, one in known)


def outcomes(foretold: LadderForecast, arms: Sequence[Arm], made: Mapping[str, Manifest]) -> list[LadderOutcome]:
    """Every horizon of the held-out runs beside its prediction."""
    held = [point for one in arms if one.size == foretold.held_out for point in horizons(one, made[one.asset])]
    return [
        LadderOutcome(run=point, outcome=outcome)
        for point in held
        for one in foretold.predictions
        if abs(one.tokens - point.tokens) <= AT * one.tokens
        for outcome in one.compare(point.loss)
    ]
