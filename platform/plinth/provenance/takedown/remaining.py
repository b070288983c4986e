"""What still holds what was taken down, where, and until when. Named even where nothing can be done about it.

A model cannot be made to forget by removing its text: every checkpoint that read it stays on the list until its bytes
are deleted. Copies that Plinth has no record of are on the list as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plinth.compute.context import Context
from plinth.provenance.document_rows import DOCUMENTS
from plinth.provenance.impact.descendants import Descendant, downstream
from plinth.provenance.takedown.exposed_runs import HERE, PUBLISHED, REFUSED, RETIRED, ExposedRun
from plinth.provenance.takedown.search import FoundDocuments, snapshots_of
from plinth.records import Frozen, bucket_of
from plinth.training.config import load

#: Stages whose published state must be free of what was taken down before anything is called removed.
TEXT_STAGES = ("documents", "curated", "shards", "trace_index", "index", "ledger", "mixture", "minhash")
_DELETED_BY_HAND = "until somebody deletes it; `plinth gc --delete` does, once nothing needs it"


class Remaining(Frozen):
    """Something that still holds what was taken down. `model` marks what holds it as parameters, not as text."""

    what: str
    where: str
    until: str
    model: bool = False


UNRECORDED = Remaining(
    what="copies that Plinth has no record of",
    where="backups, DVC remotes, copies of exports, downloads of a release",
    until="unknown: ask whoever made them",
)


def snapshots_with(ctx: Context, found: Sequence[FoundDocuments]) -> dict[str, str]:
    """Saved snapshots that hold documents that were found and are not published: digest to asset."""
    documents = [one for each in found for one in each.documents if not one.published]
    by_ledgers = {(one.bucket, one.ledgers): one for one in documents}
    snapshots = {made.digest: made.asset for one in by_ledgers.values() for made in snapshots_of(ctx, one)}
    published = {ref.digest for ref in ctx.refs.all() if ref.asset.endswith(DOCUMENTS)}
    return {digest: asset for digest, asset in sorted(snapshots.items()) if digest not in published}


def not_rebuilt(descendants: Sequence[Descendant]) -> list[str]:
    """Published assets with text that were made of a snapshot that holds it."""
    behind = {one.asset for one in descendants if one.state == "published"}
    return sorted(asset for asset in behind if asset.rsplit("/", 1)[-1] in TEXT_STAGES)


def near_duplicates_left(found: Sequence[FoundDocuments]) -> Iterator[Remaining]:
    """Near duplicates that a rule without texts leaves in the corpus."""
    for each in found:
        left = [one for one in each.documents if one.published]
        if left:
            yield Remaining(
                what=f"{len(left):,} near duplicates of {each.kind} {each.value} under other addresses",
                where="the published corpus: " + ", ".join(one.id for one in left[:10]),
                until="until they are excluded too (`plinth takedown exclude --texts`)",
            )


def descendants_of(ctx: Context, snapshots: dict[str, str]) -> tuple[Descendant, ...]:
    """Everything that was made of these snapshots."""
    return downstream(ctx, snapshots) if snapshots else ()


def remaining(
    ctx: Context,
    snapshots: dict[str, str],
    descendants: Sequence[Descendant],
    runs: Sequence[ExposedRun],
    models: Sequence[Remaining] = (),
) -> list[Remaining]:
    """Everything that still holds it, from the source to the release.

    Args:
        models: candidates, releases and exports, from whoever knows the registry.
    """
    return [*_sources(ctx, snapshots), *_stored(descendants), *_checkpoints(ctx, runs), *models, UNRECORDED]


def _sources(ctx: Context, snapshots: dict[str, str]) -> Iterator[Remaining]:
    for bucket in sorted({bucket_of(asset) for asset in snapshots.values()}):
        documents = ctx.refs.published(f"{bucket}{DOCUMENTS}")
        inventory = documents.inputs.get(f"{bucket}/sources", "") if documents else ""
        yield Remaining(
            what=f"the raw sources of {bucket}",
            where=f"where the recipe names them (inventory {inventory[:12]})",
            until="until their owner deletes it there; Plinth writes to no source, and leaves it out at every reading",
        )


def _stored(descendants: Sequence[Descendant]) -> Iterator[Remaining]:
    """Manifests of earlier snapshots, and published assets that were not made again."""
    text = [one for one in descendants if one.asset.rsplit("/", 1)[-1] in TEXT_STAGES and one.state == "saved"]
    if text:
        assets = ", ".join(sorted({one.asset for one in text}))
        what = f"{len(text)} manifests of earlier snapshots, with their blobs"
        yield Remaining(what=what, where=f"the workspace's content store: {assets}", until=_DELETED_BY_HAND)
    for one in descendants:
        if one.state == "published" and one.asset.rsplit("/", 1)[-1] not in TEXT_STAGES:
            yield Remaining(
                what=f"{one.asset}, made of an earlier snapshot and published still",
                where=f"manifest {one.digest[:12]}",
                until="until it is made again: `plinth run`",
                model=one.asset == "checkpoint",
            )


def _checkpoints(ctx: Context, runs: Sequence[ExposedRun]) -> Iterator[Remaining]:
    for run in runs:
        if run.unknown:
            what = f"run {run.run}: unknown, {run.unknown}"
            yield Remaining(what=what, where=f"runs/{run.run}", until="unknown", model=True)
            continue
        config = load(ctx.workspace.runs / run.run / "config.json")
        places = {place for one in run.checkpoints for place in one.places} - {RETIRED}
        for place in sorted(places):
            steps = ", ".join(f"{one.step:,}" for one in run.checkpoints if place in one.places)
            where, until = _place(place, run.run, config.directory.result.exists(), config.checkpoints.keep_last)
            yield Remaining(what=f"run {run.run}, checkpoints {steps}", where=where, until=until, model=True)


def _place(place: str, run: str, ended: bool, keep_last: int) -> tuple[str, str]:
    folder = f"runs/{run}/checkpoints of this workspace"
    if place == HERE:
        kept = "until somebody deletes it: the run has ended, and retention acts only while it trains"
        return folder, kept if ended else f"until retention deletes it, which keeps the last {keep_last}"
    if place == REFUSED:
        return folder, "until the step is saved anew, or somebody deletes it"
    if place == PUBLISHED:
        return "the workspace's content store", _DELETED_BY_HAND
    return place, "until somebody deletes it there, or a lifecycle rule of the bucket does"
