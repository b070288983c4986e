"""State of every asset of a recipe, and due runs of the release job. This module does not import Dagster."""

from __future__ import annotations

from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, PlinthError
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.text import counted
from plinth_assets.catalog import stages
from plinth_assets.framework import Decision, decide
from plinth_registry import decisions


def elsewhere(count: int) -> str:
    """Return a message with the number of assets that this workspace did not seal, which happens if the workspace is
    moved without its trust folder."""
    return (
        f"{counted(count, 'asset')} {'was' if count == 1 else 'were'} published under another seal or without a seal, "
        "so the next run rebuilds them; if this workspace was moved or copied, first copy `seal` from its trust folder "
        "(docs/installation.md)"
    )


def status(ctx: Context, recipe: Recipe) -> list[dict[str, Any]]:
    """Return a row for every asset of the recipe, with its state. `own` is False if another workspace sealed the asset.
    `error` is the reason if the published manifest cannot be read. `figures` has the statistics of a model."""
    catalog = stages(recipe)
    try:
        todo = decide(ctx, catalog)
    except PlinthError:  # sources that cannot be read now must not hide published assets
        todo = Decision((), tuple(stage.asset for stage in catalog))
    rows = []
    for stage in catalog:
        manifest = todo.manifests.get(stage.asset)
        state, own, broken = "up to date" if manifest else "not made", True, None
        try:
            if manifest is None and (ref := ctx.refs.seen(stage.asset)):  # also stale if another workspace published it
                manifest, state, own = ctx.refs.load(ref.digest), "stale", ctx.refs.own(ref)
        except (MissingError, IntegrityError) as error:  # an unreadable asset must not hide others
            state, broken = "broken", error
        rows.append(
            {
                "asset": stage.asset,
                "group": stage.group,
                "state": state,
                "own": own,
                "rows": manifest.rows if manifest else None,
                "bytes": manifest.bytes if manifest else None,
                "digest": manifest.digest if manifest else None,
                "error": broken and broken.what,
                "figures": _figures(manifest) if manifest and stage.group == "models" else None,
            }
        )
    return rows


def _figures(model: Manifest) -> dict[str, int | float]:
    """Return what was measured of a model: the numbers in its statistics."""
    return {name: value for name, value in model.stats.items() if isinstance(value, int | float)}


def requests(ctx: Context, recipe: Recipe) -> tuple[str, ...]:
    """Return the keys of the due runs of the release job, one per approved candidate. If no candidate is approved and
    the asset `release` shows an outdated record, return one key for this record.

    Raises:
        PlinthError: the candidates or the history cannot be read.
    """
    ready, unshown = decisions.ready(ctx, recipe), _unshown(ctx, recipe)
    # The evidence is part of the key, so that a failed request is repeated after a change.
    keys = [f"{status.checkpoint}/{fingerprint.digest([dict(g) for g in status.gates])}" for status in ready]
    return tuple(keys) or ((unshown,) if unshown else ())


def _unshown(ctx: Context, recipe: Recipe) -> str:
    """Return a key of the newest record of the signed history if the asset `release` shows an older record. If the
    asset is current, return an empty string.

    `plinth release promote`, `plinth release rollback` and other machines write the history without Dagster.
    """
    history = decisions.history(ctx, recipe)
    if not history or ctx.refs.published("candidate") is None:
        return ""
    shown, last = ctx.refs.published("release"), history[-1].model_dump(mode="json")
    return "" if shown and dict(shown.stats) == last else f"history/{fingerprint.digest(last)}"
