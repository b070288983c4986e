"""Consumers of releases, and the impact of an artifact: everything derived from it, up to model versions and their
consumers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError, RegistryError, SignatureError
from plinth.evaluation.measurement import is_measured
from plinth.extensions import nearest
from plinth.provenance.impact import AffectedRun, AssetLink, Descendant, ImpactOrigin, affected_runs, descent, origin
from plinth.provenance.lineage import SavedEdges, current
from plinth.records import Frozen, Name
from plinth.trust.dsse import COMPLIANCE, PROMOTER
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth_registry import releases, taint
from plinth_registry.audit_log import CONSUMERS, FEED
from plinth_registry.exports import ExportNote, noted
from plinth_registry.mlflow import connection

# Consumers: services that use a release and models derived from one, each with its owner.
#
#     consumers/00001.json     enrollments and removals, signed by the promoter or compliance, numbered and chained
#
# A service uses the version under an alias of a release (`demo@champion`). A canary serves only services that opted in.
# A child is an MLflow model whose tag `parent` is the digest of the checkpoint that it is derived from; a child with a
# tag `digest` can be a parent itself.

#: Tags of an MLflow model derived from a released checkpoint.
PARENT, DIGEST = "parent", "digest"
SHA256 = re.compile(r"[0-9a-f]{64}")


class Consumer(Frozen):
    """Service (`model`, `place`) or derived model (`child`, `parent`) that uses a release. `after` is the number of
    feed entries when the consumer was enrolled."""

    name: Name
    owner: str = Field(min_length=3, pattern=r"^[^\s@]+@[^\s@]+$")
    model: str | None = None
    place: str = "champion"
    webhook: str | None = Field(None, pattern=r"^https?://[^\s/@]+(/\S*)?$")
    canary: bool = False
    child: str | None = None
    parent: str | None = None
    digest: str | None = None
    made: str | None = Field(None, description="Time at which the child model was registered (UTC).")
    after: int = 0
    since: str = ""

    @property
    def uses(self) -> str:
        """Release or parent that the consumer uses, as text."""
        return f"{self.child} of {str(self.parent)[:12]}" if self.child else f"{self.model}@{self.place}"


def enrol(
    ctx: Context,
    name: str,
    owner: str,
    *,
    model: str | None = None,
    child: str | None = None,
    webhook: str | None = None,
    canary: bool = False,
) -> Consumer:
    """Enroll a service that uses the release alias `NAME@PLACE`, or a derived model (child) `MODEL/VERSION` in MLflow.

    If the name is already enrolled, the new enrollment replaces the old one.

    Raises:
        MissingError: the release, its alias or the child does not exist, or the child's parent is unknown here.
        SignatureError: neither the promoter's key nor the compliance key is on this machine.
    """
    if (model is None) == (child is None):
        raise MissingError("a consumer needs a release or a child model", expected="one of --model and --child")
    found: dict[str, Any] = _service(ctx, model) if model else _child(ctx, str(child))
    entries = len(releases.log_records(ctx, FEED))
    made = Consumer(name=name, owner=owner, webhook=webhook, canary=canary, after=entries, **found)
    if canary and made.child:
        raise MissingError(f"{name} is a child", expected="a service, since canaries serve only services")
    return _add(ctx, "enrol", made)


def leave(ctx: Context, name: str) -> Consumer:
    """Remove a consumer. Its enrollment stays in the log.

    Raises:
        MissingError: no consumer has that name.
    """
    known = {one.name: one for one in enrolled(ctx)}
    if name not in known:
        remedy = nearest(name, known) or "list consumers with `plinth release consumer list`"
        raise MissingError(f"no consumer {name}", remedy=remedy)
    return _add(ctx, "leave", known[name])


def enrolled(ctx: Context) -> tuple[Consumer, ...]:
    """Return all current consumers, sorted by name.

    Raises:
        SignatureError: a record was edited, removed, moved or forged.
    """
    found: dict[str, Consumer] = {}
    for record in releases.log_records(ctx, CONSUMERS):
        action, consumer = _content(record)
        found.pop(consumer.name, None)
        if action == "enrol":
            found[consumer.name] = consumer
    return tuple(consumer for _, consumer in sorted(found.items()))


def canary_for(ctx: Context, release: str) -> tuple[Consumer, ...]:
    """Return the services of a release that opted in to canaries. No other service gets a canary."""
    return tuple(one for one in enrolled(ctx) if one.canary and one.model == release)


def require_canary(ctx: Context, release: str, name: str) -> Consumer:
    """Return the consumer with this name, if it may get canaries of the release.

    Raises:
        GateError: the consumer is not enrolled for canaries of this release.
    """
    for one in canary_for(ctx, release):
        if one.name == name:
            return one
    raise GateError(
        f"{name} is not served by canaries of {release}",
        expected=", ".join(one.name for one in canary_for(ctx, release)) or "no consumer opted in",
        remedy=f"enroll the consumer for canaries: `plinth release consumer add {name} --owner PERSON --model "
        f"{release}@champion --canary`",
    )


def concerned(ctx: Context, checkpoints: Collection[str], models: Iterable[str]) -> tuple[Consumer, ...]:
    """Return the services that use these models, and the models derived from these checkpoints, directly or through
    other derived models. The result is sorted by name."""
    everybody, names, known = enrolled(ctx), set(models), set(checkpoints)
    found = {one.name: one for one in everybody if one.model in names}
    while more := [one for one in everybody if one.parent in known and one.name not in found]:
        found |= {one.name: one for one in more}
        known |= {one.digest for one in more if one.digest}
    return tuple(one for _, one in sorted(found.items()))


def seconds_after_release(ctx: Context, consumer: Consumer) -> float | None:
    """Return the seconds from the release of a derived model's parent to the model's registration. Return None for a
    service, or if the parent was not released."""
    if consumer.made is None:
        return None
    for record in releases.history(ctx):
        if record.action in ("canary", "champion") and record.candidate.get("checkpoint") == consumer.parent:
            return (datetime.fromisoformat(consumer.made) - datetime.fromisoformat(record.at)).total_seconds()
    return None


def versions_now(ctx: Context, consumer: Consumer) -> tuple[str, ...]:
    """Return the versions that a service may use according to the signed history. The last version is the version under
    the service's alias. If the service opted in and there is a canary, the canary comes first."""
    if consumer.model is None:
        return ()
    places = releases.history(ctx, consumer.model).standing.aliases
    trial = places["canary"] if consumer.canary else None
    own = None if consumer.place == "canary" else places[consumer.place]
    return tuple(dict.fromkeys(version for version in (trial, own) if version is not None))


