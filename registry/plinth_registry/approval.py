"""Approvals: a person's decision about one candidate, by signed statement or in the MLflow UI.

    signed   approvals/<candidate 12>/<person>.json, a DSSE envelope made with that person's key
    in MLflow   tags of the candidate version, as a person sets them by hand:
             approval = approved | rejected, approval.by = name, approval.reason = reason
             a second person uses approval.2, approval.2.by, approval.2.reason, and so on; behind a login, the
             server sets the name

Both forms must name the person and the reason, and are valid for one promotion. A candidate that was promoted before
and lost its alias needs new decisions. A signed decision is ignored and reported if it does not verify or is about
another candidate. An MLflow server with a login signs the author of each tag (`login.log`). Tags without this signature
can be set by anyone and are only requests.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import Field, ValidationError

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.trust import dsse
from plinth.trust.dsse import APPROVER, now
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust, owner_file
from plinth_registry import releases
from plinth_registry.audit_log import LOGINS
from plinth_registry.candidate import Candidate
from plinth_registry.gates.facts import Approval

PREDICATE = "urn:plinth:approval:v1"
Decision = Literal["approved", "rejected"]


class ApprovalStatement(Frozen):
    """Predicate of a person's decision about a candidate.

    Args:
        policy: digest of the gate policy at that time.
        number: number of the person's decision about this candidate.
        after: number of the release record after which the decision counts.
    """

    decision: Decision
    by: str
    reason: str
    policy: str = ""
    at: str
    number: int = Field(ge=1)
    after: int = Field(0, exclude_if=lambda given: not given)


class LoginStatement(Frozen):
    """Body of a login record: a logged-in person set a tag of a candidate."""

    person: str
    candidate: str
    tag: str
    value: str
    policy: str
    model: str
    version: str
    after: int


def sign(
    ctx: Context, candidate: Candidate, by: str, reason: str, decision: Decision = "approved", policy: str = ""
) -> Path:
    """Sign one person's decision about a candidate. Signing the same decision again changes nothing. A later decision
    replaces an earlier decision.

    Args:
        policy: digest of the current gate policy. The approval does not count under a different policy.

    Raises:
        SignatureError: the name or the reason is missing, or the person's key cannot be used on this machine.
    """
    by, reason = by.strip(), reason.strip()
    if not reason:
        raise SignatureError(
            f"the decision of {by or 'an unnamed person'} needs a reason", expected="a reason in a sentence"
        )
    path, after = statement_path(ctx, candidate, by), releases.ended_by(ctx, candidate.release, candidate.subjects)
    wanted = (decision, reason, policy, after)
    key = Trust.of(ctx.workspace).signer(APPROVER, by)
    if path.exists():
        try:
            earlier = verify_statement(ctx, path, candidate)
        except SignatureError:
            earlier = None
        if earlier is not None and (earlier.decision, earlier.reason, earlier.policy, earlier.after) == wanted:
            return path
    number = max(Trust.of(ctx.workspace).seen(*_counted(ctx, candidate, by)), _number(path)) + 1
    stated = ApprovalStatement(
        decision=decision, by=by, reason=reason, policy=policy, at=now(), number=number, after=after
    )
    dsse.write(path, dsse.statement(PREDICATE, candidate.subjects, stated.model_dump(mode="json")), key)
    return path


def statement_path(ctx: Context, candidate: Candidate, person: str) -> Path:
    """Return the path of a person's signed decision about a candidate."""
    return ctx.workspace.approvals / candidate.key[:12] / f"{owner_file(person)}.json"


def verify_statement(ctx: Context, path: Path, candidate: Candidate, data: bytes | None = None) -> Approval:
    """Verify and return a signed decision about this candidate. The decision must be signed by the person in the file
    name.

    Args:
        data: the bytes of the file, if the caller has already read it.

    Raises:
        SignatureError: the decision was signed by someone else, was changed, or is about another candidate.
    """
    person = urllib.parse.unquote(path.stem)
    authority = Trust.of(ctx.workspace).authority(APPROVER).owned_by(person)
    envelope = dsse.envelope_of(path) if data is None else dsse.parsed(data, str(path))
    content = dsse.opened(envelope, authority, PREDICATE, str(path))
    about = dsse.subjects(content)
    if about != candidate.subjects:
        raise SignatureError(
            f"{path} is about another candidate",
            found=about,
            expected=candidate.subjects,
            remedy="the person must review this candidate and sign again",
        )
    predicate = content["predicate"]
    if predicate.get("by") != person or predicate.get("decision") not in get_args(Decision):
        raise SignatureError(f"{path} is not a decision of {person}", found=predicate)
    key = next(one["keyid"] for one in envelope["signatures"] if one.get("keyid") in authority.keys)
    given = {"decision": predicate["decision"], "reason": str(predicate.get("reason"))}
    given |= {"key": key, "policy": str(predicate.get("policy", "")), "after": predicate.get("after", 0)}
    try:
        return Approval(by=person, how="statement", **given)
    except ValidationError as error:
        raise SignatureError(f"{path} is not a decision of {person}", found=error) from error


