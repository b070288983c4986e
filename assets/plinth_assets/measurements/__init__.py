"""Measurements of a checkpoint: their facts, gates, parameters and records; and the measuring stages.

    quality   what the model can do: evaluation, comparison, probes, tasks, serving; personal data in its training text

Gates read this module, without heavy imports. The stage of a measurement is in a module that also compares its items
between two models, recomputes its statistics and shows them on the page: evaluation_stage, comparison_stage,
probes_stage, tasks_stage, serving_stage, pii_stage. A measurement of another package has the same form
(docs/extending.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plinth.evaluation.measurement import measurements

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth_assets.framework import Stage


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages of every measurement in the recipe."""
    return [stage for one in measurements(recipe) for stage in one.stages(recipe)]
