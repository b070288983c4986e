"""`pii/data` and `pii/outputs`: personal data left in what the checkpoint was trained on, and in what it writes."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.pii import detector, outputs, parameters, training
from plinth.evaluation.pii.detector import PiiDetector
from plinth.evaluation.pii.parameters import PiiOutputs
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def of_data(recipe: Recipe) -> list[Stage]:
    """One count per checkpoint that may be released."""
    return [_data(recipe)] if recipe.release is not None else []


def of_outputs(recipe: Recipe) -> list[Stage]:
    """One search in outputs per checkpoint, where the recipe asks for it."""
    params = recipe.evaluation.pii_outputs
    return [] if params is None else [_outputs(recipe, params)]


def _data(recipe: Recipe) -> Stage:
    return Stage(
        asset=training.ASSET,
        deps=("checkpoint", *each(recipe, "curated"), *detector.needs(_given(recipe))),
        make=partial(_make, recipe),
        version=training.VERSION,
        params=_facts(recipe),
        libraries=PiiDetector(_given(recipe), {}).libraries,
        group="evaluation",
        description="Personal data that the corpus's own detector still finds in curated training text, by bucket "
        "and kind, with upper limits.",
        owner=shared_owner(recipe),
        kinds=("parquet",),
        schema=training.SCHEMA,
        suite=_suite,
        present=_present,
    )


def _outputs(recipe: Recipe, params: PiiOutputs) -> Stage:
    return Stage(
        asset=outputs.ASSET,
        deps=("checkpoint", *each(recipe, "curated"), *detector.needs(_given(recipe))),
        make=partial(_write, recipe, params),
        version=outputs.VERSION,
        params=_facts(recipe) | params.model_dump(mode="json"),
        libraries=PiiDetector(_given(recipe), {}).libraries,
        group="evaluation",
        description=f"Personal data in {params.samples} texts without a prompt and after prompts that invite it; what "
        "of it stands in training text.",
        owner=shared_owner(recipe),
        kinds=("pytorch", "parquet"),
        schema=outputs.SCHEMA,
        suite=_suite_of_outputs,
        present=_present_outputs,
        pool="training",
    )


def _facts(recipe: Recipe) -> dict[str, Any]:
    """What decides the finds."""
    known = PiiDetector(_given(recipe), {})
    return {"detector": known.facts, "written": sorted(known.written)}


def _given(recipe: Recipe) -> dict[str, Any]:
    """The recipe's parameters of the detector."""
    return annotator_parameters(recipe).get(detector.NAME, {})


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return training.run(ctx, inputs["checkpoint"], by_bucket(recipe, inputs, "curated"), _detector(recipe, inputs))


def _write(recipe: Recipe, params: PiiOutputs, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated = by_bucket(recipe, inputs, "curated")
    return outputs.run(ctx, params, inputs["checkpoint"], curated, _detector(recipe, inputs))


def _detector(recipe: Recipe, inputs: Inputs) -> PiiDetector:
    given = _given(recipe)
    return PiiDetector(given, {key: inputs[key] for key in detector.needs(given)})


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"documents": one["documents"], "found": one["found"]} for one in made.stats["buckets"].values()]
    expectations = [between("documents", 1, None, "warning"), between("found", 0, 0, "warning")]
    return Suite(training.ASSET.replace("/", "-"), rows, expectations)


def _suite_of_outputs(made: Manifest, inputs: Inputs) -> Suite:
    groups = (parameters.UNPROMPTED, parameters.INVITED)
    rows = [{"texts": made.stats[name]["texts"], "memorised": made.stats[name]["memorised"]} for name in groups]
    expectations = [between("texts", 1, None), between("memorised", 0, 0, "warning")]
    return Suite(outputs.ASSET.replace("/", "-"), rows, expectations)


def _present_outputs(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["texts of", "number", "with personal data", "at most", "of training text", "at most"]
    names = ("texts", "found", "at_most", "memorised", "memorised_at_most")
    groups = (parameters.UNPROMPTED, parameters.INVITED, parameters.ALL)
    rows = [[group, *(_cell(made.stats[group][name]) for name in names)] for group in groups]
    distinct = made.stats["distinct"]
    return {
        "outputs": markdown(table(header, rows)),
        "different_strings": f"{distinct['found']}, of which {distinct['memorised']} stand in training text",
    }


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
