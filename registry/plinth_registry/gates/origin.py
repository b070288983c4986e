"""Gates on the candidate itself: signature, lineage, taint, training text, the run and its cost; and the gate of
approvals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from plinth.evaluation.measurement import GateState, release_gate
from plinth.extensions import NoParams
from plinth.text import counted
from plinth.training.forensics.order_proof import OrderProof
from plinth_registry.gates import GateResult, decided, missing, shown
from plinth_registry.gates.facts import Approval, CheckResult, CodeChange, Evidence, ResumeFacts
from plinth_registry.gates.settings import (
    APPROVALS,
    ApprovalPolicy,
    ContaminationPolicy,
    CostPolicy,
    LicencePolicy,
    LineagePolicy,
    ResumePolicy,
    StabilityPolicy,
)


def signature(_: NoParams, evidence: Evidence) -> GateResult:
    """Require that the model directory has exactly the files that the trainer signed."""
    return _finding("signature", evidence.signature)


def lineage(asked: LineagePolicy, evidence: Evidence) -> GateResult:
    """Require a complete ancestry down to the raw sources, and a statement signed by the training process. If the
    policy requires it, every machine must have trained from a clean commit, and every change of the code must have been
    compared, with at most a small increase of the loss by all of them together."""
    found, known = _finding("lineage", evidence.lineage), evidence.code
    limit = asked.max_code_increase
    if not (found.passed and (asked.clean_commit or limit is not None)):
        return found
    if known is None or not (known.commits or known.unclean):
        return missing("lineage", "the code that the training used")
    faults, said = list(known.unclean * asked.clean_commit), found.reason
    said += "; all machines ran at a clean commit" if asked.clean_commit else ""
    if limit is not None:
        faults += _code_faults(known.changes, limit)
        said += "; every change of code was compared"
    return decided("lineage", not faults, "; ".join(faults) or said, commits=list(known.commits))


def _code_faults(changes: Iterable[CodeChange], limit: float) -> Iterator[str]:
    """Yield the changes of code that were not compared, or all of them if they add up to more than the limit.

    The sum of the upper ends is an upper end of the sum, at the same level at least.
    """
    made = tuple(changes)
    yield from (one.text for one in made if one.increase is None)
    total = sum(one.increase or 0.0 for one in made)
    if total > limit:
        yield f"the changes of code increase the loss by up to {shown(total, limit)} nats (limit {shown(limit, total)})"
        yield from (one.text for one in made if one.increase)


def taint(_: NoParams, evidence: Evidence) -> GateResult:
    """Require that no upstream artifact is marked as bad (tainted)."""
    if evidence.taints is None:
        return missing("taint")
    reason = "; ".join(evidence.taints) or "no upstream artifact is marked as bad (tainted)"
    return decided("taint", not evidence.taints, reason)


def contamination(asked: ContaminationPolicy, evidence: Evidence) -> GateResult:
    """Limit the number of training documents that overlap the held-out set."""
    known, bound = evidence.contamination, asked.max_documents
    if known is None or known.documents <= 0:
        return missing("contamination")
    share = f"{known.contaminated:,} of {counted(known.documents, 'training document')}"
    reason = f"{share} overlap the held-out set (limit {bound:,})"
    return decided("contamination", 0 <= known.contaminated <= bound, reason, **known.model_dump(mode="json"))


def licence(asked: LicencePolicy, evidence: Evidence) -> GateResult:
    """Require that the recipe permits the license of every training document. If the policy has its own list of
    licenses, this list must also permit the license."""
    known = evidence.licences
    if known is None or not sum(known.documents.values()):
        return missing("licence")
    from plinth.corpus.annotate.licence import judge  # the annotator's own reading of SPDX expressions

    lists = [tuple(sorted(own)) for own in (known.permitted, asked.permitted) if own is not None]
    foreign = {
        name: count
        for name, count in sorted(known.documents.items())
        if count and not all(judge(name, permitted)[1] for permitted in lists)
    }
    share = f"{sum(foreign.values()):,} of {counted(sum(known.documents.values()), 'document')}"
    reason = f"{share} under licenses that are not permitted (limit 0)"
    reason += f": {', '.join(f'{name} (n {count:,})' for name, count in foreign.items())}" if foreign else ""
    return decided("licence", not foreign, reason, documents=dict(known.documents))


def terms(asked: LicencePolicy, evidence: Evidence) -> GateResult:
    """Require that the terms of every used source grant every use that the policy lists."""
    known = evidence.licences
    entered = {name: one for name, one in sorted(known.sources.items()) if one.documents} if known else {}
    if not entered:
        return missing("terms")
    refused = {name: [use for use in asked.uses if not getattr(one, use)] for name, one in entered.items()}
    faults = [f"{name} does not grant {' and '.join(uses)}" for name, uses in refused.items() if uses]
    held = len(entered) - len(faults)
    reason = f"{', '.join(asked.uses)}: granted by {held} of {counted(len(entered), 'source')}"
    return decided(
        "terms",
        not faults,
        "; ".join((reason, *faults)),
        sources={name: one.model_dump(mode="json") for name, one in entered.items()},
    )


def resume(asked: ResumePolicy, evidence: Evidence) -> GateResult:
    """Require a resumed run to be bit-identical to an uninterrupted run. If the policy accepts it, a difference within
    the tolerance of the hardware is enough."""
    known = evidence.resume
    if known is None:
        return missing("resume")
    if known.unproved:
        return _of_own_trainer(asked, known)
    steps = f"{counted(known.compared_steps, 'step')} (minimum {asked.min_steps})"
    if known.compared_steps < asked.min_steps:
        return missing("resume", f"compared over {steps}")
    within, how = _within(known, asked)
    equal = known.bit_exact or within
    found = "is bit-identical to" if known.bit_exact else "is within a measured tolerance of"
    reason = f"a resumed run {found if equal else 'differs from'} an uninterrupted run over {steps}"
    rare, replays = _uncorrupted(known, asked)
    reason = "; ".join((reason, *(how if not known.bit_exact else ()), *(() if equal else known.faults), *replays))
    return decided("resume", equal and rare, reason, **known.model_dump(mode="json"))


def _uncorrupted(known: ResumeFacts, asked: ResumePolicy) -> tuple[bool, tuple[str, ...]]:
    """Return True if silent data corruption is as rare as the policy requires, with the evidence in words."""
    found, most = known.corruption, asked.max_corruption
    words = () if found is None else (found.replays.in_words(found.steps),)
    if most is None:
        return True, words
    return found is not None and found.bound <= most, (*(words or ("no step was replayed",)), f"limit {most:g}")


def _of_own_trainer(asked: ResumePolicy, known: ResumeFacts) -> GateResult:
    """Judge a run of an external trainer by the replay of sampled steps, if the policy accepts such a proof."""
    order = known.order or OrderProof(fault="no evidence")
    replayed = "order" in asked.classes and order.holds(asked.max_chance, asked.min_steps)
    accepted = replayed or "unproved" in asked.classes
    decision = "the policy accepts this" if accepted else f"the policy accepts only {', '.join(asked.classes)}"
    if "order" in asked.classes and not accepted:
        decision += f"; at least {counted(asked.min_steps, 'step')} with a chance of at most {asked.max_chance:g}"
    rare, replays = _uncorrupted(known, asked)
    reason = "; ".join((known.unproved, order.in_words, decision, *replays))
    return decided("resume", accepted and rare, reason, **known.model_dump(mode="json"))


def _within(known: ResumeFacts, asked: ResumePolicy) -> tuple[bool, tuple[str, ...]]:
    """Return True if the policy accepts how far the resumed run may differ from the original, with the reasons."""
    measured = known.tolerance
    if measured is None:
        return False, ()
    if "measured" not in asked.classes:
        return False, ("the policy accepts only bit-exact replays",)
    if measured.faults:
        return False, measured.faults
    widest = max(measured.bounds, key=lambda name: measured.bounds[name])
    if measured.bounds[widest] > asked.max_bound:
        bound = measured.bounds[widest]
        return False, (f"tolerance of {widest} {shown(bound, asked.max_bound)}, limit {shown(asked.max_bound, bound)}",)
    held = [f"{name} {measured.differences[name]:.2g}, limit {bound:.2g}" for name, bound in measured.bounds.items()]
    differences = f"relative differences: {'; '.join(held)}"
    return True, (differences, f"measured on {_machines(measured.hardware)}")


def _machines(hardware: tuple[str, ...]) -> str:
    """Format the hardware of the ranks, with the number of ranks."""
    return "; ".join(f"{count} x {name}" for name, count in sorted(Counter(hardware).items()))


def stability(asked: StabilityPolicy, evidence: Evidence) -> GateResult:
    """Limit the number of restarts, interventions of the training guard (skipped updates, lower learning rates,
    rollbacks, stops), diverged steps, and rejected checkpoints, which failed verification or were trained on a batch
    that was later skipped."""
    known, bound = evidence.stability, asked.max_events
    if known is None or not known.events:
        return missing("stability")
    count = sum(known.events.values())
    kinds = {_event(kind).removesuffix("s"): n for kind, n in sorted(known.events.items()) if n}
    listed = ", ".join(counted(n, kind) for kind, n in kinds.items()) or f"no {_either(known.events)}"
    total = f"{counted(count, 'event')}: {listed}" if len(kinds) > 1 else listed
    return decided("stability", 0 <= count <= bound, f"{total} (limit {bound})", events=dict(known.events))


def _either(kinds: Iterable[str]) -> str:
    """Return the kinds of events as text: `restarts, interventions or diverged steps`."""
    *others, last = map(_event, kinds)
    return f"{', '.join(others)} or {last}" if others else last


def _event(kind: str) -> str:
    """Return the displayed name of a kind of event."""
    return "rejected checkpoints" if kind == "refused_checkpoints" else kind.replace("_", " ")


def cost(asked: CostPolicy, evidence: Evidence) -> GateResult:
    """Require that the cost of the run is recorded."""
    known = evidence.cost
    if known is None:
        return missing("cost")
    absent = [name for name in asked.amounts if not known.amounts.get(name, 0.0) > 0]
    if absent:
        return missing("cost", ", ".join(absent))
    reason = "recorded: " + ", ".join(f"{_label(name)} {shown(known.amounts[name])}" for name in asked.amounts)
    return decided("cost", True, reason, amounts=dict(known.amounts))


def _label(amount: str) -> str:
    """Return the label of an amount: `wall_s` is `wall seconds`, `device_hours` is `device hours`."""
    return (f"{amount.removesuffix('_s')} seconds" if amount.endswith("_s") else amount).replace("_", " ")


def _finding(name: str, found: CheckResult | None) -> GateResult:
    return missing(name) if found is None else decided(name, found.holds, found.detail)


SIGNATURE = release_gate(signature, always=True)
LINEAGE = release_gate(lineage, LineagePolicy, "lineage", always=True)
TAINT = release_gate(taint, always=True)
CONTAMINATION = release_gate(contamination, ContaminationPolicy, "contamination", ("contamination",))
LICENCE = release_gate(licence, LicencePolicy, "licences", ("licences",))
TERMS = release_gate(terms, LicencePolicy, "licences", ("licences",))
RESUME = release_gate(resume, ResumePolicy, "resume", ("resume",))
STABILITY = release_gate(stability, StabilityPolicy, "stability")
COST = release_gate(cost, CostPolicy, "cost")


class CountedApprovals(NamedTuple):
    """Decisions on a candidate: people with approvals that count, their keys or logins, rejections, and the reasons why
    other decisions do not count."""

    people: list[str]
    keys: set[str]
    rejected: list[str]
    faults: list[str]


def approvals(asked: ApprovalPolicy, evidence: Evidence) -> GateResult:
    """Require approvals by enough different people. A single rejection outweighs any number of approvals.

    A tag counts as a person's decision if the policy lists the person, and if a server that the policy names states
    that this person set the tag while logged in. A decision that the policy does not accept, or that anyone could set,
    does not count: such a rejection is shown as a request and does not block. The gate is pending until enough people
    have approved.
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
        parts.append("unknown requester, so two-person approval cannot be evaluated")
    if alike:
        parts.append(f"{len(found.people)} people used {len(found.keys)} of {needed} required different keys or logins")
    decisions = [approval.model_dump(mode="json") for approval in evidence.approvals]
    reason = "; ".join((*parts, *found.rejected, *found.faults))
    return GateResult(name=APPROVALS, state=state, reason=reason, evidence={"decisions": decisions})


