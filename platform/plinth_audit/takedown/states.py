"""Assets downstream of the exclusion list: their state as in `plinth status`; rebuilt, or the reason why not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from plinth.compute.context import Context
from plinth.provenance.document_rows import DOCUMENTS, SEARCHED_ASSETS
from plinth.provenance.edges import current
from plinth.provenance.impact import Descendant
from plinth.records import Frozen
from plinth_assets.catalog import stages
from plinth_assets.framework.stage import Stage
from plinth_audit.takedown.exposed_runs import ExposedRun
from plinth_jobs.asset_states import status
from plinth_jobs.recipes import load

UP_TO_DATE, NOT_MADE = "up to date", "not made"
#: The asset from which on everything is derived from a trained model.
TRAINED = "run"
#: Assets of this group follow decisions of people: the report reads them from the signed history.
DECIDED = "release"


class DownstreamAsset(Frozen):
    """An asset that reads documents, directly or not.

    Args:
        state: as `plinth status` shows it.
        digest: of its published manifest.
        model: True if it is derived from a trained model.
    """

    asset: str
    state: str
    digest: str | None = None
    model: bool = False


class RebuiltAsset(Frozen):
    """An asset whose earlier versions were derived from what was taken down, and whose published one is not."""

    asset: str
    digest: str
    earlier: int


def downstream(ctx: Context, recipe_path: Path) -> tuple[DownstreamAsset, ...]:
    """List every asset that reads documents, directly or not, with its state.

    An asset that was never materialized holds nothing and is left out, unless earlier versions of it are saved, or a
    search needs it and what it reads is there: then it is unknown what holds the text.
    """
    recipe = load(recipe_path)
    catalog = [stage for stage in stages(recipe) if stage.group != DECIDED]
    rows = {row["asset"]: row for row in status(ctx, recipe)}
    made = {asset for asset, row in rows.items() if row["state"] != NOT_MADE}
    saved = frozenset(current(ctx).edges.assets)
    reading = _reading(catalog, [stage.asset for stage in catalog if stage.asset.endswith(DOCUMENTS)])
    models = _reading(catalog, [TRAINED])
    return tuple(
        DownstreamAsset(
            asset=stage.asset,
            state=_state(rows[stage.asset]["state"]),
            digest=rows[stage.asset]["digest"],
            model=stage.asset in models,
        )
        for stage in catalog
        if stage.asset in reading and (stage.asset in made or stage.asset in saved or _is_searched(stage, made))
    )


def _reading(catalog: Collection[Stage], origins: Collection[str]) -> frozenset[str]:
    """The origins and all assets that read one of them, directly or not; the catalog lists inputs first."""
    found = set(origins)
    for stage in catalog:
        if found.intersection(stage.deps):
            found.add(stage.asset)
    return frozenset(found)


def _is_searched(stage: Stage, made: Collection[str]) -> bool:
    """True if a search for what holds a text reads the asset, and the asset could have been materialized."""
    return bool(SEARCHED_ASSETS.fullmatch(stage.asset)) and all(dep in made for dep in stage.deps)


def _state(shown: str) -> str:
    return "never materialized" if shown == NOT_MADE else shown


def behind(assets: Sequence[DownstreamAsset], runs: Sequence[ExposedRun], *, models: bool) -> Iterator[str]:
    """List what is stale or unknown, by state.

    Args:
        models: False to pass over trained models; they are listed with what still holds it.
    """
    late = [one for one in assets if one.state != UP_TO_DATE and (models or not one.model)]
    for state in dict.fromkeys(one.state for one in late):
        yield f"{state}: {', '.join(one.asset for one in late if one.state == state)}"
    if models:
        yield from (f"unknown: run {run.run} ({run.unknown})" for run in runs if run.unknown)


def rebuilt(assets: Sequence[DownstreamAsset], descendants: Sequence[Descendant]) -> tuple[RebuiltAsset, ...]:
    """List assets that are up to date and whose earlier versions were derived from what was taken down."""
    held = [(one.asset, one.digest) for one in descendants]
    return tuple(
        RebuiltAsset(asset=one.asset, digest=one.digest, earlier=sum(asset == one.asset for asset, _ in held))
        for one in assets
        if one.state == UP_TO_DATE and one.digest and _once_held(one, held)
    )


def _once_held(one: DownstreamAsset, held: Collection[tuple[str, str]]) -> bool:
    return any(asset == one.asset for asset, _ in held) and (one.asset, one.digest) not in held
