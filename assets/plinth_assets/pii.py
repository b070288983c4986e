"""`pii/data`: personal data left in the text that the checkpoint was trained on."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation import pii
from plinth.evaluation.pii import PiiDetector
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One count per checkpoint that may be released."""
    return [_data(recipe)] if recipe.release is not None else []


def _data(recipe: Recipe) -> Stage:
    return Stage(
        asset=pii.ASSET,
        deps=("checkpoint", *each(recipe, "curated"), *pii.needs(detector_given(recipe))),
        make=partial(_make, recipe),
        version=pii.VERSION,
        params=detector_facts(recipe),
        libraries=PiiDetector(detector_given(recipe), {}).libraries,
        group="evaluation",
        description="Personal data that the corpus's own detector still finds in curated training text, by bucket "
        "and kind, with upper limits.",
        owner=shared_owner(recipe),
        kinds=("parquet",),
        schema=pii.SCHEMA,
        suite=_suite,
        present=_present,
    )


def detector_facts(recipe: Recipe) -> dict[str, Any]:
    """What decides the finds."""
    known = PiiDetector(detector_given(recipe), {})
    return {"detector": known.facts, "written": sorted(known.written)}


def detector_given(recipe: Recipe) -> dict[str, Any]:
    """The recipe's parameters of the detector."""
    return annotator_parameters(recipe).get(pii.NAME, {})


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return pii.run(ctx, inputs["checkpoint"], by_bucket(recipe, inputs, "curated"), detector_of(recipe, inputs))


def detector_of(recipe: Recipe, inputs: Inputs) -> PiiDetector:
    """The recipe's detector with the resources that it reads."""
    given = detector_given(recipe)
    return PiiDetector(given, {key: inputs[key] for key in pii.needs(given)})


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"documents": one["documents"], "found": one["found"]} for one in made.stats["buckets"].values()]
    expectations = [between("documents", 1, None, "warning"), between("found", 0, 0, "warning")]
    return Suite(pii.ASSET.replace("/", "-"), rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    kinds = [kind for kind in made.stats["kinds"] if made.stats["kinds"][kind]["documents"]]
    header = ["bucket", "documents", "with a find", "per million", "share at most", *kinds]
    every = {**made.stats["buckets"], "all": made.stats}
    rows = [
        [name, *(_cell(one[key]) for key in ("documents", "found", "per_million", "at_most"))]
        + [one["kinds"][kind]["documents"] for kind in kinds]
        for name, one in every.items()
    ]
    return {"residual": markdown(table(header, rows)), "found": int(made.stats["found"])}


def _cell(value: Any) -> Any:
    return "-" if value is None else value
