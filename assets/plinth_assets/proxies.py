"""`proxies`: generated items that stand for what a product asks of a model, checked by code."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.evaluation.proxies import job
from plinth.evaluation.proxies.parameters import Proxies
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import interval, markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One asset, where the recipe asks for it."""
    given = recipe.evaluation.proxies
    if given is None:
        return []
    return [
        Stage(
            asset=job.ASSET,
            deps=("checkpoint",),
            make=partial(_make, given),
            version=job.VERSION,
            params=given.model_dump(mode="json"),
            libraries=fingerprint.libraries("jsonschema"),
            group="evaluation",
            description="Product proxies, checked by code: JSON to a schema, formats, tool calls, instructions.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            schema=job.ITEMS,
            present=_present,
            pool="training",
        )
    ]


def _make(given: Proxies, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return job.run(ctx, given, inputs["checkpoint"])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    families = made.stats["families"] | {"all": made.stats["overall"]}
    rows = [
        [family, name, found["value"], interval(found), found["n"]]
        for family, own in families.items()
        for name, found in own.items()
    ]
    return {"scores": markdown(table(["family", "score", "value", "95% interval", "items"], rows))}
