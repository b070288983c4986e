"""`{bucket}/{annotator}`: one sidecar of scores, labels or spans per bucket and annotator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, equal_columns, rows_between
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """Every annotator over every bucket."""
    annotators = annotator_parameters(recipe)
    return [
        _stage(name, bucket.owner, annotator, annotators)
        for name, bucket in recipe.corpus.buckets.items()
        for annotator in annotators
    ]


def annotator_parameters(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Parameters of the recipe's annotators; the licence gate's list is the corpus's own."""
    params = {name: dict(given) for name, given in recipe.corpus.annotate.items()}
    if "licence" in params:
        own = recipe.corpus.rights().licences.model_dump(mode="json", exclude_none=True)
        params["licence"] = own | params["licence"]
    return params


def _stage(bucket: str, owner: str, name: str, annotators: Mapping[str, Mapping[str, Any]]) -> Stage:
    """The stage that comes first reads the text for all that have what they need; the others find it done."""
    annotator, params = annotate.annotator(name), annotators[name]
    resources = annotator.needs(annotate.parameters(name, params))
    return Stage(
        asset=f"{bucket}/{name}",
        deps=(f"{bucket}/documents", *(f"{bucket}/{other}" for other in annotator.sidecars), *resources),
        make=partial(_make, bucket, name, annotators, resources),
        version=annotator.version,
        params=params,
        libraries=annotate.libraries(name, params),
        group="annotations",
        description=f"{annotator.description} Source: {annotator.source}",
        owner=owner,
        kinds=("parquet",),
        schema=annotator.schema,
        suite=_suite,
    )


def _make(
    bucket: str,
    name: str,
    annotators: Mapping[str, Mapping[str, Any]],
    resources: tuple[str, ...],
    ctx: Context,
    inputs: Inputs,
    say: Say,
) -> Manifest:
    read = {key: inputs[key] for key in resources}
    documents = inputs[f"{bucket}/documents"]
    sidecars = {other: inputs[f"{bucket}/{other}"] for other in annotate.annotator(name).sidecars}
    return annotate.run(ctx, bucket, name, annotators[name], documents, read, beside=annotators, sidecars=sidecars)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
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
