"""Gates: conditions on a candidate. Pure functions from evidence to (passed, reason, evidence).

    signature          the directory holds the files that the trainer signed
    lineage            the ancestry is complete, down to the raw sources
    beats_gzip         bits per byte below `gzip -9` on every slice
    beats_trigram      bits per byte below the byte trigram on every slice
    max_bits_per_byte  an absolute bound on every slice
    contamination      training documents that overlap the held-out set
    licence            nothing under a licence that the recipe does not permit
    resume             a resumed run is bit-identical to an uninterrupted one
    stability          interventions and restarts of the run, reported and bounded where asked
    taint              nothing in the ancestry is marked as unfit
    approvals          people, different, allowed, enough
    (others)           gates of installed packages that the recipe names; their origin is part of their evidence

Missing evidence fails its gate with a reason; a gate that the recipe does not ask for is not there.
Does not belong here: how evidence is gathered (`evidence`), or what follows from it (`promotion`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from plinth import fingerprint
from plinth.errors import RecipeError
from plinth.recipe.gate import GATES
from plinth.recipe.release import Gates
from plinth.records import Frozen

APPROVALS = "approvals"


class CheckResult(Frozen):
    """The outcome of a check that ran elsewhere, with its findings in words."""

    holds: bool
    detail: str


class SliceScore(Frozen):
    """Bits per byte on one held-out slice: the model and two baselines on the same bytes."""

    bytes: int
    model: float
    gzip: float
    trigram: float


class Approval(Frozen):
    """One person's decision, and how it was expressed."""

    by: str
    decision: Literal["approved", "rejected"]
    reason: str
    how: Literal["statement", "tag"]


class Evidence(Frozen):
    """The evidence that the gates read. None: there is no such evidence, so its gate fails."""

    signature: CheckResult | None = None
    lineage: CheckResult | None = None
    slices: Mapping[str, SliceScore] | None = None
    expected_slices: tuple[str, ...] = ()
    contaminated_documents: int | None = None
    licences: Mapping[str, int] | None = Field(None, description="Curated documents by licence.")
    permitted_licences: tuple[str, ...] = ()
    resume: CheckResult | None = None
    stability: Mapping[str, int] | None = Field(None, description="Events of the run by kind.")
    taints: tuple[str, ...] | None = None
    requested_by: str | None = None
    approvals: tuple[Approval, ...] | None = None
    approval_faults: tuple[str, ...] = ()


class GateResult(Frozen):
    """The decision of one gate, its reason and its evidence."""

    name: str
    passed: bool
    reason: str
    evidence: Mapping[str, Any] = Field(default_factory=dict)


def evaluate(policy: Gates, evidence: Evidence) -> tuple[GateResult, ...]:
    """Every gate of the policy, in a fixed order."""
    return tuple(_asked(policy, evidence))


def open_gates(results: tuple[GateResult, ...]) -> bool:
    """Whether every gate passed; no gates at all is not a pass."""
    return bool(results) and all(result.passed for result in results)


def failed(results: tuple[GateResult, ...]) -> tuple[GateResult, ...]:
    """The gates that did not pass."""
    return tuple(result for result in results if not result.passed)


def approvals(policy: Gates, evidence: Evidence) -> GateResult:
    """Different allowed people who approved; one rejection outweighs any number of approvals."""
    if evidence.approvals is None:
        return _missing(APPROVALS)
    needed = max(policy.approvals, 2) if policy.two_person else policy.approvals
    counted, faults = _counted(policy, evidence)
    rejected = [f"rejected by {a.by}: {a.reason}" for a in evidence.approvals if a.decision == "rejected"]
    if policy.two_person and evidence.requested_by is None:
        faults.append("nobody is recorded as having asked for the run, so two-person approval cannot be judged")
    enough = len(counted) >= needed and not (policy.two_person and evidence.requested_by is None)
    parts = [f"{len(counted)} of {needed} approvals" + (f" ({', '.join(counted)})" if counted else "")]
    return GateResult(
        name=APPROVALS,
        passed=enough and not rejected,
        reason="; ".join(parts + rejected + faults),
        evidence={"decisions": [approval.model_dump(mode="json") for approval in evidence.approvals]},
    )


def _asked(policy: Gates, evidence: Evidence) -> Iterator[GateResult]:
    yield _finding("signature", evidence.signature)
    yield _finding("lineage", evidence.lineage)
    if policy.beat_gzip:
        yield _below("beats_gzip", evidence, lambda score: score.gzip, "gzip -9")
    if policy.beat_trigram:
        yield _below("beats_trigram", evidence, lambda score: score.trigram, "the byte trigram")
    bound = policy.max_bits_per_byte
    if bound is not None:
        yield _below("max_bits_per_byte", evidence, lambda _: bound, f"the bound {bound}")
    yield _contamination(policy, evidence)
    yield _licence(evidence)
    if policy.require_resume_evidence:
        yield _finding("resume", evidence.resume)
    yield _stability(policy, evidence)
    yield _taint(evidence)
    for name, raw in policy.extensions.items():
        yield _installed(name, raw, evidence)
    yield approvals(policy, evidence)