def version_for(ctx: Context, release: str, name: str) -> str:
    """Return the version of a release that a consumer loads, which is the first version in `versions_now`. For a
    consumer that is not enrolled for this release, return the champion.

    Raises:
        MissingError: there is no version for the consumer.
    """
    for one in enrolled(ctx):
        if one.name == name and one.model == release:
            served, place = versions_now(ctx, one), one.place
            break
    else:
        champion, place = releases.history(ctx, release).standing.champion, "champion"
        served = () if champion is None else (champion,)
    if not served:
        raise MissingError(
            f"{release} has no {place} for {name}", remedy="list consumers with `plinth release consumer list`"
        )
    return served[0]


def signing_role(ctx: Context) -> str:
    """Return `promoter` if its key is on this machine, otherwise `compliance` if its key is.

    Raises:
        SignatureError: neither key is on this machine.
    """
    trust = Trust.of(ctx.workspace)
    try:
        trust.signer(PROMOTER)
    except SignatureError:
        trust.signer(COMPLIANCE)
        return COMPLIANCE
    return PROMOTER


def _add(ctx: Context, action: str, consumer: Consumer) -> Consumer:
    role = signing_role(ctx)
    body = {"action": action, "consumer": consumer.model_dump(mode="json", exclude={"since"})}
    subject = {"parent": consumer.parent} if consumer.parent else {}
    made = CONSUMERS.append(ctx, body, {name: str(digest) for name, digest in subject.items()}, role)
    return consumer.model_copy(update={"since": made.at})


def _content(record: LogRecord) -> tuple[Literal["enrol", "leave"], Consumer]:
    try:
        return record.body["action"], Consumer.model_validate({**record.body["consumer"], "since": record.at})
    except (KeyError, TypeError, ValueError) as error:
        raise SignatureError(
            f"record {record.number} of consumers/ is not a registration of a consumer", found=error
        ) from error


def _service(ctx: Context, model: str) -> dict[str, Any]:
    name, _, place = model.partition("@")
    known = releases.history(ctx)
    models = {record.model for record in known}
    if name not in models:
        raise MissingError(f"no release {name}", remedy=nearest(name, models) or "list releases with `plinth status`")
    places = known.of(name).standing.aliases
    if place and place not in places:
        raise MissingError(f"{name} has no alias {place}", expected=" or ".join(places))
    return {"model": name, "place": place or "champion"}


@connection.named("find a child")
def _child(ctx: Context, child: str) -> dict[str, Any]:
    name, _, version = child.rpartition("/")
    client = connection.connect(ctx.workspace)
    held = connection.optional(lambda: client.get_model_version(name, version)) if name else None
    if held is None:
        raise MissingError(f"no model {child} in MLflow", expected="MODEL/VERSION")
    parent, digest = held.tags.get(PARENT, ""), held.tags.get(DIGEST)
    known = {record.candidate.get("checkpoint") for record in releases.history(ctx)}
    known |= {one.digest for one in enrolled(ctx)}
    if parent not in known or not SHA256.fullmatch(parent):
        raise MissingError(
            f"{child} does not name a parent that was released from this workspace",
            found=f"tag `{PARENT}` = {parent!r}",
            expected="the digest of a released checkpoint, or of a registered child",
            remedy=f"set the tag `{PARENT}` of the model version to this digest",
        )
    made = datetime.fromtimestamp(held.creation_timestamp / 1000, UTC).isoformat(timespec="seconds")
    return {"child": child, "parent": parent, "digest": digest, "made": made}


