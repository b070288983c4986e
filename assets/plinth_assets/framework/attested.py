"""Measurements of a checkpoint are attested by the evaluator when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.stage import Stage

CHECKPOINT = "checkpoint"
GROUP = "evaluation"


@dataclass(frozen=True)
class MeasurementStatement:
    """The statement that a manifest is what was measured of the checkpoint among its inputs."""

    recipe: Recipe

    def holds(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> bool:
        from plinth_registry import attestations

        return attestations.is_attested(ctx, inputs[CHECKPOINT], made)

    def sign(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> None:
        from plinth_registry import attestations

        attestations.attest_measurement(ctx, self.recipe, inputs[CHECKPOINT], made)


def attested(recipe: Recipe, stage: Stage) -> Stage:
    """The stage with its statement, where it measures a checkpoint that may be released."""
    measures = recipe.release is not None and stage.group == GROUP and CHECKPOINT in stage.deps
    return replace(stage, statement=MeasurementStatement(recipe)) if measures else stage
