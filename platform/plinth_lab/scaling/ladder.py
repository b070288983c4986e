"""Design of a scaling ladder, and a ladder as an experiment.

A ladder has runs for all sizes and horizons, as overlays of a recipe. Hyperparameters follow rules, and the FLOPs are
known before the runs start. The rules come from OLMo-core's ladder (`model_ladder/wsds_chinchilla_run_configurator.py`,
after Porian et al. 2406.19146), for N parameters without embeddings:

    batch    2048 x 160 (N / 108M)^(2/3) tokens
    rate     0.0047 (N / 108M)^(-1/3) / 2
    beta2    0.95 for batches of at least 524,288 tokens, 0.99 below
    warm-up  N tokens
    decay    the last tenth, linear
    horizon  0.5, 1, 2, 4 ... times 20 N tokens

With `mup_base_dim`, the recipe has the same learning rate for all widths, and muP scales it. OLMo-core gets all
horizons from one run that decays and warms up again. Here each horizon is a separate run, and its cost is counted.

With `experts`, every size has a mixture of experts with the active parameters of the dense preset; N is the number of
active parameters. The joint law of Ludziejewski et al. 2502.05172, L(N, D, E) with E experts, is the fitted law of N
and D if E is the same in all runs.

As an experiment, a law fitted to the smaller sizes predicts the held-out size:

    runs of the smaller sizes -> horizons -> law -> forecast, stored before the held-out size starts
    run of the held-out size -> horizons -> measured loss next to the forecast

A run that decays at several horizons (`training.optimizer.horizons`) gives a point for the law at each horizon and at
its end. Checkpoints between horizons give no points, because their learning rate has not decayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from plinth.errors import RequestError
from plinth.model.architectures import flops_exact, parameters
from plinth.model.parameters import PRESETS, Model, PresetName
from plinth.model.sparsity import Experts
from plinth.records import Frozen, Manifest
from plinth_lab.experiments.arms import Arm
from plinth_lab.scaling.fit import DRAWS, ScalingFit, ScalingRun, fit
from plinth_lab.scaling.predict import Optimum, PredictedOutcome, ScalingPrediction, optimum, predict

#: N of Porian et al. at which their rules have their constants.
REFERENCE = 108_000_000
LARGE_BATCH = 524_288


class LadderDesign(Frozen):
    """Model sizes and horizons of a scaling ladder."""

    sizes: tuple[PresetName, ...] = Field(min_length=1)
    horizons: tuple[float, ...] = Field((0.5, 1.0, 2.0, 4.0), min_length=1)  # in multiples of `tokens_per_parameter` N
    tokens_per_parameter: float = Field(20.0, gt=0)
    vocab_size: int = Field(ge=1)
    sequence_tokens: int = Field(ge=8)
    batch_multiple: int = Field(4, ge=1)  # sequences: ranks x micro batch
    decay_fraction: float = Field(0.1, gt=0, lt=0.5)
    experts: Experts | None = None  # `ffn_dim` follows from the size
    mup_base_dim: int | None = Field(None, ge=8)
    mup_lr: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _both_of_mup(self) -> LadderDesign:
        if (self.mup_base_dim is None) != (self.mup_lr is None):
            raise ValueError("muP needs both mup_base_dim and mup_lr, the learning rate tuned at that width")
        if any(horizon <= 0 for horizon in self.horizons):
            raise ValueError("every horizon must be above 0")
        return self


class Rung(Frozen):
    """One run of a scaling ladder. `flops` are exact training FLOPs; `overlay` has the recipe keys of the run."""

    name: str
    params: int  # N of the law: all, or with experts the active ones
    total_params: int
    tokens: int
    flops: int
    overlay: Mapping[str, Any]


def rungs(design: LadderDesign) -> tuple[Rung, ...]:
    """Return the runs of a scaling ladder, sorted by size, then horizon."""
    return tuple(_rung(design, size, horizon) for size in design.sizes for horizon in sorted(design.horizons))


def price(ladder: tuple[Rung, ...]) -> int:
    """Return the total training FLOPs of all runs of a ladder."""
    return sum(rung.flops for rung in ladder)


def batch_tokens(params: int) -> int:
    """Return the number of tokens per step for a model size, before it is rounded to whole sequences."""
    tokens: float = 2048 * 160 * (params / REFERENCE) ** (2 / 3)
    return round(tokens)


def learning_rate(params: int) -> float:
    """Return the peak learning rate for a model size: half of Porian et al.'s rate, as OLMo-core uses it for WSD."""
    return float(0.0047 * (params / REFERENCE) ** (-1 / 3) / 2)


def _rung(design: LadderDesign, size: PresetName, horizon: float) -> Rung:
    chosen: dict[str, Any] = {"preset": size}
    if design.mup_base_dim is not None:
        chosen["mup"] = design.mup_base_dim
    if design.experts is not None:
        uses = design.experts.active + design.experts.shared
        experts = design.experts.model_copy(update={"ffn_dim": PRESETS[size].ffn_dim // uses})
        chosen |= {"qk_norm": True, "experts": experts.model_dump(exclude_defaults=True)}
    model = Model.model_validate(chosen)
    counted = parameters(model, design.vocab_size)
    inner = counted.products + counted.norms
    whole = design.sequence_tokens * design.batch_multiple
    batch = max(1, round(batch_tokens(inner) / whole)) * whole
    steps = max(1, round(horizon * design.tokens_per_parameter * inner / batch))
    tokens = steps * batch
    optimizer = {
        "lr": design.mup_lr or learning_rate(inner),
        "beta2": 0.95 if batch >= LARGE_BATCH else 0.99,
        "schedule": "wsd",
        "warmup_fraction": min(inner / tokens, 1 - design.decay_fraction),
        "decay_fraction": design.decay_fraction,
    }
    return Rung(
        name=f"{size}-{horizon:g}x".replace(".", "_"),
        params=counted.active,
        total_params=counted.total,
        tokens=tokens,
        flops=flops_exact(model, design.vocab_size, design.sequence_tokens) * tokens,
        overlay={
            "mixture": {"total_tokens": tokens, "sequence_tokens": design.sequence_tokens},
            "training": {
                "model": chosen,
                "optimizer": optimizer,
                "global_batch_sequences": batch // design.sequence_tokens,
            },
        },
    )


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
