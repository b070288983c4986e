"""Signed feed for consumers, and the freeze that follows a taint. The freeze lists everything derived from the tainted
artifact, shows it in MLflow and notifies the consumers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import MissingError, RegistryError, SignatureError
from plinth.provenance.impact import DOCUMENT_ID, affected_runs, descent, downstream, origin
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.storage.atomic import locked as locked_file
from plinth.storage.atomic import write_bytes
from plinth.trust import dsse
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth_registry import audit_log, consumers, policy, promotion, releases, taint
from plinth_registry.audit_log import FEED, AuditedAction
from plinth_registry.consumers import Consumer, ConsumerRow, VersionRow, enrolled
from plinth_registry.mlflow import connection
from plinth_registry.registration import describe, locked
from plinth_registry.releases import ReleaseRecord
from plinth_registry.taint import TaintStatement

# The feed of consumers: signed and numbered, so that gaps are detected.
#
#     feed/00001.json     one taint, one lifted taint, or one release change, with affected versions and consumers
#
# The feed follows two other signed logs, the taints and the release history: `catch_up_feed` adds an entry for each
# record that has none yet, so that nothing is lost when a process dies between the two. A consumer verifies every
# entry against its pinned root and the entry before (`received`); a missing, repeated or moved entry is refused by
# name.

#: Maximum number of published assets named in an entry; `impact` lists all.
ASSETS = 50


class FeedEntry(Frozen):
    """Verified entry of the consumers' feed. `of` is the log with the reported record (`taint` or `releases`), and
    `record` is the number of the record."""

    number: int
    sha256: str
    at: str
    signed_by: tuple[str, ...]
    event: str
    of: str
    record: int
    target: str
    by: str
    reason: str
    versions: tuple[str, ...] = ()
    consumers: Mapping[str, str] = {}
    assets: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The feed entry as one sentence."""
        concerned = ", ".join(f"{name} ({owner})" for name, owner in self.consumers.items()) or "no registered consumer"
        versions = ", ".join(self.versions) or "no version"
        return f"{self.event}: {self.target}, by {self.by}: {self.reason}. Affected: {versions}; {concerned}."


def feed_entries(ctx: Context, after: int = 0) -> tuple[FeedEntry, ...]:
    """Return the feed entries with a number higher than `after`, oldest first.

    Raises:
        SignatureError: an entry was edited, removed, moved or forged.
    """
    return tuple(_entry(record) for record in releases.log_records(ctx, FEED)[after:])


def received(ctx: Context, data: bytes, before: LogRecord | None) -> tuple[FeedEntry, LogRecord]:
    """Verify an entry that a consumer received, from the bytes of its file and the previous entry. The previous entry
    is None for the first entry.

    Raises:
        SignatureError: the entry was not signed by an allowed role or was changed, or the consumer missed an earlier
            entry.
    """
    record = FEED.next(Trust.of(ctx.workspace), data, "the entry received", before)
    return _entry(record), record


def catch_up_feed(ctx: Context) -> tuple[FeedEntry, ...]:
    """Add missing entries to the feed: first taints and lifted taints, then release changes. Return the new entries.

    Raises:
        SignatureError: a log does not verify, or neither the promoter's key nor the compliance key is on this machine.
    """
    made = []
    with locked_file(ctx.workspace.root / FEED.name / ".catch_up"):
        known = {(entry.of, entry.record) for entry in feed_entries(ctx)}
        for statement in taint.statements(ctx):
            if ("taint", statement.number) not in known:
                made.append(_add(ctx, _of_mark(ctx, statement)))
        for record in releases.history(ctx):
            if ("releases", record.number) not in known:
                made.append(_add(ctx, _of_release(ctx, record)))
    return tuple(made)