def _installed(name: str, raw: Mapping[str, Any], evidence: Evidence) -> GateResult:
    """A gate of an installed package; one that cannot be loaded, lacks evidence or raises has not passed."""
    try:
        gate, origin = GATES.find(name), GATES.origin(name)
        params = GATES.parameters(name, raw, f"release.gates.extensions.{name}")
    except RecipeError as error:
        return GateResult(name=name, passed=False, reason=" ".join(str(error).split()))
    known = {"gate": origin.model_dump() if origin else {}, "parameters": params.model_dump(mode="json")}
    lacking = [field for field in gate.needs if getattr(evidence, field, None) in (None, {})]
    if lacking:
        return GateResult(name=name, passed=False, reason=f"no evidence: {', '.join(lacking)}", evidence=known)
    try:
        verdict = gate.judge(params, evidence)
        fingerprint.canonical(verdict.evidence)
        result = GateResult(
            name=name, passed=verdict.passed, reason=verdict.reason, evidence={**verdict.evidence, **known}
        )
    except Exception as error:
        reason = f"the gate broke: {type(error).__name__}: {error}"
        return GateResult(name=name, passed=False, reason=reason, evidence=known)
    return result


def _finding(name: str, found: CheckResult | None) -> GateResult:
    if found is None:
        return _missing(name)
    return GateResult(name=name, passed=found.holds, reason=found.detail)


def _below(name: str, evidence: Evidence, bound: Callable[[SliceScore], float], what: str) -> GateResult:
    """Whether the model is strictly below the bound on every expected slice; NaN is not below anything."""
    if not evidence.slices:
        return _missing(name)
    rows = {key: {"model": score.model, "bound": bound(score)} for key, score in sorted(evidence.slices.items())}
    empty = {key for key, score in evidence.slices.items() if score.bytes <= 0}
    unseen = sorted(empty.union(set(evidence.expected_slices) - set(rows)))
    above = [key for key, row in rows.items() if key not in empty and not row["model"] < row["bound"]]
    faults = [f"not below {what} on {', '.join(above)}"] * bool(above)
    faults += [f"nothing measured on {', '.join(unseen)}"] * bool(unseen)
    reason = "; ".join(faults) or f"below {what} on all {len(rows)} slices"
    shown = {key: {side: _json_number(value) for side, value in row.items()} for key, row in rows.items()}
    return GateResult(name=name, passed=not faults, reason=reason, evidence={"bits_per_byte": shown})


def _contamination(policy: Gates, evidence: Evidence) -> GateResult:
    count, bound = evidence.contaminated_documents, policy.max_contaminated_documents
    if count is None:
        return _missing("contamination")
    return GateResult(
        name="contamination",
        passed=0 <= count <= bound,
        reason=f"{count} contaminated training documents, at most {bound} allowed",
        evidence={"documents": count},
    )


def _licence(evidence: Evidence) -> GateResult:
    if not evidence.licences:
        return _missing("licence")
    from plinth.corpus.annotate.licence import judge  # the annotator's own reading of SPDX expressions

    permitted = tuple(sorted(evidence.permitted_licences))
    found = sorted(evidence.licences.items())
    foreign = {name: count for name, count in found if count and not judge(name, permitted)[1]}
    reason = (
        "not permitted: " + ", ".join(f"{name} ({count} documents)" for name, count in foreign.items())
        if foreign
        else f"{sum(evidence.licences.values())} documents, all under permitted licences"
    )
    return GateResult(
        name="licence", passed=not foreign, reason=reason, evidence={"documents": dict(evidence.licences)}
    )


def _stability(policy: Gates, evidence: Evidence) -> GateResult:
    if evidence.stability is None:
        return _missing("stability")
    count, bound = sum(evidence.stability.values()), policy.max_stability_events
    listed = ", ".join(f"{n} {kind}" for kind, n in sorted(evidence.stability.items()) if n) or "none"
    limit = "reported only" if bound is None else f"at most {bound} allowed"
    return GateResult(
        name="stability",
        passed=bound is None or count <= bound,
        reason=f"events of the run: {listed}; {limit}",
        evidence={"events": dict(evidence.stability)},
    )


def _taint(evidence: Evidence) -> GateResult:
    if evidence.taints is None:
        return _missing("taint")
    reason = "; ".join(evidence.taints) or "nothing in the ancestry is marked"
    return GateResult(name="taint", passed=not evidence.taints, reason=reason)


def _counted(policy: Gates, evidence: Evidence) -> tuple[list[str], list[str]]:
    """People whose approval counts, and why others' does not."""
    people: set[str] = set()
    faults = list(evidence.approval_faults)
    for approval in evidence.approvals or ():
        if approval.decision != "approved":
            continue
        if policy.approvers and approval.by not in policy.approvers:
            faults.append(f"{approval.by} may not approve")
        elif policy.two_person and approval.by == evidence.requested_by:
            faults.append(f"{approval.by} asked for the run and may not approve it")
        else:
            people.add(approval.by)
    return sorted(people), faults


def _missing(name: str) -> GateResult:
    return GateResult(name=name, passed=False, reason="no evidence")


def _json_number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)
