"""Release records: every change of an alias with person, time and reason, in a signed log with a head.

    releases/00001.json    {"record": …, "envelope": …}; the record is for people, only the envelope is trusted
    releases/head          the newest record, signed, with an expiry; and the newest record of every other log
    releases/anchors/      heads that an external transparency log has accepted (`plinth.trust.log_anchors`)

`history` reads and verifies the log; `Standing` has the current champion, canary and withdrawn versions. MLflow's
aliases mirror the log; an alias that is set by hand has no effect here. The head expires unless `refresh` re-signs it
(`plinth.trust.signed_log`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.records import Frozen
from plinth.trust import signed_log
from plinth.trust.dsse import PROMOTER
from plinth.trust.log_anchors import Anchor, LogAnchors
from plinth.trust.log_record import LogRecord
from plinth.trust.signed_log import LogHead, SignedLog, anchor_of
from plinth_registry import audit_log
from plinth_registry.audit_log import AUDIT, RELEASES, AuditProof, logs_in_head
from plinth_registry.gates.facts import Approval

Action = Literal["canary", "champion", "rollback", "withdrawn", "returned"]
Place = Literal["champion", "previous", "canary", "superseded", "rolled back"]
#: Changes that release a version; the others withdraw or roll back.
PROMOTED: Final = ("canary", "champion")
#: Pattern of `NAME@ALIAS`.
_HELD = re.compile(r"(models:/)?[a-z][a-z0-9-]*@(champion|canary|previous)")


class ReleaseRecord(Frozen):
    """Change of an alias of a release.

    `goal` is the final stage: `champion` for a canary that may become champion, and `canary` for a canary that remains
    a canary. `version` is the version under the alias after the change (None if withdrawn), and `previous` is the
    champion before it. In the record of a `returned` canary, `previous` is the canary, and the champion stays. `policy`
    is the digest of the gate policy at the time of the record. `audit` is the number and SHA-256 of the newest entry of
    the audit log at that time.
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


class Standing(Frozen):
    """Versions of one release by their current state.

    `champions` are the versions that became champion and were never rolled back, oldest first. The last version is the
    current champion. `gone` are the versions that were rolled back or withdrawn, and the canaries that were returned or
    replaced by another canary.
    """

    champions: tuple[str, ...] = ()
    canary: str | None = None
    gone: tuple[str, ...] = ()

    @property
    def champion(self) -> str | None:
        return self.champions[-1] if self.champions else None

    @property
    def previous(self) -> str | None:
        return self.champions[-2] if len(self.champions) > 1 else None

    @property
    def aliases(self) -> dict[str, str | None]:
        """Version under each alias of the release, as MLflow should show it."""
        return {"champion": self.champion, "canary": self.canary, "previous": self.previous}

    def place(self, version: str) -> Place | None:
        """Return the current state of a version, such as `champion`, or None if the version was never released."""
        if version in self.gone:
            return "rolled back"
        named: dict[Place, str | None] = {"champion": self.champion, "canary": self.canary, "previous": self.previous}
        for place, held in named.items():
            if held == version:
                return place
        return "superseded" if version in self.champions else None


def names_place(target: str) -> bool:
    """Return True if a target has the form `NAME@PLACE`. Such a target never names a folder, even if a folder has that
    name."""
    return _HELD.fullmatch(target) is not None


def standing_after(records: Iterable[ReleaseRecord]) -> Standing:
    """Return the state of one release after all of its records. The records are given oldest first."""
    found = Standing()
    for record in records:
        found = _after(found, record)
    return found


def ended(records: Iterable[ReleaseRecord], candidate: Mapping[str, str]) -> int:
    """Return the number of the record that ended the last promotion of a candidate, or 0 if no promotion has ended.

    A promotion ends when the version is no longer champion or canary, for any reason. A rollback to the version resumes
    the promotion. An approval counts for the promotion after this record.

    Args:
        candidate: digests of the candidate, as release records name them.
    """
    now, own, found = Standing(), set[str | None](), [0]
    for record in records:
        if record.action in PROMOTED and record.candidate == candidate:
            own.add(record.version)
        before, now = now, _after(now, record)
        was, holds = (bool(own & {one.champion, one.canary} - {None}) for one in (before, now))
        if was and not holds:
            found.append(record.number)
        elif holds and not was and record.action not in PROMOTED:
            found.pop()
    return found[-1]


