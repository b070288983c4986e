"""`{bucket}/policy`: columns to verdicts; nothing here reads text."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.policy import policy
from plinth.corpus.slices.removal_rates import ASSET
from plinth.corpus.sources.parameters import Bucket
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.removal_rates import rules_in_use


def stages(recipe: Recipe) -> list[Stage]:
    """One verdict set per bucket, by the bucket's policy."""
    annotators, learned = tuple(recipe.corpus.annotate), {rule.policy for rule in rules_in_use(recipe)}
    return [
        Stage(
            asset=f"{name}/policy",
            deps=(
                f"{name}/documents",
                *(f"{name}/{annotator}" for annotator in annotators),
                *_measured(recipe, bucket),
                *((ASSET,) if bucket.policy in learned else ()),
            ),
            make=partial(_make, name, recipe),
            version=policy.VERSION,
            params=recipe.corpus.policies[bucket.policy].model_dump(mode="json")
            | {policy.RIGHTS: recipe.corpus.rights().model_dump(mode="json")},
            group="verdicts",
            description=f"Verdicts of policy `{bucket.policy}` on documents of {name}: keep or drop, reason, edits.",
            owner=bucket.owner,
            kinds=("parquet",),
            schema=policy.SCHEMA,
            present=_present,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _measured(recipe: Recipe, bucket: Bucket) -> tuple[str, ...]:
    """Gates of this bucket's policy that are measured: one that fails its bounds judges nothing."""
    named = recipe.corpus.slices.items()
    return tuple(f"slices/{gate}" for gate, params in named if params.policy == bucket.policy)


def _make(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    rules = recipe.corpus.policies[recipe.corpus.buckets[name].policy]
    annotations = {annotator: inputs[f"{name}/{annotator}"] for annotator in recipe.corpus.annotate}
    return policy.run(ctx, name, rules, inputs[f"{name}/documents"], annotations, recipe.corpus.rights())


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    fired, dropped = made.stats["fired"], made.stats["dropped"]
    rows = [[reason, dropped.get(reason, 0), count] for reason, count in sorted(fired.items(), key=lambda kv: -kv[1])]
    return {
        "kept": made.stats["kept"],
        "dropped": markdown(table(["rule", "documents dropped first by it", "documents it fires on"], rows)),
    }
