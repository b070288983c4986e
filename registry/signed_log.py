"""Signed, numbered, chained records that are only ever added: marks, the feed, consumers, decisions, providers.

    FOLDER/00001.json     a DSSE envelope: number, SHA-256 of the file before, role, time, body

A record that was edited does not verify; one that was taken out, put in or moved breaks the chain; a time before that
of the record before it is refused, so that a revoked key cannot sign for the past. The newest record cannot be removed
unnoticed either: this machine remembers the highest number that it saw, outside the workspace, and the signed head of
the release history names the newest record of every log (`releases`), for machines that have seen none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.storage.atomic import write_bytes
from plinth.storage.locks import locked
from plinth.trust import dsse
from plinth.trust.authority import APPROVER, COMPLIANCE, PROMOTER, ROLES, ROOT, Authority, revoked_at
from plinth.trust.pin import Trust
from registry.clock import now


@dataclass(frozen=True)
class LogRecord:
    """One verified record: its number, the SHA-256 of its file, who signed it as what and when, and its content."""

    number: int
    sha256: str
    at: str
    role: str
    owners: tuple[str, ...]
    body: Mapping[str, Any]


@dataclass(frozen=True)
class SignedLog:
    """A log of a workspace: its folder there, the predicate of its records, and who may sign them.

    Args:
        keeps_revoked: a record of a key that was revoked since stays, with no owner. For what only tells what happened;
            a record that others act on falls with its key.
    """

    name: str
    roles: tuple[str, ...]
    keeps_revoked: bool = False

    @property
    def predicate(self) -> str:
        return f"urn:plinth:log:{self.name}:v1"

    def folder(self, ctx: Context) -> Path:
        return ctx.workspace.root / self.name

    def records(self, ctx: Context) -> tuple[LogRecord, ...]:
        """Every record, oldest first.

        Raises:
            SignatureError: a record was edited, removed, moved, or signed by somebody who may not.
        """
        found: list[LogRecord] = []
        if files := sorted(self.folder(ctx).glob("*.json")):
            trust = Trust.of(ctx.workspace)
            for path in files:
                found.append(self._read(trust, path, found[-1] if found else None))
        self._require_newest(ctx, len(found))
        return tuple(found)

    def append(
        self, ctx: Context, body: Mapping[str, Any], subjects: Mapping[str, str], role: str, owner: str | None = None
    ) -> LogRecord:
        """Sign and write the next record as a role, with the key of an owner where there are several.

        Raises:
            SignatureError: the log does not hold, or there is no key of that role here.
        """
        trust = Trust.of(ctx.workspace)
        signer = trust.signer(role, owner)
        with locked(self.folder(ctx) / ".lock"):
            earlier = self.records(ctx)
            number, prior = len(earlier) + 1, earlier[-1].sha256 if earlier else None
            content = {"number": number, "prior": prior, "at": now(), "role": role, "body": dict(body)}
            path = self.path(ctx, number)
            write_bytes(path, json.dumps(dsse.seal(self._statement(subjects, content), signer), indent=1).encode())
            made = self._read(trust, path, earlier[-1] if earlier else None)
        trust.remember(self._seen_as(ctx), number)
        return made

    def require_after(self, records: Sequence[LogRecord], anchor: Mapping[str, Any] | None) -> None:
        """Records continue from an anchor: a head of this log that somebody signed.

        Raises:
            SignatureError: records that were there then are missing or others.
        """
        number = int(anchor["number"]) if anchor else 0
        if not number or not anchor:
            return
        if len(records) < number or records[number - 1].sha256 != anchor["sha256"]:
            raise SignatureError(
                f"records of {self.name}/ are missing or were replaced",
                found=f"{len(records)} records",
                expected=f"at least {number}, which the signed head of the release history names",
                remedy=f"restore {self.name}/ from a backup; nothing is released or loaded until then",
            )

    def _statement(self, subjects: Mapping[str, str], content: Mapping[str, Any]) -> dict[str, Any]:
        return dsse.statement(self.predicate, subjects, content)

    def next(self, trust: Trust, data: bytes, where: str, before: LogRecord | None) -> LogRecord:
        """Verify a record that continues from another (None: the first), as a consumer does with what it was sent.

        Raises:
            SignatureError: not a record of this log, signed by somebody else, or not the next one: one is missing.
        """
        envelope = _json(data, where)
        stated = dsse.unverified(envelope, where).get("predicate", {}).get("role")
        if stated not in self.roles:
            raise SignatureError(
                f"{where} is not a record of this log",
                found=f"role {stated!r}",
                expected=" or ".join(self.roles),
                remedy=f"restore {self.name}/ from a backup",
            )
        authority = _ever(trust, stated) if self.keeps_revoked else trust.authority(stated)
        content = dsse.opened(envelope, authority, self.predicate, where)["predicate"]
        try:
            self._require_next(where, content, before)
            at, body = str(content["at"]), dict(content["body"])
        except (KeyError, TypeError, ValueError) as error:
            raise SignatureError(f"{where} is not a record of {self.name}/", found=repr(error)) from error
        if self.keeps_revoked:
            authority = _unrevoked(trust.authority(stated), at)
        owners = dsse.signed_by(envelope, authority, where)
        return LogRecord(content["number"], hashlib.sha256(data).hexdigest(), at, stated, owners, body)

    def path(self, ctx: Context, number: int) -> Path:
        """The file of a record."""
        return self.folder(ctx) / f"{number:05d}.json"

    def _read(self, trust: Trust, path: Path, before: LogRecord | None) -> LogRecord:
        if not re.fullmatch(r"[0-9]{5}", path.stem):
            raise SignatureError(
                f"{path} is not a signed record",
                expected="a number as its name",
                remedy="state marks of 0.3 again with `plinth taint`, then delete their files",
            )
        found = self.next(trust, path.read_bytes(), str(path), before)
        if path.stem != f"{found.number:05d}":
            raise SignatureError(f"{path} has another number", found=found.number, expected=path.stem)
        return found

    def _require_next(self, where: str, content: Mapping[str, Any], before: LogRecord | None) -> None:
        number, prior = (before.number + 1, before.sha256) if before else (1, None)
        found = (content["number"], content["prior"])
        if found != (number, prior):
            raise SignatureError(
                f"the log {self.name}/ is broken at {where}",
                found=f"number {found[0]} after {found[1]}",
                expected=f"number {number} after {prior}",
                remedy="restore the missing records from a backup",
            )
        if before and datetime.fromisoformat(content["at"]) < datetime.fromisoformat(before.at):
            raise SignatureError(
                f"{where} was signed before the record before it",
                found=content["at"],
                expected=f"{before.at} or later",
                remedy="a key signed for the past: revoke it, and restore the log from a backup",
            )

    def _require_newest(self, ctx: Context, number: int) -> None:
        trust = _pinned(ctx)
        seen = trust.seen(self._seen_as(ctx)) if trust else 0
        if number < seen:
            raise SignatureError(
                f"the newest records of {self.name}/ are missing",
                found=f"{number} records",
                expected=f"{seen}, which this machine has seen",
                remedy=f"restore {self.name}/ from a backup; nothing is released or loaded until then",
            )
        if trust and number > seen:
            trust.remember(self._seen_as(ctx), number)

    def _seen_as(self, ctx: Context) -> str:
        return f"{self.name} of {ctx.workspace.uri or ctx.workspace.root}"


#: Marks of unfit data and models, and their lifting.
MARKS = SignedLog("taint", (COMPLIANCE,))
#: What consumers must learn.
FEED = SignedLog("feed", (COMPLIANCE, PROMOTER))
#: Services and models made of releases.
CONSUMERS = SignedLog("consumers", (COMPLIANCE, PROMOTER))
#: Tags of approvals, by logged-in people (`login.log`).
LOGINS = SignedLog("logins", (APPROVER,))
#: Decisions and refused ones (`audit_log`).
AUDIT = SignedLog("audit", tuple(ROLES), keeps_revoked=True)
#: What providers state of themselves and their data (`papers.provider`).
PROVIDERS = SignedLog("providers", (COMPLIANCE,))

LOGS = (MARKS, FEED, CONSUMERS, LOGINS, AUDIT, PROVIDERS)


def heads(ctx: Context, since: Mapping[str, Any] | None) -> dict[str, Any]:
    """The newest record of every log that has one, after proof that each continues from the heads signed before.

    Raises:
        SignatureError: a log does not hold, or lacks records that were there before.
    """
    found = {}
    for log in LOGS:
        records = log.records(ctx)
        log.require_after(records, (since or {}).get(log.name))
        if records:
            found[log.name] = head_of(records)
    return found


def head_of(records: Sequence[LogRecord]) -> dict[str, Any]:
    """Number and SHA-256 of the newest record; empty where there is none."""
    return {"number": len(records), "sha256": records[-1].sha256} if records else {}


def _ever(trust: Trust, role: str) -> Authority:
    """Every key that may sign as a role or might once; a revoked root key is no longer listed under its role."""
    authority = trust.authority(role)
    gone = {key_id: key for key_id, key in trust.root.keys.items() if role == ROOT and key.revoked_from}
    known = {**gone, **authority.keys}
    kept = {key_id: key.model_copy(update={"revoked_from": None}) for key_id, key in known.items()}
    return authority.model_copy(update={"keys": kept, "threshold": 1})


def _unrevoked(authority: Authority, at: str) -> Authority:
    kept = {key_id: key for key_id, key in authority.keys.items() if not revoked_at(key, at)}
    return authority.model_copy(update={"keys": kept})


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=error) from error


def _pinned(ctx: Context) -> Trust | None:
    """The root of this workspace, where one is pinned: an empty log of an untrusted workspace hides nothing."""
    try:
        return Trust.of(ctx.workspace)
    except SignatureError:
        return None
