"""`holdout`: documents set aside for evaluation before anything is trained on."""

from __future__ import annotations

from functools import partial

from plinth.compute.context import Context
from plinth.corpus.protected import holdout
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.span_dedup import survivors


def stages(recipe: Recipe) -> list[Stage]:
    """One selection over all buckets."""
    return [
        Stage(
            asset="holdout",
            deps=(*each(recipe, "documents"), survivors(recipe)),
            make=partial(_make, recipe),
            version=holdout.VERSION,
            params=recipe.corpus.holdout.model_dump(mode="json"),
            group="verdicts",
            description="Held-out documents of every bucket, chosen by keyed hash among the survivors; once held out, "
            "always held out.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    earlier = ctx.refs.published(holdout.ASSET)
    return holdout.run(ctx, recipe.corpus.holdout, documents, inputs[survivors(recipe)], earlier)
