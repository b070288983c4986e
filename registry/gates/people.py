"""The gate on decisions of people: different, allowed, enough; with keys of their own where the policy asks for two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from registry.gates.facts import Approval, Evidence
from registry.gates.result import GateResult, missing
from registry.gates.settings import ApprovalPolicy, GatePolicy

APPROVALS: Final = "approvals"


class CountedApprovals(NamedTuple):
    """People whose approval counts, the keys or logins that they used, who rejected, and why others do not count."""

    people: list[str]
    keys: set[str]
    rejected: list[str]
    faults: list[str]


def approvals(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Different allowed people who approved; one rejection outweighs any number of approvals.

    A tag counts as the decision of a person whom the policy lists, once a server that it names states that this person,
    logged in, set it. What the policy does not accept, or anybody could set, counts for nothing: a rejection of that
    kind is shown as a request, and vetoes nothing.
    """
    if evidence.approvals is None:
        return missing(APPROVALS)
    asked = policy.approvals
    needed = max(asked.people, 2) if asked.two_person else asked.people
    found = _counted(asked, evidence)
    faults = [*found.faults, *(_of_two(evidence, found, needed) if asked.two_person else ())]
    unjudged = asked.two_person and (evidence.requested_by is None or len(found.keys) < needed)
    parts = [f"{len(found.people)} of {needed} approvals" + (f" ({', '.join(found.people)})" if found.people else "")]
    return GateResult(
        name=APPROVALS,
        passed=len(found.people) >= needed and not unjudged and not found.rejected,
        reason="; ".join(parts + found.rejected + faults),
        evidence={"decisions": [approval.model_dump(mode="json") for approval in evidence.approvals]},
    )


def _of_two(evidence: Evidence, found: CountedApprovals, needed: int) -> Iterator[str]:
    if evidence.requested_by is None:
        yield "nobody is recorded as having asked for the run, so two-person approval cannot be judged"
    if len(found.people) >= needed > len(found.keys):
        yield f"{len(found.people)} people used {len(found.keys)} keys or logins, expected {needed}"


def _counted(asked: ApprovalPolicy, evidence: Evidence) -> CountedApprovals:
    people, keys, rejected, faults = set[str](), set[str](), list[str](), list(evidence.approval_faults)
    for approval in evidence.approvals or ():
        why = _unfit(asked, approval, evidence.requested_by)
        if approval.decision == "rejected":
            said, unproved = f"{approval.by}: {approval.reason}", _unproved(asked, approval)
            if unproved:
                faults.append(f"a rejection is asked for by {said} ({approval.how}{unproved})")
            else:
                rejected.append(f"rejected by {said}")
        elif why:
            faults.append(why)
        else:
            people.add(approval.by)
            keys.add(approval.key or f"login of {approval.by}")
    return CountedApprovals(sorted(people), keys, rejected, faults)


def _unfit(asked: ApprovalPolicy, approval: Approval, requested_by: str | None) -> str:
    """Why an approval does not count; empty where it does."""
    if unproved := _unproved(asked, approval):
        return f"{approval.by} approved by {approval.how}{unproved}"
    if approval.by in asked.proxies:
        return f"{approval.by} states whose tags they are, and may not approve"
    if asked.approvers and approval.by not in asked.approvers:
        return f"{approval.by} may not approve"
    if asked.two_person and approval.by == requested_by:
        return f"{approval.by} asked for the run and may not approve it"
    return ""


def _unproved(asked: ApprovalPolicy, approval: Approval) -> str:
    """Why a decision is not shown to be that person's, as the policy asks; empty where it is."""
    if approval.how not in asked.accepted:
        return f", the policy accepts {' or '.join(asked.accepted)}"
    if approval.how == "statement":
        return ""
    if not approval.proxy:
        return ", which anybody may have set: no server states who was logged in"
    if approval.proxy not in asked.proxies:
        return f" through {approval.proxy}, which the policy does not name"
    return "" if approval.by in asked.approvers else ", whom the policy does not list among approvers"