def _of_mark(ctx: Context, statement: TaintStatement) -> dict[str, Any]:
    mark = statement.mark
    found = descent(ctx, [mark.target] if mark.kind == "manifest" else mark.holders)
    checkpoints = found.digests | consumers.measured(ctx, found.manifests)
    versions = {
        (record.model, str(record.version))
        for record in releases.history(ctx)
        if record.version is not None and record.candidate.get("checkpoint") in checkpoints
    }
    concerned = consumers.concerned(ctx, checkpoints, {model for model, _ in versions})
    return {
        "event": "tainted" if statement.action == "mark" else "lifted",
        "of": "taint",
        "record": statement.number,
        "target": f"{mark.kind} {mark.target}",
        "by": statement.by,
        "reason": statement.reason,
        "versions": sorted(f"{model}/{version}" for model, version in versions),
        "consumers": {one.name: one.owner for one in concerned},
        "assets": [each.asset for each in found.manifests if each.state == "published"][:ASSETS],
    }


def _of_release(ctx: Context, record: ReleaseRecord) -> dict[str, Any]:
    concerned = consumers.concerned(ctx, (), {record.model})
    if record.action in ("canary", "returned"):
        concerned = consumers.canary_for(ctx, record.model)
    moved = record.previous if record.action == "returned" else record.version or record.previous
    return {
        "event": record.action,
        "of": "releases",
        "record": record.number,
        "target": f"{record.model} version {moved}",
        "by": record.by,
        "reason": record.reason,
        "versions": [f"{record.model}/{version}" for version in (record.version, record.previous) if version],
        "consumers": {one.name: one.owner for one in concerned},
    }


def _add(ctx: Context, body: Mapping[str, Any]) -> FeedEntry:
    subject = {str(body["of"]): fingerprint.digest(dict(body))}
    return _entry(FEED.append(ctx, body, subject, consumers.signing_role(ctx)))


def _entry(record: LogRecord) -> FeedEntry:
    try:
        return FeedEntry.model_validate(
            {
                **record.body,
                "number": record.number,
                "sha256": record.sha256,
                "at": record.at,
                "signed_by": record.owners,
            }
        )
    except ValueError as error:
        raise SignatureError(f"entry {record.number} of the release feed cannot be read", found=error) from error


# Delivery of feed entries to webhooks: at least once, in order, signed twice.
#
#     POST URL
#     X-Plinth-Sequence: 12                           the number of the entry
#     Idempotency-Key: <SHA-256 of the entry>         the same for every attempt
#     X-Plinth-Signature: t=<Unix time>,v1=<hex>      HMAC-SHA256, keyed with the consumer's secret, of `<t>.<body>`
#
#     <the entry's file: a DSSE envelope>
#
# The HMAC authenticates this workspace and the time; the envelope authenticates the author. The secret is created with
# the consumer, shown once, and stored next to the pinned root with mode 600, with the number of the last accepted entry
# (status 2xx): entries that were not accepted are sent again. Anyone who can write the workspace can stop the delivery.

ATTEMPTS = 4
FIRST_WAIT_S = 0.5  # doubled after each attempt
TIMEOUT_S = 10.0
SEQUENCE, KEY, SIGNATURE = "X-Plinth-Sequence", "Idempotency-Key", "X-Plinth-Signature"


class Delivery(Frozen):
    """Result of delivering the feed to one consumer. `error` is the reason why the remaining entries were not
    delivered."""

    consumer: str
    sent: int
    waiting: int
    error: str | None = None


