"""Release records: every movement of an alias with person, time and reason; a signed log with a head.

    releases/00001.json    {"record": …, "envelope": …}; the record is for people, only the envelope is trusted
    releases/head          the newest record, signed, with an expiry; and the newest one of every other log

A head that nobody has signed again expires, and `refresh` signs it again (`plinth.trust.log_head`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust import log_head
from plinth.trust.authority import PROMOTER
from plinth.trust.log_head import LogHead
from plinth.trust.log_record import LogRecord
from plinth.trust.signed_log import SignedLog, anchor_of
from plinth_registry import audit_log
from plinth_registry.audit_log import AuditProof
from plinth_registry.history import ReleaseHistory, ReleaseRecord, ended
from plinth_registry.signed_log import AUDIT, RELEASES, beside_releases

PREDICATE: Final = RELEASES.predicate
HEAD_PREDICATE: Final = "urn:plinth:release-head:v1"
HEAD: Final = log_head.FILE
#: For how long a head that nobody has signed again is believed. As long as a promoter's sensor may be down.
HEAD_DAYS = 30
#: A head older than this is signed again by `refresh`.
REFRESH_DAYS = 1
_HEAD: Final = LogHead(
    RELEASES,
    HEAD_PREDICATE,
    HEAD_DAYS,
    remedy="`plinth up` signs it every day; `plinth release mirror` signs it once, where the key is",
)
def append(ctx: Context, **fields: Any) -> ReleaseRecord:
    """Sign and write the next record; the caller holds the registry's lock.

    Raises:
        SignatureError: the history or the log of decisions does not hold, or the promoter's key is not usable.
    """
    before = RELEASES.newest(ctx)
    head = _HEAD.require(ctx, before)
    if before and (head is None or head.number < before.number):
        _HEAD.sign(ctx, before, beside_releases(ctx))  # two behind, it would look as if records had been put in
    number, prior = (before.number + 1, before.sha256) if before else (1, None)
    record = ReleaseRecord(number=number, prior=prior, audit=anchor_of(_HEAD.newest_of(ctx, AUDIT)), **fields)
    body = record.model_dump(mode="json", exclude={"number", "prior", "at"})
    made = RELEASES.append(ctx, body, record.candidate, PROMOTER, at=record.at, number=number)
    _HEAD.sign(ctx, made, beside_releases(ctx))
    return record


def refresh(ctx: Context, *, expired: bool = False) -> bool:
    """Sign the head again when it is a day old or a record of any log behind; the caller holds the registry's lock.

    Args:
        expired: also one that has expired. Only a person says so: whoever put an old history back would have it signed.

    Raises:
        SignatureError: the history does not hold, or the promoter's key is not usable.
    """
    return _HEAD.refresh(ctx, tuple(beside_releases(ctx)), REFRESH_DAYS, expired=expired)


def head_expires(ctx: Context) -> str:
    """Until when the head is believed (UTC, ISO 8601); empty before anything was released.

    Raises:
        SignatureError: it was changed, or signed by somebody else.
    """
    head = _HEAD.read(ctx)
    return head.expires if head else ""


def log_records(ctx: Context, log: SignedLog) -> tuple[LogRecord, ...]:
    """The records of another log, which continue from what the signed head of this history says about them.

    Raises:
        SignatureError: one was edited, removed or moved; the newest too, if a head was signed since.
    """
    return _HEAD.records_of(ctx, log)


def history(ctx: Context, model: str | None = None, *, expired: bool = False) -> ReleaseHistory:
    """Every record, oldest first, or those of one release.

    Args:
        expired: also under a head that nobody has signed for so long that it may be an old one.

    Raises:
        SignatureError: a record is missing (the newest too), was changed, or was not signed by the promoter; the head
            has expired.
    """
    found = RELEASES.records(ctx)
    _HEAD.require(ctx, found[-1] if found else None, expired=expired)
    records = ReleaseHistory(map(record_of, found))
    return records if model is None else records.of(model)


def ended_by(ctx: Context, model: str, candidate: Mapping[str, str]) -> int:
    """Number of the record that ended the last promotion of a candidate, by the history as it is, fresh or not.

    Raises:
        SignatureError: the history does not hold.
    """
    return ended(history(ctx, model, expired=True), candidate)


def require_audited(ctx: Context, record: ReleaseRecord) -> None:
    """Require the entries of the log of decisions that a record and the head name; those between are not read
    (`prove_log` reads all).

    Raises:
        SignatureError: the log was cut, emptied or replaced.
    """
    _HEAD.newest_of(ctx, AUDIT)
    AUDIT.require_file(ctx, record.audit)


def prove_log(ctx: Context) -> AuditProof:
    """Prove the log of decisions, and that it has what every release record and the head of their history name.

    Raises:
        SignatureError: the log or the history does not hold; says which entry.
    """
    anchors = [(f"release record {record.number}", record.audit) for record in history(ctx)]
    log_records(ctx, AUDIT)
    return audit_log.prove(ctx, [(name, anchor) for name, anchor in anchors if anchor])


def record_of(found: LogRecord) -> ReleaseRecord:
    """The release record in a record of the log.

    Raises:
        SignatureError: it is none.
    """
    try:
        return ReleaseRecord(number=found.number, prior=found.prior, at=found.at, **found.body)
    except (TypeError, ValidationError) as error:
        raise SignatureError(f"record {found.number} of releases/ is not a release record", found=error) from error
