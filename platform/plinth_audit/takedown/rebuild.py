"""Assets downstream of the exclusion list: rebuilt, or the reason why nothing can be reported yet.

The state of an asset is that of `plinth status` (`states`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from plinth.provenance.impact.descendants import Descendant
from plinth.records import Frozen
from plinth_audit.takedown.exposed_runs import ExposedRun

UP_TO_DATE = "up to date"


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