def require_recorded(ctx: Context, candidate: Candidate, recorded: Collection[Approval]) -> None:
    """Check that the decisions in a release record, or later decisions of the same people, exist and verify.

    Raises:
        SignatureError: a decision is missing or does not verify.
    """
    by_tag = {one.by for one in recorded if one.how == "tag" and one.proxy}
    logged = {one.by for one in login_decisions(ctx, candidate)} if by_tag else set()
    missing = [f"{person}: no signed login" for person in sorted(by_tag - logged)]
    for one in (each for each in recorded if each.how == "statement"):
        try:
            verify_statement(ctx, statement_path(ctx, candidate, one.by), candidate)
        except SignatureError as error:
            missing.append(f"{one.by}: {error.brief}")
    if missing:
        raise SignatureError(
            f"decisions that released candidate {candidate.key[:12]} are missing",
            found="; ".join(missing),
            expected="the decisions that the candidate's release record names",
            remedy="restore approvals/ and logins/ from a backup; or roll back, then approve and promote the candidate "
            "again",
        )


def collect(
    ctx: Context, candidate: Candidate, tags: Mapping[str, Any], policy: str = ""
) -> tuple[tuple[Approval, ...], tuple[str, ...]]:
    """Return every valid decision about a candidate, and the reason for each invalid decision.

    Args:
        tags: the tags of the candidate's version in MLflow.
        policy: digest of the current gate policy. A signed approval under a different policy is invalid; a rejection
            stays valid.

    Raises:
        SignatureError: the log of logins does not verify, or a decision that this machine has verified before was
            removed, changed or replaced by the person's earlier decision. This protects rejections from removal.
    """
    decisions: list[Approval] = []
    faults: list[str] = []
    holding: set[str] = set()
    after = releases.ended_by(ctx, candidate.release, candidate.subjects)
    for path in sorted((ctx.workspace.approvals / candidate.key[:12]).glob("*.json")):
        try:
            found = verify_statement(ctx, path, candidate)
        except SignatureError as error:
            faults.append(error.what)
            continue
        holding.add(found.by)
        if fault := _outdated(found, policy, after):
            faults.append(fault)
        else:
            decisions.append(found)
    _require_newest(ctx, candidate, holding)
    for tagged in _tagged(ctx, candidate, tags):
        if isinstance(tagged, str):
            faults.append(tagged)
        elif fault := _outdated(tagged, policy, after):
            faults.append(fault)
        else:
            decisions.append(tagged)
    return tuple(decisions), tuple(faults)


def _tagged(ctx: Context, candidate: Candidate, tags: Mapping[str, Any]) -> Iterator[Approval | str]:
    """Yield the decisions of logged-in people, then the decisions that exist only as tags, and messages about invalid
    tags."""
    stated = login_decisions(ctx, candidate)
    yield from stated
    known = {(one.by, one.decision) for one in stated}
    for tag in sorted(tag for tag in tags if TAG.fullmatch(tag)):
        found = _from_tag(tag, tags)
        if found and (isinstance(found, str) or (found.by, found.decision) not in known):
            yield found


def _outdated(found: Approval, policy: str, after: int) -> str:
    """Return the reason why an approval does not count for this promotion under the current policy. If the approval
    counts, return an empty string. The result is also empty for an unsigned tag, because the gate rejects it."""
    if found.decision != "approved" or (found.how == "tag" and not found.proxy):
        return ""
    if found.policy != policy:
        return f"{found.by} approved under another gate policy ({found.policy[:12] or 'none'})"
    spent = f"{found.by} approved a promotion that ended with release record {after}; approve again for a new promotion"
    return "" if found.after == after else spent


def _require_newest(ctx: Context, candidate: Candidate, deciders: set[str]) -> None:
    """Check that each person's newest decision is at least as new as the newest decision of this person that the
    machine has seen."""
    trust = Trust.of(ctx.workspace)
    for person in sorted({key.owner for key in trust.authority(APPROVER).keys.values() if key.revoked_from is None}):
        counted = _counted(ctx, candidate, person)
        number = _number(statement_path(ctx, candidate, person)) if person in deciders else 0
        if number < trust.seen(*counted):
            raise SignatureError(
                f"the newest decision of {person} about candidate {candidate.key[:12]} is missing",
                found=f"decision {number}" if number else "none that verifies",
                expected=f"decision {trust.seen(*counted)}, which this machine has seen",
                remedy="restore approvals/ from a backup, or have that person decide again",
            )
        if number:
            trust.remember(counted[0], number)


