"""`contamination`: training documents that share word n-grams with the held-out set."""

from __future__ import annotations

from functools import partial

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.protected import contamination
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.span_dedup import survivors


def stages(recipe: Recipe) -> list[Stage]:
    """One comparison over all buckets."""
    params = recipe.corpus.contamination
    return [
        Stage(
            asset="contamination",
            deps=(*each(recipe, "documents"), survivors(recipe), "holdout"),
            make=partial(_make, recipe),
            version=contamination.VERSION,
            params=params.model_dump(mode="json"),
            libraries=fingerprint.UNICODE,
            group="verdicts",
            description=f"Overlap of every training document with the held-out set, by {params.ngram_words}-grams.",
            owner=shared_owner(recipe),
            kinds=("parquet", "c"),
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    params = recipe.corpus.contamination
    return contamination.run(ctx, params, documents, inputs[survivors(recipe)], inputs["holdout"])