def _after(now: Standing, record: ReleaseRecord) -> Standing:
    version, before = record.version, record.previous
    gone = tuple(each for each in now.gone if each != version)
    if record.action == "canary":
        # A canary replaced by another was never promoted.
        replaced = () if now.canary in (None, version, *now.champions) else (str(now.canary),)
        return now.model_copy(update={"canary": version, "gone": (*gone, *replaced)})
    if record.action == "champion" and version is not None:
        kept = tuple(each for each in now.champions if each != version)
        canary = None if now.canary == version else now.canary
        return now.model_copy(update={"champions": (*kept, version), "canary": canary, "gone": gone})
    if record.action == "returned":
        return now.model_copy(update={"canary": None, "gone": (*now.gone, str(before))})
    place = 0 if version is None else now.champions.index(version) + 1
    left = now.champions[place:]
    return Standing(
        champions=now.champions[:place],
        canary=None if now.canary in left else now.canary,
        gone=(*now.gone, *left),
    )


def never_released(name: str, version: str) -> GateError:
    """Return the error for a version that no signed record names."""
    return GateError(
        f"{name} version {version} was never released",
        found="no record signed by the promoter",
        expected="a record in releases/",
        remedy="do not use this version; promote the candidate of the version",
    )


class ReleaseHistory(tuple[ReleaseRecord, ...]):
    """Release records of one release or of all releases, oldest first."""

    def of(self, model: str) -> ReleaseHistory:
        """Return the records of one release."""
        return ReleaseHistory(record for record in self if record.model == model)

    @cached_property
    def standing(self) -> Standing:
        """Current state of one release according to its records."""
        return standing_after(self)

    def releasing(self, model: str, version: str) -> ReleaseRecord:
        """Return the newest record that released a version. Rollbacks, to the version or from a canary, do not count.

        Raises:
            GateError: the promoter never released this version.
        """
        for record in reversed(self):
            if (record.model, record.version) == (model, version) and record.action in PROMOTED:
                return record
        raise never_released(model, version)


PREDICATE: Final = RELEASES.predicate
HEAD_PREDICATE: Final = "urn:plinth:release-head:v1"
HEAD: Final = signed_log.FILE
#: Validity of a head without re-signing: the longest tolerated outage of a promoter's sensor.
HEAD_DAYS = 30
#: Age from which `refresh` re-signs the head.
REFRESH_DAYS = 1
_HEAD: Final = LogHead(
    RELEASES,
    HEAD_PREDICATE,
    HEAD_DAYS,
    remedy="keep `plinth up` running, which signs the head again daily, or run `plinth release mirror` on the machine "
    "with the key",
)
_ANCHORS: Final = LogAnchors(_HEAD)


def append(ctx: Context, **fields: Any) -> ReleaseRecord:
    """Sign and write the next release record. The caller must hold the registry's lock.

    Raises:
        SignatureError: the history or the audit log does not verify, or the promoter's key is not usable.
    """
    before = RELEASES.newest(ctx)
    head = _HEAD.require(ctx, before)
    if before and (head is None or head.number < before.number):
        _HEAD.sign(ctx, before, logs_in_head(ctx))  # two behind would look like inserted records
    number, prior = (before.number + 1, before.sha256) if before else (1, None)
    record = ReleaseRecord(number=number, prior=prior, audit=anchor_of(_HEAD.newest_of(ctx, AUDIT)), **fields)
    body = record.model_dump(mode="json", exclude={"number", "prior", "at"})
    made = RELEASES.append(ctx, body, record.candidate, PROMOTER, at=record.at, number=number)
    _HEAD.sign(ctx, made, logs_in_head(ctx))
    return record


