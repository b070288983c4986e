"""Signed, numbered, chained records that are only ever added: marks, the feed, consumers.

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
from plinth.trust.authority import COMPLIANCE, PROMOTER
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
    """A log of a workspace: its folder there, the predicate of its records, and who may sign them."""

    name: str
    roles: tuple[str, ...]

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

    def append(self, ctx: Context, body: Mapping[str, Any], subjects: Mapping[str, str], role: str) -> LogRecord:
        """Sign and write the next record as a role.

        Raises:
            SignatureError: the log does not hold, or there is no key of that role here.
        """
        trust = Trust.of(ctx.workspace)
        signer = trust.signer(role)
        with locked(self.folder(ctx) / ".lock"):
            earlier = self.records(ctx)
            number, prior = len(earlier) + 1, earlier[-1].sha256 if earlier else None
            content = {"number": number, "prior": prior, "at": now(), "role": role, "body": dict(body)}
            path = self.folder(ctx) / f"{number:05d}.json"
            write_bytes(path, json.dumps(dsse.seal(self._statement(subjects, content), signer), indent=1).encode())
            made = self._read(trust, path, earlier[-1] if earlier else None)
        trust.remember(self._seen_as(ctx), number)
        return made

    def head(self, ctx: Context) -> dict[str, Any]:
        """Number and SHA-256 of the newest record; number 0 before any."""
        found = self.records(ctx)
        return {"number": len(found), "sha256": found[-1].sha256 if found else None}

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

    def _read(self, trust: Trust, path: Path, before: LogRecord | None) -> LogRecord:
        if not re.fullmatch(r"[0-9]{5}", path.stem):
            raise SignatureError(
                f"{path} is not a signed record",
                expected="a number as its name",
                remedy="state marks of 0.3 again with `plinth taint`, then delete their files",
            )
        data = path.read_bytes()
        envelope = dsse.envelope_of(path)
        stated = dsse.unverified(envelope, str(path)).get("predicate", {}).get("role")
        if stated not in self.roles:
            raise SignatureError(
                f"{path} is not a record of this log",
                found=f"role {stated!r}",
                expected=" or ".join(self.roles),
                remedy=f"restore {self.name}/ from a backup",
            )
        authority = trust.authority(stated)
        content = dsse.opened(envelope, authority, self.predicate, str(path))["predicate"]
        try:
            self._require_next(path, content, before)
            at, body = str(content["at"]), dict(content["body"])
        except (KeyError, TypeError, ValueError) as error:
            raise SignatureError(f"{path} is not a record of {self.name}/", found=repr(error)) from error
        owners = dsse.signed_by(envelope, authority, str(path))
        return LogRecord(content["number"], hashlib.sha256(data).hexdigest(), at, stated, owners, body)

    def _require_next(self, path: Path, content: Mapping[str, Any], before: LogRecord | None) -> None:
        number, prior = (before.number + 1, before.sha256) if before else (1, None)
        found = (content.get("number"), content.get("prior"), path.stem)
        if found != (number, prior, f"{number:05d}"):
            raise SignatureError(
                f"the log {self.name}/ is broken at {path.name}",
                found=f"number {found[0]} after {found[1]}",
                expected=f"number {number} after {prior}",
                remedy="restore the missing records from a backup",
            )
        if before and datetime.fromisoformat(content["at"]) < datetime.fromisoformat(before.at):
            raise SignatureError(
                f"{path} was signed before the record before it",
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

LOGS = (MARKS, FEED, CONSUMERS)


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
            found[log.name] = {"number": len(records), "sha256": records[-1].sha256}
    return found


def _pinned(ctx: Context) -> Trust | None:
    """The root of this workspace, where one is pinned: an empty log of an untrusted workspace hides nothing."""
    try:
        return Trust.of(ctx.workspace)
    except SignatureError:
        return None
