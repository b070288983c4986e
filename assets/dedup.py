"""`dedup/exact`, `{bucket}/minhash`, `dedup/minhash`: duplicates across all buckets, one survivor each."""

from __future__ import annotations

from functools import partial
from typing import Any

import dagster as dg

from assets.inputs import by_bucket, each, shared_owner
from assets.present import table
from assets.stage import Inputs, Say, Stage
from plinth.context import Context
from plinth.corpus.dedup import exact, minhash
from plinth.recipe import Recipe
from plinth.recipe.spans import LATER_STAGES
from plinth.records import Manifest


def stages(recipe: Recipe) -> list[Stage]:
    """Exact first, then near duplicates among its survivors."""
    params, owner = recipe.corpus.dedup, shared_owner(recipe)
    signatures = [
        Stage(
            asset=f"{name}/minhash",
            deps=(f"{name}/documents",),
            make=partial(_signatures, name, recipe),
            version=minhash.SIGNATURE_VERSION,
            params=params.minhash.model_dump(mode="json"),
            group="dedup",
            description=f"MinHash signatures of {name} over word shingles.",
            owner=bucket.owner,
            kinds=("parquet", "numba"),
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]
    return [
        Stage(
            asset="dedup/exact",
            deps=each(recipe, "documents", "policy"),
            make=partial(_exact, recipe),
            version=exact.VERSION,
            params=params.model_dump(mode="json", include={"keep"}),
            group="dedup",
            description="Documents with equal normalised text, across all buckets.",
            owner=owner,
            kinds=("parquet",),
            present=_present,
        ),
        *signatures,
        Stage(
            asset="dedup/minhash",
            deps=(*each(recipe, "documents", "minhash"), "dedup/exact"),
            make=partial(_near, recipe),
            version=minhash.VERSION,
            params=params.model_dump(mode="json", exclude=LATER_STAGES),
            group="dedup",
            description="Near duplicates: LSH candidates, each verified by its true Jaccard similarity.",
            owner=owner,
            kinds=("parquet", "numba"),
            present=_present,
        ),
    ]


def _signatures(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return minhash.signatures(ctx, name, recipe.corpus.dedup.minhash, inputs[f"{name}/documents"])


def _exact(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, policies = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "policy")
    return exact.run(ctx, recipe.corpus.dedup, documents, policies)


def _near(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, signatures = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "minhash")
    return minhash.run(ctx, recipe.corpus.dedup, documents, signatures, inputs["dedup/exact"])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, int | float)]
    return {"summary": dg.MetadataValue.md(table(["what", "documents"], rows))}
