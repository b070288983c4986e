"""Gates on where the model comes from: signature, lineage, taint, rights in the data, the run and its cost."""

from __future__ import annotations

from collections import Counter

from registry.gates.facts import CheckResult, Evidence, GrantedUses, ResumeFacts
from registry.gates.result import GateResult, missing
from registry.gates.settings import GatePolicy, ResumePolicy


def signature(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """The directory holds the files that the trainer signed."""
    return _finding("signature", evidence.signature)


def lineage(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """The ancestry is complete, down to the raw sources, and the trainer stated how it trained: where the policy asks,
    at a clean commit."""
    found, known = _finding("lineage", evidence.lineage), evidence.code
    if not (found.passed and policy.lineage.clean_commit):
        return found
    if known is None or not (known.commits or known.unclean):
        return missing("lineage", "the code that trained")
    reason = "; ".join(known.unclean) or f"{found.reason}; every machine at a clean commit"
    return GateResult(
        name="lineage", passed=not known.unclean, reason=reason, evidence={"commits": list(known.commits)}
    )


def taint(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Nothing in the ancestry is marked as unfit."""
    if evidence.taints is None:
        return missing("taint")
    reason = "; ".join(evidence.taints) or "nothing in the ancestry is marked"
    return GateResult(name="taint", passed=not evidence.taints, reason=reason)


def licence(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Every training document under a licence that the recipe permits, and the policy where it has a list."""
    known = evidence.licences
    if known is None or not sum(known.documents.values()):
        return missing("licence")
    from plinth.corpus.annotate.licence import judge  # the annotator's own reading of SPDX expressions

    lists = [tuple(sorted(own)) for own in (known.permitted, policy.licences.permitted) if own is not None]
    foreign = {
        name: count
        for name, count in sorted(known.documents.items())
        if count and not all(judge(name, permitted)[1] for permitted in lists)
    }
    reason = (
        "not permitted: " + ", ".join(f"{name} ({count} documents)" for name, count in foreign.items())
        if foreign
        else f"{sum(known.documents.values())} documents, all under permitted licences"
    )
    evidence_shown = {"documents": dict(known.documents)}
    return GateResult(name="licence", passed=not foreign, reason=reason, evidence=evidence_shown)


def terms(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Every source that entered grants every use that the release is made for."""
    known = evidence.licences
    entered = {name: one for name, one in sorted(known.sources.items()) if one.documents} if known else {}
    if not entered:
        return missing("terms")
    refused = {name: [use for use in policy.licences.uses if not getattr(one, use)] for name, one in entered.items()}
    faults = [f"{name} does not grant {' and '.join(uses)}" for name, uses in refused.items() if uses]
    granted = f"all {len(entered)} sources grant {', '.join(policy.licences.uses)}"
    return GateResult(
        name="terms",
        passed=not faults,
        reason="; ".join(faults) or granted,
        evidence={"sources": {name: _terms(one) for name, one in entered.items()}},
    )


def resume(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """A resumed run is bit-identical to an uninterrupted one, or as close as kernels of its hardware allow, where the
    policy accepts that."""
    known, asked = evidence.resume, policy.resume
    if known is None or known.compared_steps < asked.min_steps:
        return missing(
            "resume", "" if known is None else f"{known.compared_steps} steps compared, expected {asked.min_steps}"
        )
    within, how = _within(known, asked)
    passed = known.bit_exact or within
    found = "is bit-identical to" if known.bit_exact else "agrees within a measured tolerance with"
    found = found if passed else "differs from"
    reason = f"a resumed run {found} an uninterrupted one over {known.compared_steps} steps"
    reason = "; ".join((reason, *(how if not known.bit_exact else ()), *(() if passed else known.faults)))
    return GateResult(name="resume", passed=passed, reason=reason, evidence=known.model_dump(mode="json"))


def _within(known: ResumeFacts, asked: ResumePolicy) -> tuple[bool, tuple[str, ...]]:
    """Whether the policy accepts the tolerance that was measured, and the reasons."""
    measured = known.tolerance
    if measured is None:
        return False, ()
    if "measured" not in asked.classes:
        return False, ("the policy accepts bit-equal alone",)
    if measured.faults:
        return False, measured.faults
    widest = max(measured.bounds, key=lambda name: measured.bounds[name])
    if measured.bounds[widest] > asked.max_bound:
        came = f"the bound of {widest} came to {measured.bounds[widest]:.3g}"
        return False, (f"{came}, more than the {asked.max_bound:g} allowed",)
    held = [f"{name} {measured.differences[name]:.2g} of {bound:.2g}" for name, bound in measured.bounds.items()]
    differences = f"relative differences, of their bounds: {', '.join(held)}"
    return True, (differences, f"measured on {_machines(measured.hardware)}")


def _machines(hardware: tuple[str, ...]) -> str:
    """Hardware by number of ranks."""
    return "; ".join(f"{count} x {name}" for name, count in sorted(Counter(hardware).items()))


def stability(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Interventions and restarts of the run."""
    known, bound = evidence.stability, policy.stability.max_events
    if known is None or not known.events:
        return missing("stability")
    count = sum(known.events.values())
    listed = ", ".join(f"{n} {kind}" for kind, n in sorted(known.events.items()) if n) or "none"
    return GateResult(
        name="stability",
        passed=0 <= count <= bound,
        reason=f"events of the run: {listed}; at most {bound} allowed",
        evidence={"events": dict(known.events)},
    )


def cost(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """What the run cost is on record."""
    known = evidence.cost
    if known is None:
        return missing("cost")
    absent = [name for name in policy.cost.amounts if not known.amounts.get(name, 0.0) > 0]
    if absent:
        return missing("cost", ", ".join(absent))
    reason = "recorded: " + ", ".join(f"{name} {known.amounts[name]:g}" for name in policy.cost.amounts)
    return GateResult(name="cost", passed=True, reason=reason, evidence={"amounts": dict(known.amounts)})


def _finding(name: str, found: CheckResult | None) -> GateResult:
    if found is None:
        return missing(name)
    return GateResult(name=name, passed=found.holds, reason=found.detail)


def _terms(one: GrantedUses) -> dict[str, bool | int]:
    return one.model_dump(mode="json")
