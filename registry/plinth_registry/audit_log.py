"""Signed logs of a workspace with their signing roles, and the audit log of decisions and refusals."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.exclusions import EXCLUSIONS
from plinth.errors import SignatureError, TrustError
from plinth.records import Frozen
from plinth.trust.dsse import APPROVER, COMPLIANCE, OWNER, POLICY, PROMOTER, ROLES, ROOT, TRAINER
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog
from plinth.trust.signers import Signer

# Signed logs of a workspace with their signing roles. The head of the release history names the newest record of each
# log.
#
# The log of exclusions is defined in `plinth.corpus.exclusions`, since builds read it.

#: Release changes (`releases`).
RELEASES: Final = SignedLog(
    "releases", (PROMOTER,), kind="urn:plinth:release:v1", title="release records", flat=True, readable=True
)
#: Taints and their lifting.
MARKS: Final = SignedLog("taint", (COMPLIANCE,))
#: Feed for consumers.
FEED: Final = SignedLog("feed", (COMPLIANCE, PROMOTER))
#: Consumers: services that use releases, and derived models.
CONSUMERS: Final = SignedLog("consumers", (COMPLIANCE, PROMOTER))
#: Approval tags set by logged-in people (`login.log`).
LOGINS: Final = SignedLog("logins", (APPROVER,))
#: Decisions and refusals (`audit_log`).
AUDIT: Final = SignedLog("audit", tuple(ROLES), keeps_revoked=True)
#: Provider declarations (`papers.provider`).
PROVIDERS: Final = SignedLog("providers", (COMPLIANCE,))
#: Incidents: opened, noted, closed (`incidents`).
INCIDENTS: Final = SignedLog("incidents", (COMPLIANCE, PROMOTER))
#: Waivers of checklist lines.
CHECK_WAIVERS: Final = SignedLog("check-waivers", (POLICY,))

LOGS: Final = (MARKS, FEED, CONSUMERS, LOGINS, AUDIT, PROVIDERS, EXCLUSIONS, INCIDENTS, CHECK_WAIVERS)
POLICY_PREDICATE: Final = "urn:plinth:gate-policy:v1"


def policies(release: str) -> SignedLog:
    """Return the signed log with the gate policies of a release (`policy`)."""
    name, title = f"policies/{release}", f"policies of {release}"
    return SignedLog(name, (POLICY,), kind=POLICY_PREDICATE, title=title, flat=True)


def logs_in_head(ctx: Context) -> Iterator[SignedLog]:
    """Yield the logs for which the head of the release history names the newest record."""
    yield from LOGS
    for folder in sorted(ctx.workspace.policies.glob("*/")):
        yield policies(folder.name)


# Audit log of decisions and refusals: actor, subject, reason, outcome.
#
#     audit/00001.json    action, outcome, actor, subject, reason; cause of a refusal
#
# An entry is signed with the key of the role for the action, so its actor is the owner of that key in the root. If a
# refused actor has no such key, the first key of this machine signs, and the actor is `unauthenticated NAME`. A machine
# without keys decides and records nothing. Entries are kept and labeled if their key was revoked later.
#
# Each release record names the newest entry before it, and the signed head of the release history names the newest
# entry.

#: Signing role of each action.
ROLE_OF = {
    "approve": APPROVER, "reject": APPROVER, "withdraw": APPROVER, "promote": PROMOTER, "rollback": PROMOTER,
    "return": PROMOTER, "export": PROMOTER, "export unreleased": TRAINER, "export data": COMPLIANCE,
    "taint": COMPLIANCE, "lift": COMPLIANCE, "exclude": COMPLIANCE, "close incident": COMPLIANCE,
    "papers": COMPLIANCE, "provider": COMPLIANCE, "policy": POLICY, "waive": POLICY, "keys": ROOT, "adopt": TRAINER,
    "contract": OWNER,
}  # fmt: skip
UNAUTHENTICATED = "unauthenticated "
Outcome = Literal["done", "refused"]


@dataclass
class AuditedAction:
    """Action that a person or process requests. `by` is the caller's name, as the caller states it. `owner` is the
    owner of the key that must sign, if known.

    The code that decides can set a more exact subject before the outcome is recorded.
    """

    action: str
    subject: str
    by: str = ""
    reason: str = ""
    owner: str | None = None


class AuditEntry(Frozen):
    """Verified entry of the audit log. `signed_by` is empty if the key was already revoked at the time of the entry."""

    number: int
    at: str
    action: str
    outcome: Outcome
    actor: str
    by: str
    subject: str
    reason: str
    refusal: str
    role: str
    signed_by: tuple[str, ...]

    @property
    def who(self) -> str:
        """Owner of the signing key, followed by the unverified name that the caller gave."""
        return self.actor if self.by in self.actor else f"{self.actor} (for {self.by})"


class AuditProof(Frozen):
    """Result of verifying the audit log: the number of entries, the SHA-256 of the newest entry, and the signed objects
    that name an entry."""

    entries: int
    sha256: str | None
    anchors: tuple[str, ...]


@contextmanager
def audited(ctx: Context, asked: AuditedAction, *, once: bool = False) -> Iterator[AuditedAction]:
    """Record in the audit log that the `with` block performed the action, or that the action was refused. Other errors
    are not decisions and are not recorded.

    Args:
        once: True to skip an entry that repeats the newest entry for this action and subject.

    Raises:
        SignatureError: the log does not verify, or there is no key for the action.
    """
    try:
        yield asked
    except TrustError as error:
        record(ctx, asked, error.brief, once=once)
        raise
    record(ctx, asked, once=once)


def record(ctx: Context, asked: AuditedAction, refusal: str = "", *, once: bool = False) -> None:
    """Sign and write one entry of the audit log. If `refusal` is given, the entry states that the action was refused,
    with this cause.

    Raises:
        SignatureError: the log does not verify, or there is no key for the action.
    """
    signer, actor = _signing(ctx, asked) if refusal else _acting(ctx, asked)
    if signer is None:
        return
    body = {
        "action": asked.action,
        "outcome": "refused" if refusal else "done",
        "actor": actor,
        "by": asked.by,
        "subject": asked.subject,
        "reason": asked.reason,
        "refusal": refusal,
    }
    if not (once and body == _last_of(ctx, asked)):
        subjects = {"subject": fingerprint.digest(asked.subject)}
        AUDIT.append(ctx, body, subjects, signer.role, signer.owner)


def may_record(ctx: Context, action: str) -> bool:
    """Return True if this machine has the key that signs audit entries about this action."""
    try:
        return _key(Trust.of(ctx.workspace), ROLE_OF[action], None) is not None
    except SignatureError:
        return False


def entries(ctx: Context) -> tuple[AuditEntry, ...]:
    """Return every entry of the audit log, oldest first.

    Raises:
        SignatureError: an entry was edited, removed, moved, or names an actor who did not sign it.
    """
    return tuple(_entry(each) for each in AUDIT.records(ctx))


def prove(ctx: Context, anchors: Iterable[tuple[str, Mapping[str, Any]]]) -> AuditProof:
    """Verify every entry of the audit log, and check that it contains each entry that another signed object names.

    Args:
        anchors: name of each signed object, with the entry number and SHA-256 that it names.

    Raises:
        SignatureError: an entry does not verify or is missing.
    """
    found = AUDIT.records(ctx, whole=True)
    for each in found:
        _entry(each)
    agreed = []
    for name, anchor in anchors:
        AUDIT.require_after(found, anchor)
        agreed.append(name)
    return AuditProof(entries=len(found), sha256=found[-1].sha256 if found else None, anchors=tuple(agreed))


def _acting(ctx: Context, asked: AuditedAction) -> tuple[Signer, str]:
    signer = _key(Trust.of(ctx.workspace), ROLE_OF[asked.action], asked.owner)
    return signer, signer.owner


def _signing(ctx: Context, asked: AuditedAction) -> tuple[Signer | None, str]:
    """Return the signer and the actor of an audit entry about a refusal. If the actor has no key on this machine, the
    signer is the first role with a key here. The signer is None if there is no key."""
    try:
        trust = Trust.of(ctx.workspace)
    except SignatureError:
        return None, ""
    own = ROLE_OF[asked.action]
    others = (*(role for role in ROLES if role != ROOT), ROOT)
    for role, owner in ((own, asked.owner), *((role, None) for role in others)):
        try:
            signer = _key(trust, role, owner)
        except SignatureError:
            continue
        acting = role == own and owner == asked.owner
        return signer, signer.owner if acting else f"{UNAUTHENTICATED}{asked.by or getpass.getuser()}"
    return None, ""


def _key(trust: Trust, role: str, owner: str | None) -> Signer:
    """Return this machine's key for a role. If there are several keys, return the first key in order of owners.

    Raises:
        SignatureError: this machine has no such key.
    """
    owners = sorted({key.owner for key in trust.authority(role).keys.values() if key.revoked_from is None})
    for name in [owner] if owner is not None else owners:
        try:
            return trust.signer(role, name)
        except SignatureError:
            if name == owner:
                raise
    return trust.signer(role)


def _last_of(ctx: Context, asked: AuditedAction) -> Mapping[str, Any] | None:
    bodies = (each.body for each in AUDIT.back(ctx))
    return next((body for body in bodies if (body["action"], body["subject"]) == (asked.action, asked.subject)), None)


def _entry(found: LogRecord) -> AuditEntry:
    try:
        entry = AuditEntry(
            number=found.number, at=found.at, role=found.role, signed_by=found.owners, **dict(found.body)
        )
    except (TypeError, ValidationError) as error:
        raise SignatureError(f"record {found.number} of audit/ is not an audit entry", found=error) from error
    named = entry.actor.startswith(UNAUTHENTICATED) and entry.outcome == "refused"
    own = entry.role == ROLE_OF.get(entry.action) and (entry.actor in found.owners or not found.owners)
    if not (named or own):
        raise SignatureError(
            f"record {found.number} of audit/ names an actor who did not sign it",
            found=f"{entry.action} by {entry.actor}, signed as {entry.role} by {', '.join(found.owners)}",
            expected=f"{ROLE_OF.get(entry.action, 'an action')} of the actor",
            remedy="find the owner of that key; restore audit/ from a backup",
        )
    return entry
