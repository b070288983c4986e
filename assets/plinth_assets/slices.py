"""`slices/{gate}`: error rates of a learned gate on documents of known truth, with bounds that block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.corpus.models import examples
from plinth.corpus.slices import evaluate, rates, reviews
from plinth.corpus.slices.evaluate import require_apart
from plinth.corpus.slices.measured_gates import GateRule, measured_gate, rule_of
from plinth.corpus.slices.rates import GateSlices
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import each, shared_owner
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.models import TEST


def stages(recipe: Recipe) -> list[Stage]:
    """One evaluation per gate of the recipe."""
    return [_stage(recipe, name, params) for name, params in recipe.corpus.slices.items()]


def _stage(recipe: Recipe, name: str, params: GateSlices) -> Stage:
    given = annotator_parameters(recipe)
    rule = rule_of(measured_gate(name), params, recipe.corpus.policies, tuple(given))
    read = {one: given[one] for one in rule.annotators}
    resources = [key for one, raw in read.items() for key in annotate.annotator(one).needs(_parameters(one, raw))]
    keys = tuple(dict.fromkeys([*resources, *(f"lists/{one}" for one in params.lists)]))
    documents = each(recipe, "documents") if params.reviews else ()
    versions = {one: annotate.annotator(one).version for one in rule.annotators}
    return Stage(
        asset=f"slices/{name}",
        deps=(*keys, *documents),
        make=partial(_make, recipe, name, params, rule, read, keys),
        outside=reviewed if params.reviews else None,
        version=evaluate.VERSION,
        params={"measured": params.model_dump(mode="json"), "rule": list(rule.texts), "read": read, "of": versions}
        | (TEST if recipe.test and params.lists else {}),
        group="models",
        description=f"Good and bad text that the gate `{name}` removes, by slice: {' or '.join(rule.texts)}",
        owner=shared_owner(recipe),
        kinds=("parquet",),
        schema=evaluate.SCHEMA,
        suite=partial(_suite, params),
        present=_present,
    )


def _parameters(name: str, raw: Mapping[str, Any]) -> Any:
    return annotate.parameters(name, raw)


def reviewed(ctx: Context) -> str:
    """Identity of the labels of reviewers so far."""
    return reviews.digest(ctx.workspace)


def _make(
    recipe: Recipe,
    name: str,
    params: GateSlices,
    rule: GateRule,
    read: Mapping[str, Mapping[str, Any]],
    keys: tuple[str, ...],
    ctx: Context,
    inputs: Inputs,
    say: Say,
) -> Manifest:
    documents = {b: inputs[f"{b}/documents"] for b in recipe.corpus.buckets if f"{b}/documents" in inputs}
    if not recipe.test:
        real = {f"lists/{one}": inputs[f"lists/{one}"] for one in params.lists}
        examples.require_real(ctx.store, real, f"slices/{name}")
        require_apart(ctx.store, real, _learnt(recipe, ctx, keys, inputs), name)
    said = reviews.read(ctx.workspace) if params.reviews else ()
    return evaluate.run(ctx, name, params, rule, read, {key: inputs[key] for key in keys}, documents, said)


def _learnt(recipe: Recipe, ctx: Context, keys: tuple[str, ...], inputs: Inputs) -> dict[str, Manifest]:
    """Labelled sets that the gate's models have learnt from, by asset key."""
    found = {}
    for model in (key for key in keys if key.startswith("models/")):
        for one in recipe.corpus.models[model.removeprefix("models/")].get("labelled") or ():
            found[f"lists/{one}"] = ctx.refs.load(inputs[model].inputs[f"lists/{one}"])
    return found


def _suite(params: GateSlices, made: Manifest, inputs: Inputs) -> Suite:
    """Bounds of all documents and of every slice that has enough of them; lists of yours have enough of either truth,
    or they show nothing."""
    rows = [
        {
            "slice": name,
            "recall": row["recall"] if row["bad"] >= params.min_documents else None,
            "false_positive": row["false_positive"] if row["good"] >= params.min_documents else None,
            "over_removal": row["over_removal"] if row["good"] >= params.min_documents else None,
            **{f"real_{truth}": count if params.lists else None for truth, count in made.stats["real"].items()},
        }
        for name, row in made.stats["slices"].items()
    ]
    expectations = [
        rows_between(1),
        between("recall", params.min_recall, None),
        between("false_positive", None, params.max_false_positive),
        between("over_removal", None, params.max_over_removal),
        between("real_good", params.min_documents, None),
        between("real_bad", params.min_documents, None),
    ]
    return Suite(made.asset.replace("/", "-"), rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import figures

    kinds = [[name, row["documents"], row["removed"]] for name, row in made.stats["made_as"].items()]
    return {
        "rates": picture(figures.gate_rates, made.stats),
        "slices": markdown(table(list(rates.HEADER), rates.table(made.stats))),
        "made_as": markdown(table(["made as", "documents", "removed"], kinds)),
        "rule": " or ".join(made.stats["rule"]),
    }
