"""The one decision of what is up to date.

An asset is up to date when its reference holds the key that its stage has now (`Stage.key`: code version, parameters,
digests of the inputs, identity of what is read from outside), the store has every blob of its manifest, what it names
outside the store is there (`Stage.intact`), and what must be signed about it holds. The Dagster asset, `plinth run`,
`plinth status` and the arrival sensor read the decision here. The step cache below it only spares the finished items of
a stage that has to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plinth.compute.context import Context
from plinth.errors import SealError
from plinth.records import Manifest
from plinth_assets.framework.stage import Stage


@dataclass(frozen=True)
class Decision:
    """Assets that are up to date, and assets that must or may have to run; the manifests of those up to date."""

    fresh: tuple[str, ...]
    stale: tuple[str, ...]
    manifests: Mapping[str, Manifest] = field(default_factory=dict, compare=False, repr=False)


def up_to_date(stage: Stage, ctx: Context, digests: Mapping[str, str]) -> Manifest | None:
    """The published manifest if this very work made it from inputs with these digests, else None.

    Raises:
        PlinthError: what the stage reads from outside the workspace cannot be read.
    """
    if any(dep not in digests for dep in stage.deps):
        return None
    key = stage.key(ctx, {dep: digests[dep] for dep in stage.deps})
    try:
        ref = ctx.refs.ref(stage.asset)
    except SealError:  # somebody else's word: the work is done again, and published anew
        return None
    if ref is None or ref.key != key:
        return None
    manifest = ctx.refs.load(ref.digest)
    if manifest.misplaced:  # by an earlier version, which kept the names of parts that had been made before
        return None
    if stage.statement and not stage.statement.holds(ctx, digests, manifest):
        return None
    if stage.intact and not stage.intact(ctx, manifest):
        return None
    return manifest if ctx.store.has_all(part.blob for part in manifest.parts) else None


def decide(ctx: Context, stages: Iterable[Stage]) -> Decision:
    """Decide for all stages, upstream first; an asset that reads a stale one is stale until that one has run."""
    digests: dict[str, str] = {}
    manifests: dict[str, Manifest] = {}
    stale = []
    catalog = tuple(stages)
    with ctx.progress.meter("checking assets", len(catalog)) as meter:
        for stage in catalog:
            meter.advance(0, stage.asset)
            manifest = up_to_date(stage, ctx, digests)
            if manifest is None:
                stale.append(stage.asset)
            else:
                digests[stage.asset], manifests[stage.asset] = manifest.digest, manifest
            meter.advance()
    return Decision(tuple(digests), tuple(stale), manifests)
