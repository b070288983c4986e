"""`models/{name}`: models that the pipeline trains on its own buckets, for annotators to use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import models
from plinth.corpus.models import examples
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage

#: Among the parameters of what a test recipe makes of labelled sets: without the mark it is made again.
TEST = {"test": True}


def stages(recipe: Recipe) -> list[Stage]:
    """One asset per model of the recipe."""
    return [_stage(recipe, name, raw) for name, raw in recipe.corpus.models.items()]


def _stage(recipe: Recipe, name: str, raw: Mapping[str, Any]) -> Stage:
    trainer, params = models.trainer(name, raw), models.parameters(name, raw)
    buckets, lists = trainer.buckets(params), trainer.lists(params)
    labelled = tuple(getattr(params, "labelled", ()))
    return Stage(
        asset=f"models/{name}",
        deps=(*(f"{bucket}/documents" for bucket in buckets), *(f"lists/{one}" for one in lists)),
        make=partial(_make, name, raw, buckets, lists, () if recipe.test else labelled),
        version=trainer.version,
        params=dict(raw) | (TEST if recipe.test and labelled else {}),
        libraries=fingerprint.libraries(*trainer.libraries),
        group="models",
        description=f"{trainer.description} Source: {trainer.source}",
        owner=shared_owner(recipe),
        kinds=("model",),
        suite=partial(_suite, trainer.bounds(params)),
        present=_present,
    )


def _make(
    name: str,
    raw: Mapping[str, Any],
    buckets: tuple[str, ...],
    lists: tuple[str, ...],
    real: tuple[str, ...],
    ctx: Context,
    inputs: Inputs,
    say: Say,
) -> Manifest:
    examples.require_real(ctx.store, {f"lists/{one}": inputs[f"lists/{one}"] for one in real}, f"models/{name}")
    documents = {bucket: inputs[f"{bucket}/documents"] for bucket in buckets}
    return models.train(ctx, name, raw, documents, {one: inputs[f"lists/{one}"] for one in lists})


def _suite(bounds: tuple[tuple[str, float | None, float | None], ...], made: Manifest, inputs: Inputs) -> Suite:
    row = {name: made.stats[name] for name, _, _ in bounds} or {"parts": len(made.parts)}
    return Suite(made.asset.replace("/", "-"), [row], [rows_between(1), *(between(*bound) for bound in bounds)])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, int | float | str)]
    return {"measured": markdown(table(["what", "value"], rows))}
