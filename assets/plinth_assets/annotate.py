"""The assets `models/{name}`, `{bucket}/{annotator}` and `slices/{gate}`. `models/{name}` is a model trained on the
pipeline's own buckets. `{bucket}/{annotator}` is a sidecar with the scores, labels or spans of an annotator.
`slices/{gate}` has the error rates of a learned gate, with limits that block publication.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import annotate, models
from plinth.corpus.llm.parameters import Endpoint
from plinth.corpus.models import examples
from plinth.corpus.slices import evaluate, rates, reviews
from plinth.corpus.slices.evaluate import require_apart
from plinth.corpus.slices.measured_gates import GateRule, measured_gate, rule_of
from plinth.corpus.slices.rates import GateSlices
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework import (
    Inputs,
    Say,
    Stage,
    Suite,
    between,
    equal_columns,
    originals,
    rows_between,
    shared_owner,
)
from plinth_assets.framework.present import markdown, picture, present_statistics, table

#: Parameter that marks labeled sets as generated; changing it rebuilds them.
TEST = {"test": True}


def model_stages(recipe: Recipe) -> list[Stage]:
    """Return one stage for each model that the recipe trains or loads."""
    return [_stage_models(recipe, name, raw) for name, raw in recipe.corpus.models.items()]


def _stage_models(recipe: Recipe, name: str, raw: Mapping[str, Any]) -> Stage:
    trainer, params = models.trainer(name, raw), models.parameters(name, raw)
    buckets, sidecars, lists = trainer.buckets(params), trainer.sidecars(params), trainer.lists(params)
    labelled = tuple(getattr(params, "labelled", ()))
    return Stage(
        asset=f"models/{name}",
        deps=(*(f"{bucket}/documents" for bucket in buckets), *sidecars, *(f"lists/{one}" for one in lists)),
        make=partial(_make_models, name, raw, buckets, sidecars, lists, () if recipe.test else labelled),
        version=trainer.version,
        params=dict(raw) | (TEST if recipe.test and labelled else {}),
        libraries=fingerprint.libraries(*trainer.libraries),
        group="models",
        description=f"{trainer.description} Source: {trainer.source}",
        owner=shared_owner(recipe),
        kinds=("model",),
        suite=partial(_suite_models, trainer.bounds(params)),
        present=present_statistics,
    )


def _make_models(
    name: str,
    raw: Mapping[str, Any],
    buckets: tuple[str, ...],
    sidecars: tuple[str, ...],
    lists: tuple[str, ...],
    real: tuple[str, ...],
    ctx: Context,
    inputs: Inputs,
    say: Say,
) -> Manifest:
    examples.require_real(ctx.store, {f"lists/{one}": inputs[f"lists/{one}"] for one in real}, f"models/{name}")
    documents = {bucket: inputs[f"{bucket}/documents"] for bucket in buckets} | {key: inputs[key] for key in sidecars}
    return models.train(ctx, name, raw, documents, {one: inputs[f"lists/{one}"] for one in lists})


def _suite_models(bounds: tuple[tuple[str, float | None, float | None], ...], made: Manifest, inputs: Inputs) -> Suite:
    row = {name: made.stats[name] for name, _, _ in bounds} or {"parts": len(made.parts)}
    return Suite(made.asset.replace("/", "-"), [row], [rows_between(1), *(between(*bound) for bound in bounds)])


def annotation_stages(recipe: Recipe) -> list[Stage]:
    """Return one stage for every annotator on every bucket."""
    annotators = annotator_parameters(recipe)
    return [
        _stage_annotate(name, bucket.owner, annotator, annotators, recipe.corpus.endpoints)
        for name, bucket in recipe.corpus.buckets.items()
        for annotator in annotators
    ]


def annotator_parameters(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the parameters of the recipe's annotators by name. The license gate gets the corpus's own list of
    licenses."""
    params = {name: dict(given) for name, given in recipe.corpus.annotate.items()}
    if "licence" in params:
        own = recipe.corpus.rights().licences.model_dump(mode="json", exclude_none=True)
        params["licence"] = own | params["licence"]
    return params


def _stage_annotate(
    bucket: str,
    owner: str,
    name: str,
    annotators: Mapping[str, Mapping[str, Any]],
    endpoints: Mapping[str, Endpoint],
) -> Stage:
    """Return the stage of an annotator on a bucket. The first annotator to run reads the bucket's text for all
    annotators whose inputs are ready."""
    params, checked = annotators[name], annotate.parameters(name, annotators[name])
    annotator = annotate.resolved(name, checked)
    resources = annotator.needs(checked)
    asked = endpoints.get(getattr(checked, "endpoint", ""))
    return Stage(
        asset=f"{bucket}/{name}",
        deps=(f"{bucket}/documents", *(f"{bucket}/{other}" for other in annotator.sidecars), *resources),
        make=partial(_make_annotate, bucket, name, annotators, resources, endpoints),
        version=annotator.version,
        params=params,
        libraries=annotate.libraries(name, params),
        group="annotations",
        description=f"{annotator.description} Source: {annotator.source}",
        owner=owner,
        kinds=("parquet",),
        schema=annotator.schema,
        suite=_suite_annotate,
        max_price=asked.max_money if asked else None,
    )


