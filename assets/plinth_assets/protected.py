"""`protected/{set}` and `protected`: sets that training must not see, and the documents that hold their items."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.protected import comparison, protected
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import by_bucket, compares, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.span_dedup import survivors


def stages(recipe: Recipe) -> list[Stage]:
    """One asset per set, and the comparison, where the recipe names sets."""
    given = recipe.corpus.protected.sets
    compared = [_comparison(recipe)] if compares(recipe) else []
    return [*(_set(recipe, name, one) for name, one in given.items()), *compared]


def _set(recipe: Recipe, name: str, given: ProtectedSet) -> Stage:
    return Stage(
        asset=f"protected/{name}",
        deps=(),
        make=partial(_read, name, given),
        outside=partial(_outside, given),
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


def _outside(given: ProtectedSet, ctx: Context) -> str:
    return protected.identity(ctx, given)


def _read(name: str, given: ProtectedSet, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return protected.read_set(ctx, name, given)


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
