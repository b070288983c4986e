"""Release records: every movement of an alias with person, time and reason; signed, numbered, chained.

    releases/00001.json    {"record": …, "envelope": …}
    releases/head          number and SHA-256 of the newest record, signed, with an expiry; and those of every other log

The record is for people; the envelope is the same record signed by a promoter, and only that is trusted. Each record
names the SHA-256 of the one before, so that none can be taken out or replaced; the head says which is the newest, so
that it cannot be removed either: a machine that has seen a higher number refuses an older head, and every other
machine refuses it once it has expired (`refresh` signs it again).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.trust import dsse
from plinth.trust.authority import PROMOTER
from plinth.trust.pin import Trust
from registry import signed_log
from registry.clock import now
from registry.gates import Approval
from registry.signed_log import LogRecord, SignedLog

PREDICATE = "urn:plinth:release:v1"
HEAD_PREDICATE = "urn:plinth:release-head:v1"
HEAD = "head"
#: For how long a head that nobody has signed again is believed. As long as a promoter's sensor may be down.
HEAD_DAYS = 30
#: A head older than this is signed again by `refresh`.
REFRESH_DAYS = 1
Action = Literal["canary", "champion", "rollback", "withdrawn", "returned"]


class ReleaseRecord(Frozen):
    """One movement of an alias.

    `goal` is where the movement ends: a `canary` on its way to `champion`, or one that stays for trial. `version` is
    the release's version that holds the place afterwards (None when withdrawn), `previous` the one that was champion
    before. A `returned` canary is `previous`, and the champion stays. `policy` is the digest of the gate policy under
    which it was decided, `audit` number and SHA-256 of the newest entry of the log of decisions then.
    """

    number: int
    prior: str | None
    action: Action
    goal: Action
    model: str
    version: str | None
    previous: str | None
    candidate: dict[str, str]
    candidate_version: str | None
    by: str
    reason: str
    approvals: tuple[Approval, ...] = ()
    gates: Mapping[str, str] = {}
    policy: str = ""
    audit: Mapping[str, Any] = {}
    at: str


def append(ctx: Context, **fields: Any) -> ReleaseRecord:
    """Sign and write the next record; the caller holds the registry's lock.

    Raises:
        SignatureError: an earlier record was changed, or the promoter's key is not usable.
    """
    earlier = history(ctx)
    if earlier:
        _catch_up(ctx, len(earlier))
    prior = hashlib.sha256(_path(ctx, len(earlier)).read_bytes()).hexdigest() if earlier else None
    decided = signed_log.head_of(log_records(ctx, signed_log.AUDIT))
    record = ReleaseRecord(number=len(earlier) + 1, prior=prior, audit=decided, **fields)
    path, trust = _path(ctx, record.number), Trust.of(ctx.workspace)
    content = record.model_dump(mode="json")
    envelope = dsse.seal(dsse.statement(PREDICATE, record.candidate, content), trust.signer(PROMOTER))
    write_bytes(path, json.dumps({"record": content, "envelope": envelope}, indent=1).encode())
    _sign_head(ctx, trust, record.number)
    return record


def refresh(ctx: Context, *, expired: bool = False) -> bool:
    """Sign the head again when it is a day old or a record of any log behind; the caller holds the registry's lock.

    Args:
        expired: also one that has expired. Only a person says so: whoever put an old history back would have it signed.

    Raises:
        SignatureError: the history does not hold, or the promoter's key is not usable.
    """
    newest = len(history(ctx, expired=expired))
    if not newest:
        return False
    trust = Trust.of(ctx.workspace)
    head = _head(ctx, trust)
    fresh = datetime.fromisoformat(now()) - timedelta(days=REFRESH_DAYS)
    current = head is not None and head["number"] == newest and datetime.fromisoformat(head["at"]) > fresh
    if current and head is not None and signed_log.heads(ctx, head.get("logs")) == head.get("logs", {}):
        return False
    _sign_head(ctx, trust, newest)
    return True


def log_records(ctx: Context, log: SignedLog) -> tuple[LogRecord, ...]:
    """The records of another log, which continue from what the signed head of this history says about them.

    Raises:
        SignatureError: one was edited, removed or moved; the newest too, if a head was signed since.
    """
    found = log.records(ctx)
    if (ctx.workspace.releases / HEAD).exists():
        head = _head(ctx, Trust.of(ctx.workspace))
        log.require_after(found, (head or {}).get("logs", {}).get(log.name))
    return found


def history(ctx: Context, model: str | None = None, *, expired: bool = False) -> tuple[ReleaseRecord, ...]:
    """Every record, oldest first, or those of one release.

    Args:
        expired: also under a head that nobody has signed for so long that it may be an old one.

    Raises:
        SignatureError: a record is missing (the newest too), was changed, or was not signed by the promoter; the head
            has expired.
    """
    trust = Trust.of(ctx.workspace)
    found: list[ReleaseRecord] = []
    prior: str | None = None
    for number, path in enumerate(sorted(ctx.workspace.releases.glob("*.json")), start=1):
        record = _read(trust, path)
        if record.number != number or record.prior != prior:
            raise SignatureError(
                f"the history of releases is broken at {path.name}",
                found=f"number {record.number} after {record.prior}",
                expected=f"number {number} after {prior}",
                remedy="restore the missing records from a backup",
            )
        found.append(record)
        prior = hashlib.sha256(path.read_bytes()).hexdigest()
    _require_newest(ctx, trust, found, prior, expired)
    return tuple(record for record in found if model in (None, record.model))


def _require_newest(
    ctx: Context, trust: Trust, found: list[ReleaseRecord], last: str | None, expired: bool
) -> None:
    """The last record here is the newest that there is; one more than the head names was written before a crash."""
    head, seen = _head(ctx, trust), trust.seen(_seen_as(ctx))
    if head is None and not found and not seen:
        return
    number = head["number"] if head else 0
    holds = head is not None and len(found) - number in (0, 1) and len(found) >= seen
    if not (holds or (head is None and len(found) == 1 and seen <= 1)):
        raise SignatureError(
            "the newest release records are missing",
            found=f"{len(found)} records, a head that names {number}",
            expected=f"{max(seen, number)} records, and the head that was signed with the last",
            remedy="restore releases/ from a backup; nothing of this workspace is released until then",
        )
    if head is not None and len(found) == number and head["sha256"] != last:
        raise SignatureError("the head names another newest release record", found=last, expected=head["sha256"])
    if head is not None and now() >= head["expires"] and not expired:
        raise SignatureError(
            "the head of the release history has expired",
            found=f"signed {head['at']}, valid until {head['expires']}",
            expected="a head that the promoter has signed since",
            remedy="`plinth up` signs it every day; `plinth mirror` signs it once, where the key is",
        )
    trust.remember(_seen_as(ctx), len(found))


def _catch_up(ctx: Context, number: int) -> None:
    """Sign the head that a crash has left a record behind: two behind, it would look as if records had been put in."""
    trust = Trust.of(ctx.workspace)
    head = _head(ctx, trust)
    if head is None or head["number"] < number:
        _sign_head(ctx, trust, number)


def _seen_as(ctx: Context) -> str:
    return f"releases of {ctx.workspace.uri or ctx.workspace.root}"


def _head(ctx: Context, trust: Trust) -> dict[str, Any] | None:
    path = ctx.workspace.releases / HEAD
    if not path.exists():
        return None
    found: dict[str, Any] = dsse.read(path, trust.authority(PROMOTER), HEAD_PREDICATE)["predicate"]
    return found


def _sign_head(ctx: Context, trust: Trust, number: int) -> None:
    digest = hashlib.sha256(_path(ctx, number).read_bytes()).hexdigest()
    at = now()
    expires = (datetime.fromisoformat(at) + timedelta(days=HEAD_DAYS)).isoformat(timespec="seconds")
    before = _head(ctx, trust)
    logs = signed_log.heads(ctx, before.get("logs") if before else None)
    predicate = {"number": number, "sha256": digest, "at": at, "expires": expires, "logs": logs}
    statement = dsse.statement(HEAD_PREDICATE, {"record": digest}, predicate)
    dsse.write(ctx.workspace.releases / HEAD, statement, trust.signer(PROMOTER))
    trust.remember(_seen_as(ctx), number)


def _read(trust: Trust, path: Path) -> ReleaseRecord:
    try:
        content = json.loads(path.read_bytes())
        shown, envelope = content["record"], content["envelope"]
    except (ValueError, KeyError, TypeError) as error:
        raise SignatureError(f"{path} is not a release record", found=repr(error)) from error
    signed = dsse.opened(envelope, trust.authority(PROMOTER), PREDICATE, str(path))["predicate"]
    if shown != signed:
        raise SignatureError(
            f"{path} differs from its signed record",
            found=sorted(key for key in {*shown, *signed} if shown.get(key) != signed.get(key)),
            expected="the promoter's record",
            remedy="restore the file from a backup",
        )
    try:
        return ReleaseRecord.model_validate(signed)
    except ValidationError as error:
        raise SignatureError(f"{path} is not a release record", found=error) from error


def _path(ctx: Context, number: int) -> Path:
    return ctx.workspace.releases / f"{number:05d}.json"