def make_secret(ctx: Context, name: str) -> str:
    """Create and store a new webhook secret for a consumer. The consumer's owner verifies deliveries with it."""
    secret = secrets.token_hex(32)
    path = _secret_path(Trust.of(ctx.workspace), name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(path, secret.encode(), mode=0o600)
    return secret


def deliver(ctx: Context, attempts: int = ATTEMPTS, wait: Callable[[float], None] = time.sleep) -> tuple[Delivery, ...]:
    """Send every consumer the entries that it has not accepted, oldest first. A failed delivery stops only the delivery
    to this consumer.

    Args:
        attempts: number of attempts per entry and call.

    Raises:
        SignatureError: the feed or the list of consumers does not verify.
    """
    feed = feed_entries(ctx)
    send = partial(_post, ctx, attempts=attempts, wait=wait)
    return tuple(_to_one(ctx, consumer, feed, send) for consumer in enrolled(ctx) if consumer.webhook)


def delivery_signature(secret: str, at: int, body: bytes) -> str:
    """Return the value of the signature header for a webhook request."""
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


def verified_delivery(secret: str, header: str, body: bytes, now: float, within_s: float = 300.0) -> bool:
    """Return True if a consumer may trust a webhook request: its HMAC verifies, and its time is recent."""
    at = header.partition(",")[0].removeprefix("t=")
    if not at.isascii() or not at.isdigit() or abs(now - int(at)) > within_s:
        return False
    return hmac.compare_digest(delivery_signature(secret, int(at), body), header)


def _to_one(ctx: Context, consumer: Consumer, feed: tuple[FeedEntry, ...], send: Callable[..., None]) -> Delivery:
    trust = Trust.of(ctx.workspace)
    seen_as = [f"webhook {consumer.name} of {place}" for place in ctx.workspace.places]
    waiting = feed[max(consumer.after, trust.seen(*seen_as)) :]
    for sent, entry in enumerate(waiting):
        try:
            send(consumer, _secret(trust, consumer.name), entry)
        except (OSError, SignatureError) as error:  # the errors of `requests` are OSErrors
            line = " ".join(str(error).split())
            return Delivery(consumer=consumer.name, sent=sent, waiting=len(waiting) - sent, error=line)
        trust.remember(seen_as[0], entry.number)
    return Delivery(consumer=consumer.name, sent=len(waiting), waiting=0)


def _post(
    ctx: Context, consumer: Consumer, secret: str, entry: FeedEntry, attempts: int, wait: Callable[[float], None]
) -> None:
    import requests

    path = FEED.path(ctx, entry.number)
    body = dsse.bytes_of(path)
    if hashlib.sha256(body).hexdigest() != entry.sha256:
        raise SignatureError(f"{path} was replaced", expected="the entry that was verified")
    headers = {"Content-Type": "application/vnd.dsse+json", SEQUENCE: str(entry.number), KEY: entry.sha256}
    for attempt in range(attempts):
        if attempt:
            wait(FIRST_WAIT_S * 2 ** (attempt - 1))
        try:
            signed = headers | {SIGNATURE: delivery_signature(secret, int(time.time()), body)}
            answer = requests.post(
                str(consumer.webhook), data=body, headers=signed, timeout=TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException:
            if attempt == attempts - 1:
                raise
            continue
        if 200 <= answer.status_code < 300:
            return
    raise OSError(f"{consumer.webhook} answered {answer.status_code} to entry {entry.number}, {attempts} times")


def _secret(trust: Trust, name: str) -> str:
    try:
        return _secret_path(trust, name).read_text().strip()
    except FileNotFoundError as error:
        raise SignatureError(
            f"the webhook secret of consumer {name} is not on this machine",
            remedy="deliver from the machine where the consumer was added, or add the consumer again",
        ) from error


def _secret_path(trust: Trust, name: str) -> Path:
    return trust.folder / "webhooks" / f"{name}.secret"


# A taint with its consequences: everything that it freezes is listed, shown in MLflow, and reported to consumers.

#: MLflow tag of a tainted version, for people to read.
TAG = "taint"


class Tainted(Frozen):
    """Taints with the affected manifests, runs, versions and aliases. `gaps` lists what could not be checked or
    delivered."""

    marks: tuple[taint.Taint, ...]
    manifests: tuple[str, ...]
    runs: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    gaps: tuple[str, ...] = ()


def mark_tainted(ctx: Context, target: str, by: str, reason: str) -> Tainted:
    """Taint an asset (its published version), a bucket, a digest or a prefix of it, a document or a commit.

    From then on, the gate `taint` fails for everything derived from the target or measured with it, and loaders reject
    it. Nothing is rolled back automatically.

    Raises:
        MissingError: the workspace has no such artifact.
        SignatureError: there is no compliance key on this machine, or the taint log does not verify.
    """
    with audit_log.audited(ctx, AuditedAction("taint", target, by, reason)):
        marks = tuple(taint.mark(ctx, one, by, reason) for one in _targets(ctx, target))
    return _concerned(ctx, marks, f"{by}: {reason}")


def lift_taint(ctx: Context, target: str, by: str, reason: str) -> taint.TaintStatement:
    """Lift the taint on a target. A version in MLflow loses its taint tag, unless another taint freezes it.

    Raises:
        MissingError: no active taint has that target.
        SignatureError: there is no compliance key on this machine, or the taint log does not verify.
    """
    with audit_log.audited(ctx, AuditedAction("lift", target, by, reason)):
        done = taint.lift(ctx, target, by, reason)
    frozen = {digest for mark in taint.records(ctx) for digest in _checkpoints(ctx, mark)}
    free = _checkpoints(ctx, done.mark) - frozen
    with suppress(RegistryError):  # the tag is for people; the log decides
        _show(ctx, consumers.affected_versions(ctx, free)[0], "")
    _tell(ctx)
    return done


def champion_gives_way(ctx: Context, recipe: Recipe, entry: FeedEntry) -> ReleaseRecord | None:
    """Roll back a release to its last good version, or withdraw it, if the signed policy requires this for a tainted
    champion. The feed entry must report that the champion is tainted, and the taint must still be active. Return None
    if nothing is to be done.

    Raises:
        SignatureError: a log does not verify, or the promoter's key is not on this machine.
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
    reason = f"{entry.target} is tainted by {entry.by}: {entry.reason}"
    return promotion.rollback(ctx, client, recipe, by=f"policy of {name}", reason=reason, withdraw=True)


def _targets(ctx: Context, target: str) -> tuple[str, ...]:
    """Return the digests or the document ID to taint for a target."""
    published = ctx.refs.ref(target)
    if published is not None:
        return (published.digest,)
    if DOCUMENT_ID.fullmatch(target):
        return (target,)
    found = origin(ctx, target)
    if not found.digests:
        raise MissingError(
            f"no output of {target!r} is published yet",
            found=f"runs {', '.join(found.runs)}",
            expected="a manifest",
            remedy="stop these runs, or taint their checkpoints once they are registered",
        )
    return tuple(each.digest for each in downstream(ctx, found.digests) if each.steps == 0) or found.digests


def _checkpoints(ctx: Context, mark: taint.Taint) -> frozenset[str]:
    """Return the digests that a taint freezes: the tainted manifests, everything derived from them, and the checkpoints
    that were measured with any of these."""
    found = taint.affected(ctx, mark)
    return frozenset(each.digest for each in found) | consumers.measured(ctx, found)


def _concerned(ctx: Context, marks: tuple[taint.Taint, ...], words: str) -> Tainted:
    """Return everything that the taints freeze. If MLflow can be reached, affected versions are tagged in MLflow."""
    starts = [one for mark in marks for one in ((mark.target,) if mark.kind == "manifest" else mark.holders)]
    found = descent(ctx, starts)
    checkpoints = found.digests | consumers.measured(ctx, found.manifests)
    versions, gaps = consumers.affected_versions(ctx, checkpoints)
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
        consumers=consumers.consumer_rows(ctx, checkpoints, versions),
        gaps=gaps,
    )


@connection.named("show taints")
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
    """Add entries to the feed, deliver the feed, and update the head of the release history. Return the failed
    deliveries with their reasons."""
    catch_up_feed(ctx)
    with suppress(SignatureError), locked(ctx):  # without the promoter's key, the sensor of its machine signs the head
        releases.refresh(ctx)
    return tuple(f"the webhook of {each.consumer}: {each.error}" for each in deliver(ctx) if each.error)
