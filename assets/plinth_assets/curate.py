"""`{bucket}/verdicts` and `{bucket}/curated`: one decision per document, then the text that remains."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import verdicts
from plinth.corpus.curate import curate
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.schemas import DOCUMENT_SCHEMA
from plinth_assets.framework.inputs import compares
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.span_dedup import switched_on


def stages(recipe: Recipe) -> list[Stage]:
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
        make=partial(_make_curated, name, recipe),
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


def _make_curated(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return curate.run(ctx, name, inputs[f"{name}/documents"], inputs[f"{name}/verdicts"], recipe.corpus.rights())


def _present_verdicts(ctx: Context, made: Manifest) -> dict[str, Any]:
    reasons = sorted(made.stats.get("reasons", {}).items(), key=lambda item: -item[1])
    return {"reasons": markdown(table(["reason", "documents"], [list(row) for row in reasons]))}
