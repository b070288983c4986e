"""What is measured of a checkpoint, a module for each measurement: its facts, its gate with the parameters, its record.

    evaluation, probes, tasks, comparison, serving      what the model can do
    pii                                                 what is left in its training text

Each is what gates read, without what is heavy: every command that judges imports it. Items, recomputed, compared
between two models and shown on the page, are beside it: evaluation_items, probes_items, tasks_items,
comparison_items, serving_items, pii_items.

The stages that make them stand in the package above. One of another package has the same form (docs/extending.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plinth.evaluation.measurement import measurements

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth_assets.framework.stage import Stage


def stages(recipe: Recipe) -> list[Stage]:
    """Stages of every measurement that the recipe asks for."""
    return [stage for one in measurements(recipe) for stage in one.stages(recipe)]
