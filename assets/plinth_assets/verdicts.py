"""Assets from columns to curated text: `removal_rates` and `{bucket}/policy`; `holdout`, `contamination` and
`protected`; `{bucket}/verdicts` and `{bucket}/curated`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import curate, verdicts
from plinth.corpus.policy import policy
from plinth.corpus.policy.compiled_policy import DOCUMENTS
from plinth.corpus.protected import comparison, contamination, holdout, protected
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.corpus.slices import removal_rates
from plinth.corpus.slices.rates import percent
from plinth.corpus.slices.removal_rates import ASSET, LearnedRule, learned_rules, trusted
from plinth.corpus.sources.parameters import Bucket
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA
from plinth_assets.annotate import annotator_parameters
from plinth_assets.dedup import survivors, switched_on
from plinth_assets.framework import (
    Inputs,
    Say,
    Stage,
    Suite,
    between,
    by_bucket,
    compares,
    each,
    originals,
    rows_between,
    shared_owner,
)
from plinth_assets.framework.present import markdown, table

# `removal_rates` and `{bucket}/policy`: from columns to verdicts without reading text; before them, the share removed
# by model-based rules from every bucket and from reference text.


def rules_in_use(recipe: Recipe) -> tuple[LearnedRule, ...]:
    """Return the rules based on models in the policies of the recipe's buckets."""
    corpus = recipe.corpus
    used = {bucket.policy for bucket in corpus.buckets.values()}
    policies = {name: policy for name, policy in corpus.policies.items() if name in used}
    return learned_rules(policies, annotator_parameters(recipe))


def sidecars(rules: tuple[LearnedRule, ...]) -> tuple[str, ...]:
    """Return the annotators with columns that the rules read."""
    columns = {column.partition(".")[0] for rule in rules for column in rule.expression.columns}
    return tuple(sorted(columns - {DOCUMENTS}))


def reference_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the buckets that the recipe trusts as reference text."""
    return trusted(recipe.corpus.reference_buckets, recipe.corpus.models)


def removal_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that measures the removal rates of rules based on models. The result is empty if there are no
    such rules."""
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
            deps=tuple(f"{name}/{kind}" for kind in ("documents", *sidecars(rules)) for name in originals(recipe)),
            make=partial(_make_removal, recipe, rules),
            version=removal_rates.VERSION,
            params=params,
            group="models",
            description="Share of each original bucket's text that model-based rules remove. In reference text, this "
            "share is limited.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
            schema=removal_rates.SCHEMA,
            suite=_suite,
            present=_present_removal,
        )
    ]


def _make_removal(recipe: Recipe, rules: tuple[LearnedRule, ...], ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = {bucket: inputs[f"{bucket}/documents"] for bucket in originals(recipe)}
    annotations = {name: {bucket: inputs[f"{bucket}/{name}"] for bucket in documents} for name in sidecars(rules)}
    made = removal_rates.run(ctx, rules, documents, annotations)
    removal_rates.require_bound(ctx, made, documents, reference_of(recipe), recipe.corpus.max_reference_removed)
    return made


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Warn about each rule that removes a large share of a bucket. The warning does not block publication."""
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
    """Return the stages that apply each bucket's policy to its documents."""
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
    """Return the measured gates that the bucket's policy uses. A gate that fails its own thresholds has no effect."""
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
        "dropped": markdown(table(["rule", "first match", "matched"], rows)),
    }


# `holdout`, `contamination`, `protected`, `{bucket}/verdicts`, `{bucket}/curated`: held-out text, overlap with it and
# with protected sets, one decision per document, and the remaining text.


def holdout_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that selects the held-out documents of all buckets."""
    return [
        Stage(
            asset="holdout",
            deps=(*each(recipe, "documents"), survivors(recipe)),
            make=partial(_make_holdout, recipe),
            version=holdout.VERSION,
            params=recipe.corpus.holdout.model_dump(mode="json"),
            group="verdicts",
            description="Held-out documents of every bucket, chosen by keyed hash among the survivors. Documents that "
            "were held out before remain held out.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
        )
    ]


def _make_holdout(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    earlier = ctx.refs.published(holdout.ASSET)
    return holdout.run(ctx, recipe.corpus.holdout, documents, inputs[survivors(recipe)], earlier)


def contamination_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that compares the training documents of all buckets with the held-out set."""
    params = recipe.corpus.contamination
    return [
        Stage(
            asset="contamination",
            deps=(*each(recipe, "documents"), survivors(recipe), "holdout"),
            make=partial(_make_contamination, recipe),
            version=contamination.VERSION,
            params=params.model_dump(mode="json"),
            libraries=fingerprint.UNICODE,
            group="verdicts",
            description=f"Overlap of each training document with the held-out set, in word {params.ngram_words}-grams.",
            owner=shared_owner(recipe),
            kinds=("parquet", "c"),
        )
    ]


