"""`removal_rates` and `{bucket}/policy`: columns to verdicts, where nothing reads text; before them, what rules that
rest on models take of every bucket, and of text that is trusted as reference.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.policy import policy
from plinth.corpus.policy.compiled_policy import DOCUMENTS
from plinth.corpus.slices import removal_rates
from plinth.corpus.slices.rates import percent
from plinth.corpus.slices.removal_rates import ASSET, LearnedRule, learned_rules, trusted
from plinth.corpus.sources.parameters import Bucket
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage, by_bucket, each, shared_owner


def rules_in_use(recipe: Recipe) -> tuple[LearnedRule, ...]:
    """Rules of the buckets' policies that rest on models."""
    corpus = recipe.corpus
    used = {bucket.policy for bucket in corpus.buckets.values()}
    policies = {name: policy for name, policy in corpus.policies.items() if name in used}
    return learned_rules(policies, annotator_parameters(recipe))


def sidecars(rules: tuple[LearnedRule, ...]) -> tuple[str, ...]:
    """Annotators whose columns the rules read."""
    columns = {column.partition(".")[0] for rule in rules for column in rule.expression.columns}
    return tuple(sorted(columns - {DOCUMENTS}))


def reference_of(recipe: Recipe) -> tuple[str, ...]:
    """Buckets trusted as reference."""
    return trusted(recipe.corpus.reference_buckets, recipe.corpus.models)


def removal_stages(recipe: Recipe) -> list[Stage]:
    """One measurement of all rules; none where no rule rests on a model."""
    rules = rules_in_use(recipe)
    if not rules:
        return []
    params = {
        "rules": [[rule.policy, rule.reason, rule.expression.text] for rule in rules],
        "reference": list(reference_of(recipe)),
        "max_reference_removed": recipe.corpus.max_reference_removed,
    }
    return [
        Stage(
            asset=removal_rates.ASSET,
            deps=each(recipe, "documents", *sidecars(rules)),
            make=partial(_make_removal, recipe, rules),
            version=removal_rates.VERSION,
            params=params,
            group="models",
            description="Shares of every bucket that rules which rest on models remove; bounded for reference text.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
            schema=removal_rates.SCHEMA,
            suite=_suite,
            present=_present_removal,
        )
    ]


def _make_removal(recipe: Recipe, rules: tuple[LearnedRule, ...], ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    annotations = {name: by_bucket(recipe, inputs, name) for name in sidecars(rules)}
    made = removal_rates.run(ctx, rules, documents, annotations)
    removal_rates.require_bound(ctx, made, documents, reference_of(recipe), recipe.corpus.max_reference_removed)
    return made


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """A rule that takes a large share of any bucket is worth a look; it stops nothing."""
    rows = [
        {"rule": row["reason"], "bucket": bucket, "share": removal_rates.shares(counts)[0]}
        for row in made.stats["rules"]
        for bucket, counts in row["buckets"].items()
    ]
    expectations = [rows_between(1), between("share", None, removal_rates.UNUSUAL, "warning")]
    return Suite(removal_rates.ASSET, rows, expectations)


def _present_removal(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [
        [row["reason"], bucket, counts["fired"], *(percent(share) for share in removal_rates.shares(counts))]
        for row in made.stats["rules"]
        for bucket, counts in row["buckets"].items()
    ]
    header = ["rule", "bucket", "documents", "of documents", "of bytes"]
    return {"removed": markdown(table(header, rows)), "samples": "plinth corpus policy removal --reason RULE"}


def policy_stages(recipe: Recipe) -> list[Stage]:
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
            make=partial(_make_policy, name, recipe),
            version=policy.VERSION,
            params=recipe.corpus.policies[bucket.policy].model_dump(mode="json")
            | {policy.RIGHTS: recipe.corpus.rights().model_dump(mode="json")},
            group="verdicts",
            description=f"Verdicts of policy `{bucket.policy}` on documents of {name}: keep or drop, reason, edits.",
            owner=bucket.owner,
            kinds=("parquet",),
            schema=policy.SCHEMA,
            present=_present_policy,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _measured(recipe: Recipe, bucket: Bucket) -> tuple[str, ...]:
    """Gates of this bucket's policy that are measured: one that fails its bounds judges nothing."""
    named = recipe.corpus.slices.items()
    return tuple(f"slices/{gate}" for gate, params in named if params.policy == bucket.policy)


def _make_policy(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    rules = recipe.corpus.policies[recipe.corpus.buckets[name].policy]
    annotations = {annotator: inputs[f"{name}/{annotator}"] for annotator in recipe.corpus.annotate}
    return policy.run(ctx, name, rules, inputs[f"{name}/documents"], annotations, recipe.corpus.rights())


def _present_policy(ctx: Context, made: Manifest) -> dict[str, Any]:
    fired, dropped = made.stats["fired"], made.stats["dropped"]
    rows = [[reason, dropped.get(reason, 0), count] for reason, count in sorted(fired.items(), key=lambda kv: -kv[1])]
    return {
        "kept": made.stats["kept"],
        "dropped": markdown(table(["rule", "documents dropped first by it", "documents it fires on"], rows)),
    }
