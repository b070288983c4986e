"""`probe_sets`: the items of every probe, which training must not see."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.parameters import FAMILIES, Probes
from plinth.evaluation.probes import probe_sets
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """The items, where the recipe has a run to measure."""
    probes = recipe.probes
    if probes is None:
        return []
    return [
        Stage(
            asset=probe_sets.ASSET,
            deps=(),
            make=partial(_make, probes),
            outside=partial(_outside, probes) if probes.sets or {*probes.families} - {*FAMILIES} else None,
            version=probe_sets.VERSION,
            params=probes.model_dump(mode="json"),
            libraries=probe_sets.LIBRARIES,
            group="sources",
            description="Items of the probes, built in and the user's own; training must not see them.",
            owner=shared_owner(recipe),
            kinds=("python",),
            suite=_suite,
            present=_present,
        )
    ]


def _make(probes: Probes, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return probe_sets.run(ctx, probes)


def _outside(probes: Probes, ctx: Context) -> str:
    return probe_sets.outside(ctx, probes)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"items": own["items"], "rejects": own["rejects"]} for own in made.stats["sets"].values()]
    return Suite(probe_sets.ASSET, rows, [rows_between(1), between("items", 1, None)])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["probe", "family", "items", "templates", "bytes", "rejects", "digest"]
    rows = [
        [name, *(own[column] for column in header[1:-1]), own["digest"][:12]]
        for name, own in made.stats["sets"].items()
    ]
    return {"probes": markdown(table(header, rows))}
