"""A mark with its consequences: everything that it freezes is listed, shown in MLflow, and named to whoever uses it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from plinth.compute.context import Context
from plinth.errors import MissingError, RegistryError, SignatureError
from plinth.provenance.impact import DOCUMENT_ID, affected_runs, descent, downstream, origin
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.report.impact_page import ConsumerRow, VersionRow
from plinth_registry import audit_log, feed, impact, policy, promotion, releases, taint
from plinth_registry.audit_log import AuditedAction
from plinth_registry.feed import FeedEntry
from plinth_registry.mlflow import connection
from plinth_registry.registration import describe, locked
from plinth_registry.releases import ReleaseRecord

#: Tag of a version in MLflow that a mark freezes; for people to read.
TAG = "taint"


class Tainted(Frozen):
    """Marks, with the manifests, runs, versions and aliases that they affect. `gaps` is what could not be looked at or
    delivered."""

    marks: tuple[taint.Taint, ...]
    manifests: tuple[str, ...]
    runs: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    gaps: tuple[str, ...] = ()


def mark_tainted(ctx: Context, target: str, by: str, reason: str) -> Tainted:
    """Mark an asset (its published version), a bucket, a digest or its beginning, a document or a commit as unfit.

    From then on the gate `taint` fails for everything made of it or measured with it, and loaders refuse it. Nothing is
    rolled back automatically.

    Raises:
        MissingError: nothing here has that identity.
        SignatureError: there is no compliance key on this machine, or the log of marks does not hold.
    """
    with audit_log.audited(ctx, AuditedAction("taint", target, by, reason)):
        marks = tuple(taint.mark(ctx, one, by, reason) for one in _targets(ctx, target))
    return _concerned(ctx, marks, f"{by}: {reason}")


def lift_taint(ctx: Context, target: str, by: str, reason: str) -> taint.TaintStatement:
    """Lift the mark on a target; versions in MLflow that no other mark freezes lose the tag.

    Raises:
        MissingError: no mark that stands has that target.
        SignatureError: there is no compliance key on this machine, or the log of marks does not hold.
    """
    with audit_log.audited(ctx, AuditedAction("lift", target, by, reason)):
        done = taint.lift(ctx, target, by, reason)
    frozen = {digest for mark in taint.records(ctx) for digest in _checkpoints(ctx, mark)}
    free = _checkpoints(ctx, done.mark) - frozen
    with suppress(RegistryError):  # the tag is for people to read; what counts is the log
        _show(ctx, impact.versions(ctx, free)[0], "")
    _tell(ctx)
    return done


def champion_gives_way(ctx: Context, recipe: Recipe, entry: FeedEntry) -> ReleaseRecord | None:
    """Return a release to its last good version, or to none: when an entry of the feed says that its champion is
    marked, the mark still stands, and the signed policy asks for it. None where nothing is to be done.

    Raises:
        SignatureError: a log does not hold, or the promoter's key is not on this machine.
        RegistryError: MLflow cannot be reached.
    """
    name = recipe.required_release().name
    champion = releases.history(ctx, name).standing.champion
    if entry.event != "tainted" or champion is None or f"{name}/{champion}" not in entry.versions:
        return None
    if policy.current(ctx, name).policy.tainted_champion == "stays":
        return None
    if not any(one.standing for one in taint.statements(ctx) if one.number == entry.record):
        return None
    client = connection.connect(ctx.workspace)
    reason = f"{entry.target} is marked by {entry.by}: {entry.reason}"
    return promotion.rollback(ctx, client, recipe, by=f"policy of {name}", reason=reason, withdraw=True)


def _targets(ctx: Context, target: str) -> tuple[str, ...]:
    """What is marked for a target: digests, or a document."""
    published = ctx.refs.ref(target)
    if published is not None:
        return (published.digest,)
    if DOCUMENT_ID.fullmatch(target):
        return (target,)
    found = origin(ctx, target)
    if not found.digests:
        raise MissingError(
            f"nothing that {target!r} made is published yet",
            found=f"runs {', '.join(found.runs)}",
            expected="a manifest to mark",
            remedy="stop these runs, or mark them once their checkpoints are registered",
        )
    return tuple(each.digest for each in downstream(ctx, found.digests) if each.steps == 0) or found.digests


def _checkpoints(ctx: Context, mark: taint.Taint) -> frozenset[str]:
    """Digests that a mark freezes, those of checkpoints that it measured too."""
    found = taint.affected(ctx, mark)
    return frozenset(each.digest for each in found) | impact.measured(ctx, found)


def _concerned(ctx: Context, marks: tuple[taint.Taint, ...], words: str) -> Tainted:
    """What is frozen, tagged in MLflow where it can be reached."""
    starts = [one for mark in marks for one in ((mark.target,) if mark.kind == "manifest" else mark.holders)]
    found = descent(ctx, starts)
    checkpoints = found.digests | impact.measured(ctx, found.manifests)
    versions, gaps = impact.versions(ctx, checkpoints)
    try:
        _show(ctx, versions, words)
    except RegistryError as error:
        gaps = (*gaps, error.what)
    gaps = (*gaps, *_tell(ctx))
    return Tainted(
        marks=marks,
        manifests=tuple(f"{each.asset} {each.digest}" for each in found.manifests),
        runs=tuple(run.run_id for run in affected_runs(ctx, found.digests)),
        versions=tuple(f"{row.model}/{row.version}" for row in versions),
        aliases=tuple(sorted(f"{row.model}@{name}" for row in versions for name in row.aliases)),
        consumers=impact.consumer_rows(ctx, checkpoints, versions),
        gaps=gaps,
    )


@connection.named("show marks")
def _show(ctx: Context, versions: Iterable[VersionRow], words: str) -> None:
    client = connection.connect(ctx.workspace)
    for row in versions:
        known = connection.optional(partial(client.get_model_version, row.model, row.version))
        if known is None:
            continue
        if words:
            client.set_model_version_tag(row.model, row.version, TAG, words)
        elif TAG in known.tags:
            client.delete_model_version_tag(row.model, row.version, TAG)
        describe(client, known, {**known.tags, TAG: words})


def _tell(ctx: Context) -> tuple[str, ...]:
    """Add to the feed, send it, and have the head of the release history name it. Returns what still waits, and why."""
    feed.catch_up(ctx)
    with suppress(SignatureError), locked(ctx):  # without the promoter's key, the sensor of its machine signs the head
        releases.refresh(ctx)
    return tuple(f"the webhook of {each.consumer}: {each.error}" for each in feed.deliver(ctx) if each.error)
