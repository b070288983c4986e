"""`lists/{name}`: lists of the user that annotators look things up in."""

from __future__ import annotations

from functools import partial

from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One asset per list of the recipe."""
    return [
        Stage(
            asset=f"lists/{name}",
            deps=(),
            make=partial(_make, name, location),
            outside=partial(_outside, location),
            version=lists.VERSION,
            params={},
            group="sources",
            description=f"List `{name}`, as it lies in the input folder.",
            owner=shared_owner(recipe),
            kinds=("file",),
            suite=_suite,
        )
        for name, location in recipe.corpus.lists.items()
    ]


def _outside(location: str, ctx: Context) -> str:
    return lists.digest(ctx, location)


def _make(name: str, location: str, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return lists.run(ctx, name, location)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"files": made.stats["files"], "bytes": made.stats["bytes"]}]
    return Suite(made.asset.replace("/", "-"), rows, [rows_between(1), between("bytes", 1, None)])
