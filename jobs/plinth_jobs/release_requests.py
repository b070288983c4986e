"""Runs of the release job that are due: the answer of the approval sensor and of `plinth run`, without Dagster."""

from __future__ import annotations

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth_registry import api


def requests(ctx: Context, recipe: Recipe) -> tuple[str, ...]:
    """Keys of the runs: one for each approved candidate, else one if the asset `release` shows an older record.

    Raises:
        PlinthError: the candidates or the history cannot be read.
    """
    ready, unshown = api.ready(ctx, recipe), _unshown(ctx, recipe)
    # The evidence is part of the key: a request that failed is made again once something has changed.
    keys = [f"{status.checkpoint}/{fingerprint.digest([dict(g) for g in status.gates])}" for status in ready]
    return tuple(keys) or ((unshown,) if unshown else ())


def _unshown(ctx: Context, recipe: Recipe) -> str:
    """A key of the signed history while the asset `release` shows an older record of it; empty when it shows the last.

    `plinth release promote`, `plinth release rollback` and other machines write the history without Dagster.
    """
    history = api.history(ctx, recipe)
    if not history or ctx.refs.published("candidate") is None:
        return ""
    shown, last = ctx.refs.published("release"), history[-1].model_dump(mode="json")
    return "" if shown and dict(shown.stats) == last else f"history/{fingerprint.digest(last)}"