# Impact: everything derived from an artifact, up to model versions and their consumers.
#
# Manifests and runs are found in the workspace, releases in the signed history, candidates and aliases in MLflow. If
# MLflow is unreachable, `gaps` lists candidates and aliases as not searched.


class VersionRow(Frozen):
    """A model version that derives from the artifact, with its aliases."""

    model: str
    version: str
    checkpoint: str
    aliases: tuple[str, ...] = ()


class ConsumerRow(Frozen):
    """A service or model that uses a release, with its owner."""

    name: str
    owner: str
    uses: str


class ExportRow(Frozen):
    """An export of an affected model, or of affected text or tokens, with its target and time."""

    name: str
    status: str
    to: str
    at: str


class Impact(Frozen):
    """Everything derived from a target, including versions that were only measured with it. `gaps` lists the parts of
    the workspace that could not be searched. If `gaps` is empty, the other lists are complete."""

    origin: ImpactOrigin
    manifests: tuple[Descendant, ...]
    links: tuple[AssetLink, ...]
    runs: tuple[AffectedRun, ...]
    versions: tuple[VersionRow, ...]
    consumers: tuple[ConsumerRow, ...] = ()
    exports: tuple[ExportRow, ...] = ()
    marks: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def impact(ctx: Context, target: str) -> Impact:
    """Return everything derived from an asset, source, digest, document or commit.

    Raises:
        MissingError: no artifact has that name, or several artifacts have it.
        IntegrityError: a saved manifest cannot be read.
        SignatureError: the history of releases was changed.
    """
    saved = current(ctx)
    begun = origin(ctx, target, saved)
    found = descent(ctx, begun.digests, saved)
    checkpoints = found.digests | measured(ctx, found.manifests)
    known, gaps = affected_versions(ctx, checkpoints)
    notes = noted(ctx)
    runs = affected_runs(ctx, found.digests, begun.runs, {note.run for note in notes})
    gone = sorted({note.run for note in notes if note.run and not (ctx.workspace.runs / note.run).exists()})
    concerned = {*found.digests, *begun.digests}
    standing = [one for one in taint.records(ctx) if not concerned.isdisjoint(_frozen(ctx, one, saved))]
    return Impact(
        origin=begun,
        manifests=found.manifests,
        links=found.links,
        runs=runs,
        versions=known,
        consumers=consumer_rows(ctx, checkpoints, known),
        exports=_export_rows(notes, checkpoints | concerned, {run.run_id for run in runs}),
        marks=tuple(f"{one.kind} {one.target[:16]} is tainted by {one.by}: {one.reason}" for one in standing),
        gaps=(*gaps, *(f"exports of run {run}, because its folder was deleted" for run in gone)),
    )


def _export_rows(notes: Iterable[ExportNote], digests: Collection[str], runs: Collection[str]) -> tuple[ExportRow, ...]:
    """Return the exports of these manifests, and of unreleased checkpoints of these runs."""
    return tuple(
        ExportRow(name=note.name, status=note.status, to=note.to, at=note.at)
        for note in notes
        if note.is_of(digests, (note.name,) if note.run in runs else ())
    )


def measured(ctx: Context, manifests: Iterable[Descendant]) -> frozenset[str]:
    """Return the checkpoints that these manifests measure. The gates of these checkpoints read the manifests as
    evidence."""
    wanted = (each for each in manifests if is_measured(each.asset) and each.state != "deleted")
    return frozenset(ctx.refs.load(each.digest).inputs.get("checkpoint", "") for each in wanted) - {""}


def affected_versions(ctx: Context, checkpoints: Collection[str]) -> tuple[tuple[VersionRow, ...], tuple[str, ...]]:
    """Return the model versions derived from these checkpoints, sorted by model and number, and the reasons why the
    search may be incomplete."""
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
    """Return the consumers of the versions' models, and the models derived from the checkpoints, with their owners."""
    affected = {f"{row.model}/{row.version}" for row in known}
    found = []
    for one in concerned(ctx, checkpoints, {row.model for row in known}):
        held = versions_now(ctx, one)
        now = f", now version {' and '.join(held)}" if held else ""
        fate = ", affected" if one.child or affected & {f"{one.model}/{version}" for version in held} else ""
        found.append(ConsumerRow(name=one.name, owner=one.owner, uses=f"{one.uses}{now}{fate}"))
    return tuple(found)


@connection.named("list versions")
def _registered(
    ctx: Context, checkpoints: Collection[str], released: dict[tuple[str, str], str]
) -> dict[tuple[str, str], VersionRow]:
    """Return the versions of these checkpoints in MLflow, with their aliases. Releases are identified by signed
    records, because tags are not trusted."""
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
