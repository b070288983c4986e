"""`teacher_logits`: what the teacher says of every sequence of the run, stored once before it."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.sections import of
from plinth.training.initial import replay, source
from plinth_assets.framework.inputs import each, planted, read_by_run, shared_owner
from plinth_assets.framework.stage import Inputs, Say, Stage, Stages
from plinth_extras.distillation import stored_logits
from plinth_extras.distillation.parameters import Distillation


def stages(recipe: Recipe) -> list[Stage]:
    """The stored logits, where the recipe asks for them."""
    learns = of(recipe.training, "distillation", Distillation)
    if learns is None or learns.top_k is None:
        return []
    return [
        Stage(
            asset=stored_logits.ASSET,
            deps=("mixture", "tokenizer", source.TEACHER, *each(recipe, "shards"), *planted(recipe, "shards")),
            make=partial(_make, recipe),
            version=stored_logits.VERSION,
            params=stored_logits.identified(recipe.training),
            group="training",
            description="The most probable tokens after every token of the run, by its teacher, and the others' mass.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    from plinth_extras.distillation import teacher_logits  # torch: only where logits are made

    shards = read_by_run(recipe, inputs, "shards") | replay.shards_of(ctx, inputs["mixture"])
    models = inputs["tokenizer"], inputs[source.TEACHER]
    return teacher_logits.run(ctx, recipe.training, inputs["mixture"], shards, *models)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    return {name: made.stats[name] for name in ("positions", "bytes_per_token")} | {"bytes": made.bytes}


STAGES = Stages(name="teacher_logits", stages=stages, with_mixture=True)
