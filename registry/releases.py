"""Release records: every movement of an alias with person, time and reason; signed, numbered, chained.

    releases/00001.json    {"record": …, "envelope": …}

The record is for people; the envelope is the same record signed with the promoter's key, and only that
is trusted. Each record names the SHA-256 of the one before, so that none can be taken out or replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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
from registry.gates import Approval

PREDICATE = "urn:plinth:release:v1"
Action = Literal["canary", "champion", "rollback", "withdrawn"]


class ReleaseRecord(Frozen):
    """One movement of an alias.

    `goal` is where the movement ends: a `canary` on its way to `champion`, or one that stays for trial.
    `version` is the release's version that the alias points to afterwards (None when withdrawn), `previous`
    the one that was champion before.
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
    at: str


def append(ctx: Context, **fields: Any) -> ReleaseRecord:
    """Sign and write the next record; the caller holds the registry's lock.

    Raises:
        SignatureError: an earlier record was changed, or the promoter's key is not usable.
    """
    earlier = history(ctx)
    prior = hashlib.sha256(_path(ctx, len(earlier)).read_bytes()).hexdigest() if earlier else None
    record = ReleaseRecord(number=len(earlier) + 1, prior=prior, **fields)
    path, key = _path(ctx, record.number), Trust.of(ctx.workspace).signer(PROMOTER)
    content = record.model_dump(mode="json")
    envelope = dsse.seal(dsse.statement(PREDICATE, record.candidate, content), key)
    write_bytes(path, json.dumps({"record": content, "envelope": envelope}, indent=1).encode())
    return record


def history(ctx: Context, model: str | None = None) -> tuple[ReleaseRecord, ...]:
    """Every record, oldest first, or those of one release.

    Raises:
        SignatureError: a record is missing, was changed, or was not signed by the promoter.
    """
    found: list[ReleaseRecord] = []
    prior: str | None = None
    for number, path in enumerate(sorted(ctx.workspace.releases.glob("*.json")), start=1):
        record = _read(ctx, path)
        if record.number != number or record.prior != prior:
            raise SignatureError(
                f"the history of releases is broken at {path.name}",
                found=f"number {record.number} after {record.prior}",
                expected=f"number {number} after {prior}",
                remedy="restore the missing records from a backup",
            )
        found.append(record)
        prior = hashlib.sha256(path.read_bytes()).hexdigest()
    return tuple(record for record in found if model in (None, record.model))


def _read(ctx: Context, path: Path) -> ReleaseRecord:
    try:
        content = json.loads(path.read_bytes())
        shown, envelope = content["record"], content["envelope"]
    except (ValueError, KeyError, TypeError) as error:
        raise SignatureError(f"{path} is not a release record", found=repr(error)) from error
    signed = dsse.opened(envelope, Trust.of(ctx.workspace).authority(PROMOTER), PREDICATE, str(path))["predicate"]
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
