"""Evaluate every gate of a policy on the evidence, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from plinth import fingerprint
from plinth.entry_points import not_here
from plinth.errors import RecipeError
from plinth.evaluation.gate import GATES, Gate, GateVerdict
from plinth.records import Frozen
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.result import MISCOUNTED, GateResult, missing
from plinth_registry.gates.settings import APPROVALS, GatePolicy, absent_gates, always, release_gates


def evaluate(
    policy: GatePolicy, evidence: Evidence, waived: Mapping[str, str] = MappingProxyType({})
) -> tuple[GateResult, ...]:
    """Evaluate every gate that the policy requires.

    Args:
        waived: waivers in words by gate (`plinth_registry.waivers`); those of gates that are always asked are ignored.
    """
    return tuple(_with_waiver(result, waived) for result in _required(policy, evidence))


def _required(policy: GatePolicy, evidence: Evidence) -> Iterator[GateResult]:
    given = evidence.model_copy(update={"first_release": policy.first_release})
    for name in policy.asked:
        if name != APPROVALS:
            yield _of_candidates(policy, name, given)
    for name, raw in sorted(policy.extensions.items()):
        if not _is_of_exports(name):
            yield _by_name(name, raw, given)
    yield _of_candidates(policy, APPROVALS, given)


def _of_candidates(policy: GatePolicy, name: str, evidence: Evidence) -> GateResult:
    if name in absent_gates():
        return GateResult(name=name, state="failed", reason=not_here("the gate", absent_gates()[name]).brief)
    gate = release_gates()[name]
    return _recomputed(gate, _named(name, gate.judge(policy.parameters(gate), evidence)), evidence)


def of_exports(policy: GatePolicy | None, evidence: Evidence) -> tuple[GateResult, ...]:
    """Evaluate every gate of exports: the built-in ones, and those that the policy names.

    Args:
        policy: has the parameters in its `extensions`; a gate that it does not name uses its defaults.
        evidence: has the form as the candidate of `comparison`, and the release as its champion.
    """
    given = policy.extensions if policy else {}
    required = {name for name in (*GATES.built_in, *given) if _is_of_exports(name)}
    return tuple(_by_name(name, given.get(name, {}), evidence) for name in sorted(required))


def _is_of_exports(name: str) -> bool:
    """True if a gate judges exports; one that cannot be loaded is evaluated for candidates, and fails there."""
    with suppress(RecipeError):
        return GATES.find(name).of_exports
    return False


def _recomputed(gate: Gate, result: GateResult, evidence: Evidence) -> GateResult:
    """Fail a gate whose evidence does not match its own tables."""
    wrong = [said for kind in gate.counted for said in evidence.miscounted.get(kind, ())]
    if not wrong:
        return result
    own = () if result.passed else (result.reason,)
    reason = "; ".join((*own, f"{MISCOUNTED}: {'; '.join(wrong)}"))
    return GateResult(name=result.name, state="failed", reason=reason, evidence=result.evidence)


def _with_waiver(result: GateResult, waived: Mapping[str, str]) -> GateResult:
    text = waived.get(result.name, "") if result.state == "failed" and result.name not in always() else ""
    return result.model_copy(update={"state": "waived", "waived": text}) if text else result


def by_name(name: str) -> Gate:
    """A gate that a policy asks under `extensions`.

    Raises:
        RecipeError: there is none, or it is asked of every candidate anyway.
    """
    found = GATES.find(name)
    if name in release_gates():
        raise RecipeError(
            f"the gate {name} is asked of every candidate",
            found=f"extensions.{name}",
            expected=f"its parameters under {found.section}" if found.section else "no parameters",
        )
    return found


def _by_name(name: str, raw: Mapping[str, Any], evidence: Evidence) -> GateResult:
    """Evaluate a gate that the policy names; one that cannot be loaded, lacks evidence or raises fails."""
    try:
        gate, origin_of = by_name(name), GATES.origin(name)
        params = GATES.parameters(name, raw, f"extensions.{name}")
    except RecipeError as error:
        return GateResult(name=name, state="failed", reason=" ".join(str(error).split()))
    known = {"gate": origin_of.model_dump() if origin_of else {}, "parameters": params.model_dump(mode="json")}
    lacking = [one for one in gate.needs if _is_absent(evidence.measured.get(one, getattr(evidence, one, None)))]
    if lacking:
        return missing(name, ", ".join(lacking)).model_copy(update={"evidence": known})
    try:
        verdict = gate.judge(params, evidence.model_copy(deep=True))  # or it could change what later gates read
        fingerprint.canonical(verdict.evidence)
        if verdict.state == "waived":
            raise ValueError("a gate cannot waive itself")
        shown = {**verdict.evidence, **known}
        result = GateResult(name=name, state=verdict.state, reason=verdict.reason, evidence=shown)
    except Exception as error:
        reason = f"the gate raised {type(error).__name__}: {error}"
        return GateResult(name=name, state="failed", reason=reason, evidence=known)
    return _recomputed(gate, result, evidence)


def _named(name: str, verdict: GateVerdict) -> GateResult:
    return verdict if isinstance(verdict, GateResult) else GateResult(name=name, **verdict.model_dump())


def _is_absent(value: Any) -> bool:
    """True for None, an empty table, or a record of nothing else."""
    if isinstance(value, Frozen):
        return all(_is_absent(getattr(value, name)) for name in type(value).model_fields)
    return value is None or (isinstance(value, Mapping | tuple) and not value)