def not_counted(asked: ApprovalPolicy, evidence: Evidence) -> tuple[str, ...]:
    """Return one sentence with the reason for each decision that does not count."""
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
    """Return the reason why an approval does not count, or an empty string if it counts."""
    if unproved := _unproved(asked, approval):
        return f"approval not counted: {approval.by} ({approval.how}{unproved})"
    if approval.by in asked.proxies:
        return f"approval not counted: {approval.by} is the login server"
    if asked.approvers and approval.by not in asked.approvers:
        return f"approval not counted: {approval.by} is not an approver of the policy"
    if asked.two_person and approval.by == requested_by:
        return f"approval not counted: {approval.by} requested the run"
    return ""


def _unproved(asked: ApprovalPolicy, approval: Approval) -> str:
    """Return the reason why the signature or login does not prove that this person made the decision, as the policy
    requires. If it is proved, return an empty string."""
    if approval.how not in asked.accepted:
        return f", the policy accepts {' or '.join(asked.accepted)}"
    if approval.how == "statement":
        return ""
    if not approval.proxy:
        return ", without a signed login, so anyone could have set it"
    if approval.proxy not in asked.proxies:
        return f" through {approval.proxy}, which the policy does not name"
    return "" if approval.by in asked.approvers else ", who is not an approver of the policy"


APPROVALS_GATE = release_gate(approvals, ApprovalPolicy, "approvals", always=True)