def _number(path: Path) -> int:
    """Return the sequence number of a person's signed decision, or 0 if there is no decision."""
    try:
        return int(dsse.unverified(dsse.envelope_of(path), str(path))["predicate"].get("number", 1))
    except (SignatureError, KeyError, TypeError, ValueError):
        return 0


def _counted(ctx: Context, candidate: Candidate, person: str) -> tuple[str, ...]:
    return tuple(f"{place} approvals/{candidate.key}/{person}" for place in ctx.workspace.places)


def _from_tag(tag: str, tags: Mapping[str, Any]) -> Approval | str | None:
    """Return the decision that three related tags express. Return a message if the tags are invalid, or None if the
    decision tag is empty."""
    value = str(tags[tag]).strip().lower()
    by, reason = (str(tags.get(f"{tag}.{field}", "")).strip() for field in ("by", "reason"))
    if not value:
        return None
    if value == "rejected":
        return Approval(
            by=by or "an unnamed person", decision="rejected", reason=reason or "no reason given", how="tag"
        )
    if value != "approved":
        return f"tag {tag} is {value!r}, expected approved or rejected"
    absent = [name for name, given in ((f"{tag}.by", by), (f"{tag}.reason", reason)) if not given]
    if absent:
        return f"tag {tag} is set, but {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing"
    return Approval(by=by, decision="approved", reason=reason, how="tag")


# Approval tags set by logged-in people, each in a statement signed by the server.
#
#     logins/00001.json    person, candidate, tag, value; signed by the server, numbered and chained
#
# A person's decision consists of the newest tags that the person set. Changes to these tags by other people have no
# effect. A rejection in any of the tags outweighs an approval. The policy names the accepted servers and people.

#: Decision tag with the number of the person; reason and name are in related tags.
TAG: Final = re.compile(r"approval(\.\d+)?")
#: Pattern of all decision tags.
WRITTEN: Final = re.compile(r"(approval(?:\.\d+)?)(\.by|\.reason)?")


def write_login(
    ctx: Context, candidate: Candidate, server: str, person: str, tag: str, value: str, policy: str
) -> None:
    """Sign a record that a logged-in person set a tag of a candidate. If the value is empty, the record states that the
    tag was removed.

    Args:
        server: owner of the signing key.
        policy: digest of the current gate policy.

    Raises:
        SignatureError: the log does not verify, or the key is not on this machine.
    """
    body = LoginStatement(
        person=person,
        candidate=candidate.key,
        tag=tag,
        value=value,
        policy=policy,
        model=candidate.model,
        version=candidate.version,
        after=releases.ended_by(ctx, candidate.release, candidate.subjects),
    )
    LOGINS.append(ctx, body.model_dump(mode="json"), candidate.subjects, APPROVER, server)


def logins_about(ctx: Context, candidate: Candidate) -> tuple[LogRecord, ...]:
    """Return the login records about a candidate, oldest first.

    Raises:
        SignatureError: a record was edited, removed, moved, or not signed by an approver.
    """
    # The version is also checked, since its tags may have had another candidate's key when the decision was made.
    wanted = {"candidate": candidate.key, "model": candidate.model, "version": candidate.version}
    return tuple(one for one in LOGINS.records(ctx) if wanted.items() <= one.body.items())


def login_decisions(ctx: Context, candidate: Candidate) -> tuple[Approval, ...]:
    """Return the complete decisions about a candidate that people made while logged in, for each person and server.

    Raises:
        SignatureError: a record was edited, removed, moved, or not signed by an approver.
    """
    written: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for record in logins_about(ctx, candidate):
        for server in record.owners:
            tags = written.setdefault((str(record.body.get("person")), server), {})
            tags[str(record.body.get("tag"))] = record.body
    found = (_decision(person, server, tags) for (person, server), tags in sorted(written.items()))
    return tuple(one for one in found if one is not None)


def _decision(person: str, server: str, tags: Mapping[str, Mapping[str, Any]]) -> Approval | None:
    said = {tag: str(body.get("value")).strip().lower() for tag, body in tags.items() if TAG.fullmatch(tag)}
    for tag in sorted(tag for tag, value in said.items() if value == "rejected"):
        reason = _reason(tags, tag) or "no reason given"
        return Approval(by=person, decision="rejected", reason=reason, how="tag", proxy=server)
    for tag in sorted(tag for tag, value in said.items() if value == "approved"):
        if reason := _reason(tags, tag):
            given = {"policy": str(tags[tag].get("policy", "")), "after": int(tags[tag].get("after", 0))}
            return Approval(by=person, decision="approved", reason=reason, how="tag", proxy=server, **given)
    return None


def _reason(tags: Mapping[str, Mapping[str, Any]], tag: str) -> str:
    return str(tags.get(f"{tag}.reason", {}).get("value", "")).strip()
