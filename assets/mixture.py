"""`mixture`: what the run will see, in phases, exactly."""

from __future__ import annotations

from functools import partial
from typing import Any

from assets.expectations import Suite, between, rows_between
from assets.inputs import by_bucket, each, shared_owner
from assets.present import picture
from assets.stage import Inputs, Say, Stage
from plinth.context import Context
from plinth.recipe import Recipe
from plinth.records import Manifest
from plinth.tokens import mixture


def stages(recipe: Recipe) -> list[Stage]:
    """One mixture per recipe."""
    return [
        Stage(
            asset="mixture",
            deps=each(recipe, *_kinds(recipe)),
            make=partial(_make, recipe),
            version=mixture.VERSION,
            params=recipe.mixture.model_dump(mode="json"),
            group="mixture",
            description=f"{recipe.mixture.total_tokens:,} tokens in {len(recipe.mixture.phases)} phases.",
            owner=shared_owner(recipe),
            kinds=("python",),
            suite=partial(_suite, recipe.mixture.max_epochs),
            present=_present,
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    packed = by_bucket(recipe, inputs, "packed") if "packed" in _kinds(recipe) else None
    return mixture.run(ctx, recipe.mixture, by_bucket(recipe, inputs, "shards"), packed)


def _kinds(recipe: Recipe) -> tuple[str, ...]:
    """What it reads of every bucket."""
    return ("shards",) if recipe.mixture.packing == "concatenate" else ("shards", "packed")


def _suite(max_epochs: float, made: Manifest, inputs: Inputs) -> Suite:
    # Counts are whole: a short phase cannot come nearer to its weights than a sequence or two.
    rows = [
        {**row, "excess": row["share_error"] - max(0.005, 2 / max(row["sequences"], 1))} for row in mixture.rows(made)
    ]
    expectations = [
        rows_between(1),
        between("excess", None, 0),
        between("epochs", 0, max_epochs),
        between("sequences", 0, None),
    ]
    return Suite("mixture", rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import plots

    return {"mixture": picture(plots.mixture(mixture.rows(made)))}
