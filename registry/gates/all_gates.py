"""Every gate of a policy, asked of the evidence, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from plinth import fingerprint
from plinth.errors import RecipeError
from plinth.recipe.gate import GATES
from plinth.records import Frozen
from registry.gates import operation, origin, people, quality, risk
from registry.gates.facts import Evidence
from registry.gates.result import GateResult
from registry.gates.settings import ALWAYS, GatePolicy

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

#: Pieces of evidence that a gate rests on, of those that are counted again (`registry.recount`).
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
    """Every gate of the policy.

    Args:
        waived: by gate, the waiver in words (`registry.waivers`); of `ALWAYS` none counts.
    """
    return tuple(_with_waiver(result, waived) for result in _asked(policy, evidence))


def _asked(policy: GatePolicy, evidence: Evidence) -> Iterator[GateResult]:
    last = people.APPROVALS
    for name in policy.asked:
        if name != last:
            yield _counted(JUDGES[name](policy, evidence), evidence)
    for name, raw in sorted(policy.extensions.items()):
        if not _is_of_exports(name):
            yield _installed(name, raw, evidence)
    yield JUDGES[last](policy, evidence)


def of_exports(policy: GatePolicy | None, evidence: Evidence) -> tuple[GateResult, ...]:
    """Every gate of exports: the built-in ones, and those that the policy names.

    Args:
        policy: its `extensions` have the parameters; without one, or where it names none, the gate's own hold.
        evidence: with the form as the candidate of `comparison`, and the release as its champion.
    """
    given = policy.extensions if policy else {}
    asked = {name for name in (*GATES.built_in, *given) if _is_of_exports(name)}
    return tuple(_installed(name, given.get(name, {}), evidence) for name in sorted(asked))


def _is_of_exports(name: str) -> bool:
    """Whether a gate judges exports; one that cannot be loaded is asked of candidates, and fails there."""
    with suppress(RecipeError):
        return GATES.find(name).of_exports
    return False


def _counted(result: GateResult, evidence: Evidence) -> GateResult:
    """Figures that their own tables do not give pass nothing."""
    wrong = [said for kind in RESTS_ON.get(result.name, ()) for said in evidence.miscounted.get(kind, ())]
    if not wrong:
        return result
    own = () if result.passed else (result.reason,)
    reason = "; ".join((*own, f"not what its tables say: {'; '.join(wrong)}"))
    return GateResult(name=result.name, passed=False, reason=reason, evidence=result.evidence)


def _with_waiver(result: GateResult, waived: Mapping[str, str]) -> GateResult:
    said = "" if result.passed or result.name in ALWAYS else waived.get(result.name, "")
    return result.model_copy(update={"waived": said}) if said else result


def _installed(name: str, raw: Mapping[str, Any], evidence: Evidence) -> GateResult:
    """A gate of an installed package; one that cannot be loaded, lacks evidence or raises has not passed."""
    try:
        gate, origin_of = GATES.find(name), GATES.origin(name)
        params = GATES.parameters(name, raw, f"extensions.{name}")
    except RecipeError as error:
        return GateResult(name=name, passed=False, reason=" ".join(str(error).split()))
    known = {"gate": origin_of.model_dump() if origin_of else {}, "parameters": params.model_dump(mode="json")}
    lacking = [field for field in gate.needs if _is_absent(getattr(evidence, field, None))]
    if lacking:
        return GateResult(name=name, passed=False, reason=f"no evidence: {', '.join(lacking)}", evidence=known)
    try:
        verdict = gate.judge(params, evidence.model_copy(deep=True))  # or it could change what later gates read
        fingerprint.canonical(verdict.evidence)
        result = GateResult(
            name=name, passed=verdict.passed, reason=verdict.reason, evidence={**verdict.evidence, **known}
        )
    except Exception as error:
        reason = f"the gate broke: {type(error).__name__}: {error}"
        return GateResult(name=name, passed=False, reason=reason, evidence=known)
    return result


def _is_absent(value: Any) -> bool:
    """None, an empty table, or a record of nothing else."""
    if isinstance(value, Frozen):
        return all(_is_absent(getattr(value, name)) for name in type(value).model_fields)
    return value is None or (isinstance(value, Mapping | tuple) and not value)