def refresh(ctx: Context, *, expired: bool = False) -> bool:
    """Re-sign the head if it is a day old or older than a record of any log. The caller must hold the registry's lock.

    Args:
        expired: True to re-sign an expired head. Only a person decides this, because the head could belong to an old
            history that was restored.

    Raises:
        SignatureError: the history does not verify, or the promoter's key is not usable.
    """
    return _HEAD.refresh(ctx, tuple(logs_in_head(ctx)), REFRESH_DAYS, expired=expired)


def head_expires(ctx: Context) -> str:
    """Return the expiry of the release history's head (UTC, ISO 8601), or an empty string before the first release.

    Raises:
        SignatureError: the head was changed, or not signed by the promoter.
    """
    head = _HEAD.read(ctx)
    return head.expires if head else ""


def log_records(ctx: Context, log: SignedLog) -> tuple[LogRecord, ...]:
    """Return the records of a signed log other than the release history. The records must include the record that the
    signed head names.

    Raises:
        SignatureError: a record was edited, removed or moved. A missing newest record is detected if a head was signed
            after it.
    """
    return _HEAD.records_of(ctx, log)


def history(ctx: Context, model: str | None = None, *, expired: bool = False) -> ReleaseHistory:
    """Return the release records of one release or, by default, of all releases, oldest first.

    Args:
        expired: True to accept an expired head, which may belong to an old history.

    Raises:
        SignatureError: a record is missing (including the newest), was changed, or was not signed by the promoter, or
            the head has expired; or the history lacks a record that an anchored head names.
    """
    found = RELEASES.records(ctx)
    _HEAD.require(ctx, found[-1] if found else None, expired=expired)
    _ANCHORS.require(ctx, found)
    records = ReleaseHistory(map(record_of, found))
    return records if model is None else records.of(model)


def ended_by(ctx: Context, model: str, candidate: Mapping[str, str]) -> int:
    """Return the number of the record that ended a candidate's last promotion. The head may have expired.

    Raises:
        SignatureError: the history does not verify.
    """
    return ended(history(ctx, model, expired=True), candidate)


def require_audited(ctx: Context, record: ReleaseRecord) -> None:
    """Check that the audit log has the entries that a release record and the head name. The entries between these
    entries are not read (`prove_log` reads all entries).

    Raises:
        SignatureError: the audit log was cut, emptied or replaced.
    """
    _HEAD.newest_of(ctx, AUDIT)
    AUDIT.require_file(ctx, record.audit)


def anchor_head(ctx: Context, url: str) -> Anchor:
    """Submit the head of the history to the transparency log (Rekor) at `url`, and store the verified entry.

    Raises:
        MissingError: there is no release yet.
        TrustError: the server does not answer, or refuses the entry.
        SignatureError: the history or the returned entry does not verify, or no key of a log is pinned.
    """
    history(ctx)
    return _ANCHORS.add(ctx, url, RELEASES.records(ctx))


def verify_anchors(ctx: Context, also: Iterable[Path] = ()) -> tuple[Anchor, ...]:
    """Verify every anchor offline with the pinned key of its log, and return the anchors, oldest first.

    Args:
        also: copies of anchors that were kept outside the workspace.

    Raises:
        SignatureError: the history or another log lacks a record that an anchored head names, or an anchor is invalid.
    """
    history(ctx, expired=True)
    return _ANCHORS.verified(ctx, RELEASES.records(ctx), tuple(logs_in_head(ctx)), also)


def prove_log(ctx: Context) -> AuditProof:
    """Verify the audit log, and check that it has the entries that every release record and the head name.

    Raises:
        SignatureError: the log or the history does not verify; the error names the entry.
    """
    anchors = [(f"release record {record.number}", record.audit) for record in history(ctx)]
    log_records(ctx, AUDIT)
    return audit_log.prove(ctx, [(name, anchor) for name, anchor in anchors if anchor])


def record_of(found: LogRecord) -> ReleaseRecord:
    """Return the release record in a verified record of the log.

    Raises:
        SignatureError: the record does not contain a release record.
    """
    try:
        return ReleaseRecord(number=found.number, prior=found.prior, at=found.at, **found.body)
    except (TypeError, ValidationError) as error:
        raise SignatureError(f"record {found.number} of releases/ is not a release record", found=error) from error
