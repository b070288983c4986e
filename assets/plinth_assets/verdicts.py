"""`holdout`, `contamination`, `protected`, `{bucket}/verdicts`, `{bucket}/curated`: text set aside for evaluation,
overlap with it and with protected sets, one decision per document, then the text that remains.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import verdicts
from plinth.corpus.curate import curate
from plinth.corpus.protected import comparison, contamination, holdout, protected
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.schemas import DOCUMENT_SCHEMA
from plinth_assets.dedup import survivors, switched_on
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage, by_bucket, compares, each, shared_owner


def holdout_stages(recipe: Recipe) -> list[Stage]:
    """One selection over all buckets."""
    return [
        Stage(
            asset="holdout",
            deps=(*each(recipe, "documents"), survivors(recipe)),
            make=partial(_make_holdout, recipe),
            version=holdout.VERSION,
            params=recipe.corpus.holdout.model_dump(mode="json"),
            group="verdicts",
            description="Held-out documents of every bucket, chosen by keyed hash among the survivors; once held out, "
            "always held out.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
        )
    ]


def _make_holdout(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    earlier = ctx.refs.published(holdout.ASSET)
    return holdout.run(ctx, recipe.corpus.holdout, documents, inputs[survivors(recipe)], earlier)


def contamination_stages(recipe: Recipe) -> list[Stage]:
    """One comparison over all buckets."""
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
            description=f"Overlap of every training document with the held-out set, by {params.ngram_words}-grams.",
            owner=shared_owner(recipe),
            kinds=("parquet", "c"),
        )
    ]


def _make_contamination(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents = by_bucket(recipe, inputs, "documents")
    params = recipe.corpus.contamination
    return contamination.run(ctx, params, documents, inputs[survivors(recipe)], inputs["holdout"])


def protected_stages(recipe: Recipe) -> list[Stage]:
    """One asset per set, and the comparison, where the recipe names sets."""
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
        description=f"Items of {name} ({given.kind.replace('_', ' ')}), which training must not see.",
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
        description="Training documents that hold items of protected sets: copied, edited, reworded, or from a mirror.",
        owner=shared_owner(recipe),
        kinds=("parquet", "c"),
        schema=protected.SCHEMA,
        present=_present,
    )


def sets_of(recipe: Recipe) -> tuple[str, ...]:
    """The assets with protected items: the recipe's sets, and the probes of its run."""
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
    header = ["set", "items", *comparison.STATUSES, "of undecided, too short"]
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
    """Verdicts, then curated text, per bucket."""
    return [
        stage
        for name, bucket in recipe.corpus.buckets.items()
        for stage in (_verdicts(name, bucket.owner, _shared(recipe)), _curated(name, bucket.owner, recipe))
    ]


def _shared(recipe: Recipe) -> dict[str, str]:
    """Inputs of verdicts that span all buckets: the parameter of `verdicts.run`, and the asset."""
    on = [*verdicts.STAGES[1:], *switched_on(recipe), *(["protected"] if compares(recipe) else [])]
    return {name: asset for name, asset in verdicts.ASSETS.items() if name in on}


def _verdicts(name: str, owner: str, shared: dict[str, str]) -> Stage:
    return Stage(
        asset=f"{name}/verdicts",
        deps=(f"{name}/documents", f"{name}/policy", *shared.values()),
        make=partial(_make_verdicts, name, shared),
        version=verdicts.VERSION,
        params={},
        group="verdicts",
        description=f"The decision on every document of {name}: train, held out or dropped, and why.",
        owner=owner,
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
        description=f"Text of {name} that may be trained on, edits applied, and the held-out text beside it.",
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