def _make_contamination(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    params = recipe.corpus.contamination
    return contamination.run(ctx, params, documents, inputs[survivors(recipe)], inputs["holdout"])


def protected_stages(recipe: Recipe) -> list[Stage]:
    """Return one stage per protected set, and the stage that compares the sets with training text. The result is empty
    if there are no sets."""
    given = recipe.corpus.protected.sets
    compared = [_comparison(recipe)] if compares(recipe) else []
    return [*(_set(recipe, name, one) for name, one in given.items()), *compared]


def _set(recipe: Recipe, name: str, given: ProtectedSet) -> Stage:
    return Stage(
        asset=f"protected/{name}",
        deps=(),
        make=lambda ctx, inputs, _: protected.read_set(ctx, name, given),
        outside=partial(protected.identity, given=given),  # not a lambda: experiments compare what runs read
        version=protected.SET_VERSION,
        params=given.model_dump(mode="json"),
        libraries=protected.LIBRARIES,
        group="sources",
        description=f"Items of the protected set {name} ({given.kind.replace('_', ' ')}). Training text must not "
        "contain them.",
        owner=shared_owner(recipe),
        kinds=("json",),
        suite=_set_suite,
    )


def _comparison(recipe: Recipe) -> Stage:
    return Stage(
        asset=protected.ASSET,
        deps=(*each(recipe, "documents"), survivors(recipe), "holdout", *sets_of(recipe)),
        make=partial(_compare, recipe),
        version=protected.VERSION,
        params=recipe.corpus.protected.model_dump(mode="json"),
        libraries=fingerprint.UNICODE,
        group="verdicts",
        description="Training documents that contain items of protected sets: copied, edited, paraphrased, or from a "
        "mirror.",
        owner=shared_owner(recipe),
        kinds=("parquet", "c"),
        schema=protected.SCHEMA,
        present=_present,
    )


def sets_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the assets with protected items: the recipe's protected sets and the probes of its run."""
    probes = [protected.PROBES] if recipe.probes else []
    return (*(f"protected/{name}" for name in recipe.corpus.protected.sets), *probes)


def _compare(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    params, documents = recipe.corpus.protected, by_bucket(recipe, inputs, "documents")
    sets = {name: inputs[f"protected/{name}"] for name in params.sets}
    probes = inputs.get(protected.PROBES)
    return protected.run(ctx, params, documents, inputs[survivors(recipe)], inputs["holdout"], sets, probes)


def _set_suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"items": made.stats["items"], "without_text": made.stats["without_text"]}]
    return Suite(made.asset.replace("/", "-"), rows, [rows_between(1), between("items", 1, None)])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["set", "items", *comparison.STATUSES, "undecided: too short"]
    counts = ("items", *comparison.STATUSES, "too_short")
    rows = [[name, *(own[count] for count in counts)] for name, own in made.stats["sets"].items()]
    common = [[name, ", ".join(own["common"])] for name, own in made.stats["sets"].items() if own["common"]]
    reasons = [[reason, made.stats[reason]] for reason in protected.REASONS]
    return {
        "sets": markdown(table(header, rows)),
        "undecided_items": markdown(table(["set", "items that are common text"], common)),
        "documents": markdown(table(["reason", "documents"], reasons)),
    }


def curate_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that decide on the documents of each bucket and write its curated text."""
    return [
        stage
        for name, bucket in recipe.corpus.buckets.items()
        for stage in (_verdicts(name, bucket, _shared(recipe)), _curated(name, bucket.owner, recipe))
    ]


def _shared(recipe: Recipe) -> dict[str, str]:
    """Return the inputs of verdicts that span all buckets, as parameter of `verdicts.run` -> asset."""
    on = [*verdicts.STAGES[1:], *switched_on(recipe), *(["protected"] if compares(recipe) else [])]
    return {name: asset for name, asset in verdicts.ASSETS.items() if name in on}


def _verdicts(name: str, bucket: Bucket, shared: dict[str, str]) -> Stage:
    shared = shared | ({"origin": f"{bucket.rewrites}/verdicts"} if bucket.rewrites else {})
    return Stage(
        asset=f"{name}/verdicts",
        deps=(f"{name}/documents", f"{name}/policy", *shared.values()),
        make=partial(_make_verdicts, name, shared),
        version=verdicts.VERSION,
        params={},
        group="verdicts",
        description=f"Decision on every document of {name}: train, held out or dropped, with the reason.",
        owner=bucket.owner,
        kinds=("parquet",),
        schema=verdicts.SCHEMA,
        present=_present_verdicts,
    )


def _curated(name: str, owner: str, recipe: Recipe) -> Stage:
    return Stage(
        asset=f"{name}/curated",
        deps=(f"{name}/documents", f"{name}/verdicts"),
        make=lambda ctx, inputs, _: curate.run(
            ctx, name, inputs[f"{name}/documents"], inputs[f"{name}/verdicts"], recipe.corpus.rights()
        ),
        version=curate.VERSION,
        params=recipe.corpus.rights().model_dump(mode="json"),
        group="curated",
        description=f"Training text of {name} with edits applied, and its held-out text.",
        owner=owner,
        kinds=("parquet",),
        schema=DOCUMENT_SCHEMA,
    )


def _make_verdicts(name: str, shared: dict[str, str], ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    sides = {side: inputs[asset] for side, asset in shared.items()}
    return verdicts.run(ctx, name, inputs[f"{name}/documents"], inputs[f"{name}/policy"], **sides)


def _present_verdicts(ctx: Context, made: Manifest) -> dict[str, Any]:
    reasons = sorted(made.stats.get("reasons", {}).items(), key=lambda item: -item[1])
    return {"reasons": markdown(table(["reason", "documents"], [list(row) for row in reasons]))}
