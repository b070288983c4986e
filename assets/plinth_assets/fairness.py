"""`fairness`: paired differences between groups, and toxicity of continuations."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.evaluation.fairness import job
from plinth.evaluation.fairness.parameters import Fairness
from plinth.evaluation.fairness.toxicity import ANNOTATOR, ToxicityJudge
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One measurement per checkpoint, where the recipe asks for it."""
    params = recipe.evaluation.fairness
    if params is None:
        return []
    return [
        Stage(
            asset=job.ASSET,
            deps=("checkpoint", *_resources(recipe)),
            make=partial(_make, recipe, params),
            outside=partial(job.outside, params) if params.pairs else None,
            version=job.VERSION,
            params=params.model_dump(mode="json") | {"judge": annotator_parameters(recipe).get(ANNOTATOR)},
            group="evaluation",
            description="Counterfactual pairs by attribute; toxicity of continuations by the corpus's own annotator.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=job.SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _resources(recipe: Recipe) -> tuple[str, ...]:
    """Lists and models of the recipe's annotator of toxicity."""
    params = annotator_parameters(recipe).get(ANNOTATOR)
    if params is None:
        return ()
    return annotate.annotator(ANNOTATOR).needs(annotate.parameters(ANNOTATOR, params))


def _make(recipe: Recipe, params: Fairness, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    given = annotator_parameters(recipe).get(ANNOTATOR)
    judge = None if given is None else ToxicityJudge(given, {key: inputs[key] for key in _resources(recipe)})
    return job.run(ctx, params, inputs["checkpoint"], judge)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"pairs": one["n"], "templates": one["clusters"]} for one in made.stats["attributes"].values()]
    return Suite(job.ASSET, rows, [between("pairs", 1, None), between("templates", 2, None, "warning")])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["attribute", "favours a by, bits", "from", "to", "corrected p", "found", "smallest effect", "pairs"]
    names = ("value", "low", "high", "p_adjusted", "found", "smallest_effect", "n")
    rows = [[name, *(_cell(one[key]) for key in names)] for name, one in made.stats["attributes"].items()]
    shown: dict[str, Any] = {"attributes": markdown(table(header, rows))}
    if made.stats["toxicity"] is not None:
        shown["toxic_share"] = float(made.stats["toxicity"]["toxic"]["value"])
        shown["toxic_share_at_most"] = float(made.stats["toxicity"]["toxic_at_most"])
    return shown


def _cell(value: Any) -> Any:
    return "-" if value is None else ("yes" if value else "no") if isinstance(value, bool) else value
