"""`{bucket}/trace_index`: any 32 tokens in a row of a bucket's shards can be found again."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, equal_columns
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage, Stages
from plinth_audit.trace import anchors, trace_index

#: Bytes per token above this are a failure of the index, not of the text.
MOST_BYTES_PER_TOKEN = 6.0


def stages(recipe: Recipe) -> list[Stage]:
    """One index per bucket."""
    return [
        Stage(
            asset=f"{name}/trace_index",
            deps=(f"{name}/shards", f"{name}/curated"),
            make=partial(_make, name),
            version=trace_index.VERSION,
            params=dict(trace_index.ANCHORS.params),
            group="tokens",
            description=f"Finds any {anchors.SPAN_TOKENS} tokens in a row of {name} again (`plinth corpus trace`).",
            owner=bucket.owner,
            kinds=("arrow",),
            schema=anchors.ANCHOR_SCHEMA,
            suite=_suite,
            present=_present,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _make(name: str, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return trace_index.run(ctx, name, inputs[f"{name}/shards"], inputs[f"{name}/curated"])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    bucket = made.asset.split("/")[0]
    held = inputs[f"{bucket}/shards"].stats["tokens"]
    # Small ranges cost a file of their own, which is no cost per token.
    rate = made.stats["anchors"] * 8 / max(made.stats["tokens"], 1)
    rows = [{"tokens": made.stats["tokens"], "shard_tokens": held, "bytes_per_token": rate}]
    expectations = [
        equal_columns("tokens", "shard_tokens"),  # every token of the shards lies in one range
        between("bytes_per_token", 0, MOST_BYTES_PER_TOKEN),
    ]
    return Suite(f"trace-index-{bucket}", rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("tokens", "anchors", "ranges", "bytes_per_token")
    row = [made.bytes, *(made.stats[name] for name in names)]
    return {"index": markdown(table(["bytes", *names], [row]))}


STAGES = Stages(name="trace_index", stages=stages, with_mixture=True)
