"""What still holds what was taken down, where, and until when. Named even where nothing can be done about it.

A model cannot be made to forget by removing its text: every checkpoint that read it stays on the list until its bytes
are deleted. Copies that Plinth has no record of are on the list as such.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from plinth.compute.context import Context
from plinth.provenance.document_rows import DOCUMENTS
from plinth.provenance.impact.descendants import Descendant, downstream
from plinth.records import Frozen, bucket_of
from plinth.text.plural import counted
from plinth.training.config import load
from plinth_audit.takedown.exposed_runs import HERE, PUBLISHED, REFUSED, RETIRED, ExposedRun
from plinth_audit.takedown.search import FoundDocuments, snapshots_of
from plinth_audit.takedown.similar import NEAR

#: Stages whose published state must be free of what was taken down before anything is called removed.
TEXT_STAGES = ("documents", "curated", "shards", "trace_index", "index", "ledger", "mixture", "minhash")
#: Stages that are listed with the model they belong to.
_MODEL_STAGES = ("run", "checkpoint", "candidate", "release")
_UNTIL_GC = "until `plinth ops gc --delete` deletes it, once no run, candidate, signed record or pin needs it"
HOLDS_TEXT, MAY_HOLD_TEXT, UNKNOWN = "still holds the text", "may still hold the text", "unknown"
TAINTED, NOT_TAINTED = "still holds it: tainted", "still holds it: not tainted"


class Remaining(Frozen):
    """Something that still holds what was taken down.

    Args:
        state: the text itself, or a model that read it and whether a mark freezes that model.
        model: True if it holds the text as parameters.
    """

    what: str
    where: str
    until: str
    state: str = HOLDS_TEXT
    model: bool = False


UNRECORDED = Remaining(
    what="copies that Plinth has no record of",
    where="backups, DVC remotes, copies of exports, downloads of a release",
    until="unknown: ask the people who made them; a backup that is restored brings the text back, until `plinth run`",
    state=MAY_HOLD_TEXT,
)


def taint_state(digests: Collection[str], tainted: Collection[str]) -> str:
    """Tell whether marks freeze all of these manifests of models; a model without a manifest has no mark."""
    return TAINTED if digests and all(one in tainted for one in digests) else NOT_TAINTED


def snapshots_with(ctx: Context, found: Sequence[FoundDocuments], *, published: bool = False) -> dict[str, str]:
    """Saved snapshots that hold documents that were found: digest to asset.

    Args:
        published: True for documents of the published corpus and published snapshots too.
    """
    documents = [one for each in found for one in each.documents if published or not one.published]
    by_ledgers = {(one.bucket, one.ledgers): one for one in documents}
    snapshots = {made.digest: made.asset for one in by_ledgers.values() for made in snapshots_of(ctx, one)}
    current = set() if published else {ref.digest for ref in ctx.refs.all() if ref.asset.endswith(DOCUMENTS)}
    return {digest: asset for digest, asset in sorted(snapshots.items()) if digest not in current}


def derived_from(ctx: Context, found: FoundDocuments) -> frozenset[str]:
    """Digests of all saved manifests that are derived from a snapshot with a document that was found."""
    return frozenset(one.digest for one in descendants_of(ctx, snapshots_with(ctx, [found], published=True)))


def not_rebuilt(descendants: Sequence[Descendant]) -> list[str]:
    """Published assets with text that are derived from a snapshot that holds it."""
    behind = {one.asset for one in descendants if one.state == "published"}
    return sorted(asset for asset in behind if asset.rsplit("/", 1)[-1] in TEXT_STAGES)


def near_duplicates_left(found: Sequence[FoundDocuments]) -> Iterator[Remaining]:
    """Near duplicates that a rule without texts leaves in the corpus."""
    for each in found:
        left = [one for one in each.documents if one.published and one.how == NEAR]
        if left:
            shards = "".join(f"; {name}: {tokens:,} tokens" for name, tokens in each.shards.items())
            yield Remaining(
                what=f"{counted(len(left), 'near duplicate')} of {each.kind} {each.value} under other addresses",
                where="the published corpus: " + ", ".join(one.id for one in left[:10]) + shards,
                until="until they are excluded too (`plinth corpus takedown exclude --texts`)",
            )


def descendants_of(ctx: Context, snapshots: dict[str, str]) -> tuple[Descendant, ...]:
    """Everything that is derived from these snapshots."""
    return downstream(ctx, snapshots) if snapshots else ()


def remaining(
    ctx: Context,
    snapshots: dict[str, str],
    descendants: Sequence[Descendant],
    runs: Sequence[ExposedRun],
    tainted: Collection[str] = (),
    reading: Collection[str] = (),
) -> list[Remaining]:
    """Everything that still holds it, from the source to the checkpoint.

    Args:
        tainted: digests that a mark freezes.
        reading: buckets whose last reading of their sources left some of it out.
    """
    buckets = {bucket_of(asset) for asset in snapshots.values()}.union(reading)
    return [*_sources(ctx, buckets), *_stored(descendants, tainted), *_checkpoints(ctx, runs, tainted)]


def _sources(ctx: Context, buckets: Collection[str]) -> Iterator[Remaining]:
    for bucket in sorted(buckets):
        documents = ctx.refs.published(f"{bucket}{DOCUMENTS}")
        inventory = documents.inputs.get(f"{bucket}/sources", "") if documents else ""
        yield Remaining(
            what=f"the raw sources of {bucket}",
            where=f"where the recipe names them (inventory {inventory[:12]})",
            until="until their owner deletes it there; Plinth writes to no source, and leaves it out at every reading",
        )


def _stored(descendants: Sequence[Descendant], tainted: Collection[str]) -> Iterator[Remaining]:
    """Manifests of earlier snapshots, and published assets that were not rebuilt."""
    saved = [one for one in descendants if one.state == "saved" and _stage(one) not in _MODEL_STAGES]
    if saved:
        assets = ", ".join(sorted({one.asset for one in saved}))
        what = f"{counted(len(saved), 'manifest')} of earlier snapshots, with their blobs"
        yield Remaining(what=what, where=f"the workspace's content store: {assets}", until=_UNTIL_GC)
    for one in descendants:
        if one.state == "published" and _stage(one) not in TEXT_STAGES:
            model = _stage(one) in _MODEL_STAGES
            yield Remaining(
                what=f"{one.asset}, derived from an earlier snapshot and still published",
                where=f"manifest {one.digest[:12]}",
                until="until it is rebuilt: `plinth run`",
                state=taint_state([one.digest], tainted) if model else MAY_HOLD_TEXT,
                model=model,
            )


def _stage(one: Descendant) -> str:
    return one.asset.rsplit("/", 1)[-1]


def _checkpoints(ctx: Context, runs: Sequence[ExposedRun], tainted: Collection[str]) -> Iterator[Remaining]:
    for run in runs:
        if run.unknown:
            what = f"run {run.run}: unknown, {run.unknown}"
            yield Remaining(what=what, where=f"runs/{run.run}", until="unknown", state=UNKNOWN, model=True)
            continue
        config = load(ctx.workspace.runs / run.run / "config.json")
        state = taint_state(run.digests, tainted)
        origin = f" (starts or learns from {run.inherits[:12]}, which read it)" if run.inherits else ""
        places = {place for one in run.checkpoints for place in one.places} - {RETIRED}
        for place in sorted(places):
            steps = ", ".join(f"{one.step:,}" for one in run.checkpoints if place in one.places)
            where, until = _place(place, run.run, config.directory.result.exists(), config.checkpoints.keep_last)
            what = f"run {run.run}{origin}, checkpoints {steps}"
            yield Remaining(what=what, where=where, until=until, state=state, model=True)


def _place(place: str, run: str, ended: bool, keep_last: int) -> tuple[str, str]:
    folder = f"runs/{run}/checkpoints of this workspace"
    if place == HERE:
        kept = "until you delete it: the run has ended, and retention acts only while it trains"
        return folder, kept if ended else f"until retention deletes it, which keeps the last {keep_last}"
    if place == REFUSED:
        return folder, "until the step is saved again, or you delete it"
    if place == PUBLISHED:
        return "the workspace's content store", _UNTIL_GC
    return place, "until it is deleted there, or a lifecycle rule of the bucket deletes it"
