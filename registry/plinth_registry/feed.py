"""The feed: what consumers must learn, signed and numbered, so that a gap shows.

    feed/00001.json     one mark, one lift, or one movement of a release, with the versions and consumers concerned

The feed follows two other signed logs, the marks and the release history: `catch_up` adds an entry for each record that
has none yet, so that nothing stays unsaid when a process dies between the two. A consumer verifies every entry against
its pinned root and the entry before (`received`); a missing, repeated or moved entry is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.provenance.impact.descendants import Descendant, descent
from plinth.records import Frozen
from plinth.storage.locks import locked
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth_registry import consumers, impact, releases, taint
from plinth_registry.history import ReleaseRecord
from plinth_registry.signed_log import FEED
from plinth_registry.taint import TaintStatement

#: Published assets named in an entry; the mark's impact has all.
ASSETS = 50


class FeedEntry(Frozen):
    """One entry, verified. `of` and `record` name the record that it reports: `taint` or `releases`, and its number."""

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
        """The entry for people."""
        concerned = ", ".join(f"{name} ({owner})" for name, owner in self.consumers.items()) or "no enrolled consumer"
        versions = ", ".join(self.versions) or "no version"
        return f"{self.event}: {self.target}, by {self.by}: {self.reason}. Concerned: {versions}; {concerned}."


def entries(ctx: Context, after: int = 0) -> tuple[FeedEntry, ...]:
    """Entries with a higher number, oldest first.

    Raises:
        SignatureError: an entry was edited, removed, moved or forged.
    """
    return tuple(_entry(record) for record in releases.log_records(ctx, FEED)[after:])


def received(ctx: Context, data: bytes, before: LogRecord | None) -> tuple[FeedEntry, LogRecord]:
    """Verify an entry as a consumer gets it: the bytes of its file, after the entry received before (None: the first).

    Raises:
        SignatureError: not signed by a role that may, changed, or not the next entry: then one was missed.
    """
    record = FEED.next(Trust.of(ctx.workspace), data, "the entry received", before)
    return _entry(record), record


def catch_up(ctx: Context) -> tuple[FeedEntry, ...]:
    """Add what the feed does not have yet: marks and lifts, then movements of releases. Returns the new entries.

    Raises:
        SignatureError: a log does not hold, or there is neither the promoter's nor the compliance key on this machine.
    """
    made = []
    with locked(ctx.workspace.root / FEED.name / ".catch_up"):
        known = {(entry.of, entry.record) for entry in entries(ctx)}
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
    checkpoints = found.digests | impact.measured(ctx, found.manifests)
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
        "assets": _published(found.manifests),
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


def _published(manifests: tuple[Descendant, ...]) -> list[str]:
    return [each.asset for each in manifests if each.state == "published"][:ASSETS]


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
        raise SignatureError(f"entry {record.number} of the feed cannot be read", found=error) from error