def _make_annotate(
    bucket: str,
    name: str,
    annotators: Mapping[str, Mapping[str, Any]],
    resources: tuple[str, ...],
    endpoints: Mapping[str, Endpoint],
    ctx: Context,
    inputs: Inputs,
    say: Say,
) -> Manifest:
    read = {key: inputs[key] for key in resources}
    documents = inputs[f"{bucket}/documents"]
    sidecars = {other: inputs[f"{bucket}/{other}"] for other in annotate.annotator(name).sidecars}
    return annotate.run(
        ctx, bucket, name, annotators[name], documents, read, beside=annotators, sidecars=sidecars, endpoints=endpoints
    )


def _suite_annotate(made: Manifest, inputs: Inputs) -> Suite:
    bucket = made.asset.split("/")[0]
    documents = inputs[f"{bucket}/documents"].named("part-")
    parts = made.named("part-")
    rows = [
        {"documents": document.rows, "sidecar": part.rows, "parts": len(documents), "sidecar_parts": len(parts)}
        for document, part in zip(documents, parts, strict=False)
    ]
    expectations = [
        rows_between(1),
        equal_columns("documents", "sidecar"),
        equal_columns("parts", "sidecar_parts"),
        between("sidecar", 0, None),
    ]
    return Suite(made.asset.replace("/", "-"), rows, expectations)


def slice_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that measure the error rates of the recipe's learned gates, one stage per gate."""
    return [_stage_slices(recipe, name, params) for name, params in recipe.corpus.slices.items()]


def _stage_slices(recipe: Recipe, name: str, params: GateSlices) -> Stage:
    given = annotator_parameters(recipe)
    rule = rule_of(measured_gate(name), params, recipe.corpus.policies, given)
    read = {one: given[one] for one in rule.annotators}
    needs = [annotate.annotator(one).needs(annotate.parameters(one, raw)) for one, raw in read.items()]
    keys = tuple(dict.fromkeys([*chain.from_iterable(needs), *(f"lists/{one}" for one in params.lists)]))
    documents = tuple(f"{name}/documents" for name in originals(recipe)) if params.reviews else ()
    versions = {one: annotate.annotator(one).version for one in rule.annotators}
    return Stage(
        asset=f"slices/{name}",
        deps=(*keys, *documents),
        make=partial(_make_slices, recipe, name, params, rule, read, keys),
        outside=reviewed if params.reviews else None,
        version=evaluate.VERSION,
        params={"measured": params.model_dump(mode="json"), "rule": list(rule.texts), "read": read, "of": versions}
        | (TEST if recipe.test and params.lists else {}),
        group="models",
        description=f"Error rates by slice of the gate `{name}`, which removes documents that match "
        f"{' or '.join(rule.texts)}",
        owner=shared_owner(recipe),
        kinds=("parquet",),
        schema=evaluate.SCHEMA,
        suite=partial(_suite_slices, params),
        present=_present_slices,
    )


def reviewed(ctx: Context) -> str:
    """Return the digest of all labels that reviewers have recorded so far."""
    return reviews.digest(ctx.workspace)


def _make_slices(
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
    """Return the labeled lists on which the gate's models were trained, by asset key."""
    found = {}
    for model in (key for key in keys if key.startswith("models/")):
        for one in recipe.corpus.models[model.removeprefix("models/")].get("labelled") or ():
            found[f"lists/{one}"] = ctx.refs.load(inputs[model].inputs[f"lists/{one}"])
    return found


def _suite_slices(params: GateSlices, made: Manifest, inputs: Inputs) -> Suite:
    """Check the error rates over all documents and over every slice with at least `min_documents` documents. The user's
    lists must have enough good and bad documents to be informative."""
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


def _present_slices(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import figures

    kinds = [[name, row["documents"], row["removed"]] for name, row in made.stats["made_as"].items()]
    return {
        "rates": picture(figures.gate_rates, made.stats),
        "slices": markdown(table(list(rates.HEADER), rates.table(made.stats))),
        "made_as": markdown(table(["made as", "documents", "removed"], kinds)),
        "rule": " or ".join(made.stats["rule"]),
    }
