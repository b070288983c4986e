"""`{bucket}/shards`: token shards of even size with a document index."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.tokens.shards import shards
from plinth.tokens.shards.axes import sidecars_of
from plinth.tokens.shards.parameters import Shards, Stream, streams_of
from plinth_assets.framework.expectations import Suite, between, equal_columns, rows_between
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One shard set per bucket."""
    return [of_bucket(name, recipe.shards, bucket.owner) for name, bucket in recipe.corpus.buckets.items()]


def of_bucket(name: str, params: Shards, owner: str) -> Stage:
    """The shard set of one bucket."""
    return Stage(
        asset=f"{name}/shards",
        deps=("tokenizer", "tokenizer/audit", f"{name}/curated", *_sides(name, params).values()),
        make=partial(_make, name, params),
        version=shards.VERSION,
        params=params.identity(),
        libraries=fingerprint.libraries("tokenizers"),
        group="tokens",
        description=f"Tokens of {name}, little-endian, each document closed by end-of-text.",
        owner=owner,
        kinds=("binary",),
        suite=_suite,
        present=_present,
    )


def _make(name: str, params: Shards, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    sides = {side: inputs[key] for side, key in _sides(name, params).items()}
    return shards.run(ctx, name, params, inputs["tokenizer"], inputs[f"{name}/curated"], sides)


def _sides(name: str, params: Shards) -> dict[str, str]:
    """Sidecars that divide a bucket into streams: stage -> asset; none without axes."""
    return {side: f"{name}/{side}" for side in sidecars_of(params.axes)}


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    width = made.stats["bytes_per_token"]
    rows = [row for stream in streams_of(made) for row in _rows(made, stream, width)]
    most = max((row["bytes"] for row in rows), default=0)
    total = {"counted": sum(row["tokens"] for row in rows), "recorded": made.stats["tokens"]}
    rows = [{**row, **total} for row in rows]
    if not rows and not made.stats["tokens"]:  # every document was removed: the funnel warns and names the rule
        return Suite(f"shards-{made.asset.split('/')[0]}", [total], [equal_columns("counted", "recorded")])
    expectations = [
        rows_between(1),
        between("remainder", 0, 0),
        between("tokens", 1, None),
        between("even", 0, max(width, most // 100)),
        equal_columns("counted", "recorded"),
    ]
    return Suite(f"shards-{made.asset.split('/')[0]}", rows, expectations)


def _rows(made: Manifest, stream: Stream, width: int) -> list[dict[str, int]]:
    """A row per shard of a stream; `even` is how many bytes it has more than the smallest."""
    sizes = [part.blob.bytes for part in made.named(f"{stream.folder}shard-")]
    return [
        {"bytes": size, "width": width, "tokens": size // width, "remainder": size % width, "even": size - min(sizes)}
        for size in sizes
    ]


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[one.name, one.documents, one.tokens] for one in streams_of(made)]
    return {"streams": markdown(table(["stream", "documents", "tokens"], rows))}
