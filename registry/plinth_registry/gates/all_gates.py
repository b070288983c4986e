"""Evaluate every gate of a policy on the evidence, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from plinth import fingerprint
from plinth.errors import RecipeError
from plinth.recipe.gate import GATES
from plinth.records import Frozen
from plinth_registry.gates import operation, origin, people, quality, risk
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.result import MISCOUNTED, GateResult, missing
from plinth_registry.gates.settings import ALWAYS, GatePolicy

#: A gate: a pure function from policy and evidence to its result.
Judge = Callable[[GatePolicy, Evidence], GateResult]

#: Built-in gates in their order; `plinth.recipe.gate.BUILT_IN` has their names.
JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "signature": origin.signature,
        "lineage": origin.lineage,
        "beats_gzip": quality.beats_gzip,
        "beats_trigram": quality.beats_trigram,
        "max_bits_per_byte": quality.max_bits_per_byte,
        "slices": quality.slices,
        "probes": quality.probes,
        "tasks": quality.tasks,
        "contamination": risk.contamination,
        "extraction": risk.extraction,
        "canaries": risk.canaries,
        "pii_data": risk.pii_data,
        "pii_outputs": risk.pii_outputs,
        "licence": origin.licence,
        "terms": origin.terms,
        "resume": origin.resume,
        "stability": origin.stability,
        "bias": risk.bias,
        "toxicity": risk.toxicity,
        "cost": origin.cost,
        operation.ERROR_BUDGET: operation.error_budget,
        "taint": origin.taint,
        "approvals": people.approvals,
    }
)

#: Recomputed pieces of evidence that a gate rests on (`plinth_registry.recount`).
RESTS_ON: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "beats_gzip": ("evaluation",),
        "beats_trigram": ("evaluation",),
        "max_bits_per_byte": ("evaluation",),
        "slices": ("comparison",),
        "probes": ("probes", "comparison"),
        "tasks": ("tasks", "comparison"),
        "contamination": ("contamination",),
        "extraction": ("extraction",),
        "canaries": ("canaries",),
        "pii_data": ("pii_data",),
        "pii_outputs": ("pii_outputs",),
        "licence": ("licences",),
        "terms": ("licences",),
        "resume": ("resume",),
        "bias": ("bias", "comparison"),
        "toxicity": ("bias",),
    }
)


def evaluate(
    policy: GatePolicy, evidence: Evidence, waived: Mapping[str, str] = MappingProxyType({})
) -> tuple[GateResult, ...]:
    """Evaluate every gate that the policy requires.

    Args:
        waived: waivers in words by gate (`plinth_registry.waivers`); those of `ALWAYS` are ignored.
    """
    return tuple(_with_waiver(result, waived) for result in _required(policy, evidence))


def _required(policy: GatePolicy, evidence: Evidence) -> Iterator[GateResult]:
    last = people.APPROVALS
    for name in policy.asked:
        if name != last:
            yield _recomputed(JUDGES[name](policy, evidence), evidence)
    for name, raw in sorted(policy.extensions.items()):
        if not _is_of_exports(name):
            yield _installed(name, raw, evidence)
    yield JUDGES[last](policy, evidence)


def of_exports(policy: GatePolicy | None, evidence: Evidence) -> tuple[GateResult, ...]:
    """Evaluate every gate of exports: the built-in ones, and those that the policy names.

    Args:
        policy: has the parameters in its `extensions`; a gate that it does not name uses its defaults.
        evidence: has the form as the candidate of `comparison`, and the release as its champion.
    """
    given = policy.extensions if policy else {}
    required = {name for name in (*GATES.built_in, *given) if _is_of_exports(name)}
    return tuple(_installed(name, given.get(name, {}), evidence) for name in sorted(required))


def _is_of_exports(name: str) -> bool:
    """True if a gate judges exports; one that cannot be loaded is evaluated for candidates, and fails there."""
    with suppress(RecipeError):
        return GATES.find(name).of_exports
    return False


def _recomputed(result: GateResult, evidence: Evidence) -> GateResult:
    """Fail a gate whose evidence does not match its own tables."""
    wrong = [said for kind in RESTS_ON.get(result.name, ()) for said in evidence.miscounted.get(kind, ())]
    if not wrong:
        return result
    own = () if result.passed else (result.reason,)
    reason = "; ".join((*own, f"{MISCOUNTED}: {'; '.join(wrong)}"))
    return GateResult(name=result.name, state="failed", reason=reason, evidence=result.evidence)


def _with_waiver(result: GateResult, waived: Mapping[str, str]) -> GateResult:
    text = waived.get(result.name, "") if result.state == "failed" and result.name not in ALWAYS else ""
    return result.model_copy(update={"state": "waived", "waived": text}) if text else result


def _installed(name: str, raw: Mapping[str, Any], evidence: Evidence) -> GateResult:
    """Evaluate a gate of an installed package; one that cannot be loaded, lacks evidence or raises fails."""
    try:
        gate, origin_of = GATES.find(name), GATES.origin(name)
        params = GATES.parameters(name, raw, f"extensions.{name}")
    except RecipeError as error:
        return GateResult(name=name, state="failed", reason=" ".join(str(error).split()))
    known = {"gate": origin_of.model_dump() if origin_of else {}, "parameters": params.model_dump(mode="json")}
    lacking = [field for field in gate.needs if _is_absent(getattr(evidence, field, None))]
    if lacking:
        return missing(name, ", ".join(lacking)).model_copy(update={"evidence": known})
    try:
        verdict = gate.judge(params, evidence.model_copy(deep=True))  # or it could change what later gates read
        fingerprint.canonical(verdict.evidence)
        if verdict.state == "waived":
            raise ValueError("a gate cannot waive itself")
        return GateResult(name=name, state=verdict.state, reason=verdict.reason, evidence={**verdict.evidence, **known})
    except Exception as error:
        reason = f"the gate raised {type(error).__name__}: {error}"
        return GateResult(name=name, state="failed", reason=reason, evidence=known)


def _is_absent(value: Any) -> bool:
    """True for None, an empty table, or a record of nothing else."""
    if isinstance(value, Frozen):
        return all(_is_absent(getattr(value, name)) for name in type(value).model_fields)
    return value is None or (isinstance(value, Mapping | tuple) and not value)
