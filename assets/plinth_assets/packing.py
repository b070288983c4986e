"""`{bucket}/packed`: the documents of each sequence, where the recipe packs best-fit."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.tokens.packing import packing
from plinth_assets.framework.expectations import Suite, between, equal_columns
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage

#: Padding above this share of the targets is a warning: documents that leave much room in every sequence, or few.
MOST_PADDING = 0.01


def stages(recipe: Recipe) -> list[Stage]:
    """One index per bucket; none where streams are concatenated, for their sequences are arithmetic."""
    if recipe.mixture is None or recipe.mixture.packing == "concatenate":
        return []
    return [of_bucket(name, recipe, bucket.owner) for name, bucket in recipe.corpus.buckets.items()]


def of_bucket(name: str, recipe: Recipe, owner: str) -> Stage:
    """The index of one bucket."""
    sequence_tokens = recipe.required_mixture().sequence_tokens
    return Stage(
        asset=f"{name}/packed",
        deps=(f"{name}/shards",),
        make=partial(_make, name, recipe),
        version=packing.VERSION,
        params={"sequence_tokens": sequence_tokens},
        group="tokens",
        description=f"Documents of {name} in sequences of {sequence_tokens} tokens, best-fit.",
        owner=owner,
        kinds=("arrow",),
        schema=packing.SCHEMA,
        suite=_suite,
        present=_present,
    )


def _make(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return packing.run(ctx, name, recipe.required_mixture().sequence_tokens, inputs[f"{name}/shards"])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [
        {
            **counts,
            "accounted": counts["tokens"] + counts["padding"] + counts["masked"],
            "padding_share": counts["padding"] / max(counts["targets"], 1),
        }
        for counts in made.stats["streams"].values()
    ]
    expectations = [
        equal_columns("accounted", "targets"),  # every token is a target exactly once
        equal_columns("starts", "documents"),
        between("split_fitting", 0, 0),
        between("padding_share", 0, MOST_PADDING, "warning"),
    ]
    return Suite(f"packed-{made.asset.split('/')[0]}", rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("sequences", "tokens", "padding", "masked", "documents", "split_documents")
    rows = [
        [label or "all", *(f"{counts[name]:,}" for name in names)] for label, counts in made.stats["streams"].items()
    ]
    return {"packing": markdown(table(["stream", *names], rows))}
