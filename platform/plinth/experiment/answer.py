"""The answer of an experiment: effects of its arms from the manifests of its runs, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plinth.compute import stage
from plinth.compute.context import Context
from plinth.experiment import record
from plinth.experiment.arms import PREFIX, Arm
from plinth.experiment.effects import Effect, effects
from plinth.experiment.measure import scores_of
from plinth.experiment.parameters import Experiment
from plinth.experiment.scores import ArmScores
from plinth.records import Manifest, Step

VERSION = "1"


def of(ctx: Context, experiment: Experiment, runs: Sequence[Manifest]) -> Manifest:
    """The manifest of the effects.

    Stats: `effects` (records of `Effect`); `runs`, how many ended how; `tokens` and `flops`, of all runs.

    Raises:
        IntegrityError: runs were scored on different text.
    """
    scores = [scores_of(ctx, one) for one in runs]
    found = effects(scores, experiment.base)
    ended = [one.status for one in scores]
    stats = {
        "effects": [one.model_dump(mode="json") for one in found],
        "runs": {status: ended.count(status) for status in sorted(set(ended))},
        "tokens": sum(one.tokens for one in scores),
        "flops": sum(one.flops for one in scores),
    }
    step = Step(name="experiment/effects", version=VERSION, params={"base": experiment.base})
    return stage.manifest(f"{PREFIX}/{experiment.name}/effects", step, {one.asset: one for one in runs}, [], stats)


def page(ctx: Context, experiment: Experiment, arms: Sequence[Arm], made: Manifest) -> str:
    return "x"


def cannot_win(experiment: Experiment, arm: Arm, scores: Sequence[ArmScores]) -> str:
    return ""
