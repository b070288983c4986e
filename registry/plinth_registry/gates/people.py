"""The gate on approvals: enough different people who are allowed to, each with a key if the policy requires two."""

from __future__ import annotations

from typing import NamedTuple

from plinth.evaluation.gate import GateState, release_gate
from plinth_registry.gates.facts import Approval, Evidence
from plinth_registry.gates.result import GateResult, missing
from plinth_registry.gates.settings import APPROVALS, ApprovalPolicy


class CountedApprovals(NamedTuple):
    """People whose approval counts, their keys or logins, rejections, and reasons why other decisions do not count."""

    people: list[str]
    keys: set[str]
    rejected: list[str]
    faults: list[str]


def approvals(asked: ApprovalPolicy, evidence: Evidence) -> GateResult:
    """Enough different people approved, and no one rejected: one rejection outweighs any number of approvals.

    A tag counts as the decision of a person whom the policy lists, if a server that it names states that this person
    set it while logged in. What the policy does not accept, or anyone could set, does not count: such a rejection is
    shown as a request and vetoes nothing. Pending until enough people have approved.
    """
    if evidence.approvals is None:
        return missing(APPROVALS)
    needed = max(asked.people, 2) if asked.two_person else asked.people
    found = _counted(asked, evidence)
    unknown = asked.two_person and evidence.requested_by is None
    alike = asked.two_person and len(found.people) >= needed > len(found.keys)
    enough = len(found.people) >= needed and not alike
    state: GateState = "failed" if found.rejected or unknown else "passed" if enough else "pending"
    if not needed and state == "passed":
        state = "not applicable"
    parts = [f"{len(found.people)} of {needed} approvals" if needed else "the policy requires no approval"]
    parts[0] += f" ({', '.join(found.people)})" if found.people else ""
    if unknown:
        parts.append("the requester of the run is unknown, so two-person approval cannot be evaluated")
    if alike:
        parts.append(f"{len(found.people)} people used {len(found.keys)} of {needed} different keys or logins")
    decisions = [approval.model_dump(mode="json") for approval in evidence.approvals]
    reason = "; ".join((*parts, *found.rejected, *found.faults))
    return GateResult(name=APPROVALS, state=state, reason=reason, evidence={"decisions": decisions})


def not_counted(asked: ApprovalPolicy, evidence: Evidence) -> tuple[str, ...]:
    """Return the decisions that do not count, a sentence each with the reason."""
    return tuple(_counted(asked, evidence).faults)


def _counted(asked: ApprovalPolicy, evidence: Evidence) -> CountedApprovals:
    people, keys, rejected, faults = set[str](), set[str](), list[str](), list(evidence.approval_faults)
    for approval in evidence.approvals or ():
        why = _unfit(asked, approval, evidence.requested_by)
        if approval.decision == "rejected":
            said, unproved = f"{approval.by}: {approval.reason}", _unproved(asked, approval)
            if unproved:
                faults.append(f"rejection not counted: {said} ({approval.how}{unproved})")
            else:
                rejected.append(f"rejected by {said}")
        elif why:
            faults.append(why)
        else:
            people.add(approval.by)
            keys.add(approval.key or f"login of {approval.by}")
    return CountedApprovals(sorted(people), keys, rejected, faults)


def _unfit(asked: ApprovalPolicy, approval: Approval, requested_by: str | None) -> str:
    """Reason why an approval does not count; empty if it does."""
    if unproved := _unproved(asked, approval):
        return f"approval not counted: {approval.by} ({approval.how}{unproved})"
    if approval.by in asked.proxies:
        return f"approval not counted: {approval.by} is the server that states logins"
    if asked.approvers and approval.by not in asked.approvers:
        return f"approval not counted: {approval.by} is not an approver of the policy"
    if asked.two_person and approval.by == requested_by:
        return f"approval not counted: {approval.by} requested the run"
    return ""


def _unproved(asked: ApprovalPolicy, approval: Approval) -> str:
    """Reason why a decision is not proved to be that person's, as the policy requires; empty if it is."""
    if approval.how not in asked.accepted:
        return f", the policy accepts {' or '.join(asked.accepted)}"
    if approval.how == "statement":
        return ""
    if not approval.proxy:
        return ", which anyone can set: no server states who was logged in"
    if approval.proxy not in asked.proxies:
        return f" through {approval.proxy}, which the policy does not name"
    return "" if approval.by in asked.approvers else ", who is not an approver of the policy"


GATE = release_gate(approvals, ApprovalPolicy, "approvals", always=True)
