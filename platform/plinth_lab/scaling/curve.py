"""Predicted loss curve of a run, from the loss curves of a scaling ladder.

    ladder's runs -> law of the losses at their horizons -> final loss of the target
                  -> shape: each segment's loss, relative to the law at the run's end
    target run    -> final loss, times the mean shape    -> simultaneous band

The scaling law describes losses after the learning rate has decayed. On the way the rate is high, and the loss is above
the law of the tokens so far: how far depends on the schedule. This is not modeled, and the law is not evaluated along
the run. The shape is measured in the ladder's own runs and expected again in the target. Therefore all runs need the
schedule of the target, in fractions of their own tokens. The band adds the uncertainty of the law (bootstrap over
training runs) and the spread of the shapes between runs (`statistics.new_curves`).

On 36 real runs of 11k to 218k parameters (two seeds, three lengths), shapes differed by 2 to 4%, while losses relative
to the law of the tokens so far differed by up to 150%. A run that is larger than the ladder is an extrapolation: the
band assumes that the law and the shape continue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from plinth.compute.context import Context
from plinth.errors import RequestError
from plinth.evaluation.statistics import new_curves, simultaneous
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.training.predicted_curve import CurvePoint, PredictedCurve, means, shape_of
from plinth_lab.experiments.arms import Arm
from plinth_lab.scaling.fit import DRAWS, Fitted, ScalingRun, fit, loss_of
from plinth_lab.scaling.ladder import size
from plinth_lab.scaling.law import Floats

#: Ends of the segments, as fractions of a run's tokens. The last one is the final loss: short, but many steps long.
ENDS: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 1.0)
#: Length of the segment before a horizon whose mean is the loss at that horizon.
LAST: Final = ENDS[-1] - ENDS[-2]
FEWEST_TRAININGS: Final = 4
#: Number of steps from which every segment has one.
FEWEST_STEPS: Final = math.ceil(1 / ENDS[0])
LEVEL: Final = 0.95


@dataclass(frozen=True)
class LadderCurve:
    """Training losses of one run of a ladder.

    `losses` has the mean loss of each segment in `ENDS`; `horizons` maps the tokens of each horizon to the loss there.
    """

    run: str
    digest: str
    params: int
    tokens: int
    shape: Mapping[str, Any]
    losses: tuple[float, ...]
    horizons: Mapping[int, float]


@dataclass(frozen=True)
class LadderCurves:
    """Loss curves of the finished runs of an experiment, the names of the runs that are too short for one, and the
    digests of all tokenizers."""

    curves: tuple[LadderCurve, ...]
    short: tuple[str, ...] = ()
    tokenizers: frozenset[str] = frozenset()


def ladder_curves(ctx: Context, arms: Sequence[Arm], made: Mapping[str, Manifest]) -> LadderCurves:
    """Return the loss curves of the finished runs of an experiment. Runs that failed are left out."""
    found, short, tokenizers = [], [], set[str]()
    for arm in arms:
        manifest = made.get(arm.asset)
        if manifest is None or manifest.stats["status"] != "finished":
            continue
        run = ctx.refs.load(manifest.inputs["run"])
        tokenizers.add(run.inputs["tokenizer"])
        (part,) = run.named("timeline.parquet")
        rows = read_table(ctx.store, part, ["tokens", "loss"]).to_pylist()
        steps = [(int(row["tokens"]), row["loss"]) for row in rows]
        name = str(run.stats["run_id"])
        if one := curve_of(name, run.digest, size(arm), shape_of(arm.recipe.training.optimizer), steps):
            found.append(one)
        else:
            short.append(name)
    return LadderCurves(tuple(found), tuple(short), frozenset(tokenizers))


def curve_of(
    run: str, digest: str, params: int, shape: Mapping[str, Any], steps: Sequence[tuple[int, Any]]
) -> LadderCurve | None:
    """Return the curve of one run from its losses by tokens, or None if a segment has no step with a finite loss.

    The loss at a horizon is the mean over the last part of its tokens, and at least over its last step.
    """
    tokens, step = max(end for end, _ in steps), math.ceil(max(end for end, _ in steps) / len(steps))
    at = [round(tokens * end) for end in ENDS]
    horizons = [round(tokens * share) for share in (*(shape.get("horizons") or ()), 1.0)]
    edges = sorted({edge for end in horizons for edge in (end - max(round(LAST * end), step), end)})
    losses, around = means(at, steps), dict(zip(edges, means(edges, steps), strict=True))
    known = [loss for loss in losses if loss is not None]
    ends = {end: loss for end in horizons if (loss := around[end]) is not None}
    if len(known) < len(ENDS) or len(ends) < len(horizons):
        return None
    return LadderCurve(run, digest, params, tokens, shape, tuple(known), ends)


def predicted(
    ladder: LadderCurves, params: int, tokens: int, shape: Mapping[str, Any], *, level: float = LEVEL
) -> PredictedCurve:
    """Return the predicted loss curve of a run with a number of parameters and tokens, and a schedule.

    Raises:
        RequestError: too few runs have this schedule, or they determine no scaling law.
    """
    every = ladder.curves
    own = [one for one in every if dict(one.shape) == dict(shape)]
    if len(own) < FEWEST_TRAININGS:
        raise RequestError(
            "too few runs to predict a loss curve",
            found=f"{len(own)} of {len(every)} runs have the schedule of the predicted run: "
            + ", ".join(f"{name} {value}" for name, value in shape.items())
            + (f"; too short: {', '.join(ladder.short)}" if ladder.short else ""),
            expected=f"at least {FEWEST_TRAININGS} finished runs of {FEWEST_STEPS} steps or more with this schedule, "
            "in fractions of their tokens",
            remedy="train the ladder with the schedule of the run, and longer",
        )
    fitted = fit([
        ScalingRun(params=one.params, tokens=end, loss=loss, trunk=one.digest)
        for one in own for end, loss in one.horizons.items()
    ], draws=DRAWS)  # fmt: skip
    shapes = np.array([np.log(one.losses) - np.log(fitted.law.loss(one.params, one.tokens)) for one in own])
    value = np.log(fitted.law.loss(params, tokens)) + shapes.mean(axis=0)
    draws = _draws(fitted, params, tokens, shapes)
    low, high = simultaneous(draws, level=level)
    if (floorless := fitted.floorless).mean() >= (1 - level) / 2:  # as in `predict._loss`
        low = np.minimum(low, simultaneous(draws[floorless], level=level)[0])
    ends = np.exp(np.stack([value, np.minimum(low, value), np.maximum(high, value)], axis=1)).tolist()
    return PredictedCurve(
        params=params,
        tokens=tokens,
        level=level,
        method="scaling law of the ladder's final losses, times the mean shape of its curves; simultaneous band from "
        "the bootstrap of the law and Student draws of the shapes",
        points=tuple(
            CurvePoint(tokens=round(end * tokens), value=middle, low=below, high=above)
            for end, (middle, below, above) in zip(ENDS, ends, strict=True)
        ),
        shape=dict(shape),
        runs={one.run: one.digest for one in own},
        extrapolation=fitted.extrapolation(6 * params * tokens),
    )


def _draws(fitted: Fitted, params: int, tokens: int, shapes: Floats) -> Floats:
    """Return draws of the logarithm of the curve, [K, P]: of the final loss, by the bootstrap, and of the shape."""
    law, *drawn = np.log(loss_of(np.vstack([fitted.constants, fitted.drawn]), params, tokens)).tolist()
    final = law + (np.array(drawn) - law) * fitted.spread
    own = new_curves(shapes, draws=len(drawn), seed=fitted.fit.seed, inflation=fitted.inflation)
    return np.asarray(final[:, None] + own)
