"""`{bucket}/shards`: token shards of even size with a document index."""

from __future__ import annotations

from functools import partial

from assets.expectations import Suite, between, equal_columns, rows_between
from assets.stage import Inputs, Say, Stage
from plinth.context import Context
from plinth.recipe import Recipe
from plinth.records import Manifest
from plinth.tokens import shards


def stages(recipe: Recipe) -> list[Stage]:
    """One shard set per bucket."""
    return [
        Stage(
            asset=f"{name}/shards",
            deps=("tokenizer", "tokenizer/audit", f"{name}/curated"),
            make=partial(_make, name, recipe),
            version=shards.VERSION,
            params=recipe.shards.model_dump(mode="json"),
            group="tokens",
            description=f"Tokens of {name}, little-endian, each document closed by end-of-text.",
            owner=bucket.owner,
            kinds=("binary",),
            suite=_suite,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _make(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return shards.run(ctx, name, recipe.shards, inputs["tokenizer"], inputs[f"{name}/curated"])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    width = made.stats["bytes_per_token"]
    sizes = [part.blob.bytes for part in made.named("shard-")]
    least, most = min(sizes, default=0), max(sizes, default=0)
    rows = [
        {"bytes": size, "width": width, "tokens": size // width, "remainder": size % width, "even": size - least}
        for size in sizes
    ]
    total = {"counted": sum(row["tokens"] for row in rows), "recorded": made.stats["tokens"]}
    rows = [{**row, **total} for row in rows]
    expectations = [
        rows_between(1),
        between("remainder", 0, 0),
        between("tokens", 1, None),
        between("even", 0, max(width, most // 100)),
        equal_columns("counted", "recorded"),
    ]
    return Suite(f"shards-{made.asset.split('/')[0]}", rows, expectations)
