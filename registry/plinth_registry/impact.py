"""Impact: everything that came of something, up to the versions of models and whoever uses them.

Manifests and runs are found in the workspace, releases in the signed history. Candidates and aliases are MLflow's;
where it does not run, the result says that they were not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any

from plinth.compute.context import Context
from plinth.errors import RegistryError
from plinth.evaluation.measurement import is_measured
from plinth.provenance.edges import SavedEdges, current
from plinth.provenance.impact import AffectedRun, AssetLink, Descendant, ImpactOrigin, affected_runs, descent, origin
from plinth.records import Frozen
from plinth.report.impact_page import LISTED, ConsumerRow, ImpactArrow, ImpactBox, ImpactData, ImpactRow, VersionRow
from plinth_registry import consumers, releases, taint
from plinth_registry.mlflow import connection


class Impact(Frozen):
    """Everything that came of a target; versions also where it only measured them. `gaps` names what could not be
    searched; without it the lists are complete."""

    origin: ImpactOrigin
    manifests: tuple[Descendant, ...]
    links: tuple[AssetLink, ...]
    runs: tuple[AffectedRun, ...]
    versions: tuple[VersionRow, ...]
    consumers: tuple[ConsumerRow, ...] = ()
    marks: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def impact(ctx: Context, target: str) -> Impact:
    """Everything that came of an asset, source, digest, document or commit.

    Raises:
        MissingError: nothing has that name, or several things do.
        IntegrityError: a saved manifest cannot be read.
        SignatureError: the history of releases was changed.
    """
    saved = current(ctx)
    begun = origin(ctx, target, saved)
    found = descent(ctx, begun.digests, saved)
    checkpoints = found.digests | measured(ctx, found.manifests)
    known, gaps = versions(ctx, checkpoints)
    concerned = {*found.digests, *begun.digests}
    standing = [one for one in taint.records(ctx) if not concerned.isdisjoint(_frozen(ctx, one, saved))]
    return Impact(
        origin=begun,
        manifests=found.manifests,
        links=found.links,
        runs=affected_runs(ctx, found.digests, begun.runs),
        versions=known,
        consumers=consumer_rows(ctx, checkpoints, known),
        marks=tuple(f"{one.kind} {one.target[:16]} is marked by {one.by}: {one.reason}" for one in standing),
        gaps=gaps,
    )


def measured(ctx: Context, manifests: Iterable[Descendant]) -> frozenset[str]:
    """Checkpoints that some of these manifests are measurements of: their gates read them."""
    wanted = (each for each in manifests if is_measured(each.asset) and each.state != "deleted")
    return frozenset(ctx.refs.load(each.digest).inputs.get("checkpoint", "") for each in wanted) - {""}


def versions(ctx: Context, checkpoints: Collection[str]) -> tuple[tuple[VersionRow, ...], tuple[str, ...]]:
    """Versions of models made of these checkpoints, by model and number; and what could not be looked at."""
    released = {
        (record.model, record.version): record.candidate["checkpoint"]
        for record in releases.history(ctx)
        if record.version is not None and record.candidate.get("checkpoint") in checkpoints
    }
    found = {key: VersionRow(model=key[0], version=key[1], checkpoint=digest) for key, digest in released.items()}
    try:
        found |= _registered(ctx, checkpoints, released)
    except RegistryError as error:
        return _ordered(found), (error.what,)
    return _ordered(found), ()


def _frozen(ctx: Context, mark: taint.Taint, saved: SavedEdges) -> frozenset[str]:
    starts = (mark.target,) if mark.kind == "manifest" else mark.holders
    return descent(ctx, starts, saved).digests | {*starts}


def consumer_rows(ctx: Context, checkpoints: Collection[str], known: Iterable[VersionRow]) -> tuple[ConsumerRow, ...]:
    """Consumers of these versions' models, and children of these checkpoints, with who answers for each."""
    affected = {f"{row.model}/{row.version}" for row in known}
    found = []
    for one in consumers.concerned(ctx, checkpoints, {row.model for row in known}):
        held = consumers.versions_now(ctx, one)
        now = f", now version {' and '.join(held)}" if held else ""
        fate = ", affected" if one.child or affected & {f"{one.model}/{version}" for version in held} else ""
        found.append(ConsumerRow(name=one.name, owner=one.owner, uses=f"{one.uses}{now}{fate}"))
    return tuple(found)


def contents(found: Impact) -> ImpactData:
    """What the page shows."""
    first = {each.asset for each in found.manifests if each.steps == 0}
    saved = Counter(each.asset for each in found.manifests)
    published = Counter(each.asset for each in found.manifests if each.state == "published")
    return ImpactData(
        kind=found.origin.kind,
        target=found.origin.target,
        marks=found.marks,
        gaps=found.gaps,
        boxes=tuple(
            ImpactBox(name=name, manifests=saved[name], published=published[name], origin=name in first)
            for name in saved
        ),
        arrows=tuple(ImpactArrow.model_validate(link._asdict()) for link in found.links),
        manifests=tuple(ImpactRow.model_validate(asdict(each)) for each in found.manifests[:LISTED]),
        count=len(found.manifests),
        runs=tuple((run.run_id, run.checkpoints) for run in found.runs),
        versions=found.versions,
        consumers=found.consumers,
    )


@connection.named("list versions")
def _registered(
    ctx: Context, checkpoints: Collection[str], released: dict[tuple[str, str], str]
) -> dict[tuple[str, str], VersionRow]:
    """What MLflow has of these checkpoints, with aliases; a release counts by its record, whatever its tags say."""
    client = connection.connect(ctx.workspace)
    found: dict[tuple[str, str], VersionRow] = {}
    for model in connection.models(client):
        for version in connection.versions(client, model.name):
            key = (model.name, str(version.version))
            checkpoint = released.get(key) or str(version.tags.get("checkpoint", ""))
            if checkpoint in checkpoints:
                found[key] = VersionRow(
                    model=key[0], version=key[1], checkpoint=checkpoint, aliases=_aliases(model, key[1])
                )
    return found


def _aliases(model: Any, version: str) -> tuple[str, ...]:
    return tuple(sorted(name for name, held in model.aliases.items() if str(held) == version))


def _ordered(found: dict[tuple[str, str], VersionRow]) -> tuple[VersionRow, ...]:
    return tuple(row for _, row in sorted(found.items(), key=lambda item: (item[0][0], int(item[0][1]))))
