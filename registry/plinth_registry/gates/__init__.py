"""Gates: conditions on a candidate. Pure functions from policy and evidence to (state, reason, evidence). This module
has the state of one gate, the summary of all gates, and the evaluation of a policy's gates in a fixed order.

    settings    the gate policy: limits of each gate, approvers, omitted gates with reasons
    facts       the evidence, one record per kind of attestation
    margins     paired differences and upper bounds of shares, for gates that compare two models; the gates
                `forgetting` (models that started from another) and `compressed` (exported forms)
    forecast    the launch contract of the run: its final loss and its cost
    origin      signature, lineage, taint, contamination, license, terms, resume, stability, cost; approvals

A gate fails with a reason if its evidence is missing. A gate that decided nothing is skipped, not applicable or
pending, and never passed. Three things are in other modules: gathering evidence (`plinth_registry.evidence`), signing
the policy (`plinth_registry.policy`), and the consequences of a verdict (`plinth_registry.promotion`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, get_args

from plinth import fingerprint
from plinth.entry_points import not_here
from plinth.errors import RecipeError
from plinth.evaluation.measurement import GATES, Gate, GateState, GateVerdict
from plinth.records import Frozen
from plinth.text import counted
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.settings import APPROVALS, GatePolicy, absent_gates, always, release_gates

STATES: Final[tuple[GateState, ...]] = get_args(GateState)
#: Maximum number of names listed in a reason; `evidence` has all.
NAMES_SHOWN: Final = 5
#: Prefix of the reason if recomputed evidence differs.
MISCOUNTED: Final = "does not match its tables"


class GateResult(GateVerdict):
    """State of one gate, with its reason and its evidence.

    A waived gate keeps its reason. `waived` has the person who signed the waiver, its expiry date and its reason.
    """

    name: str
    waived: str = ""

    @property
    def detail(self) -> str:
        """Reason for the gate's state, with the waiver if there is one."""
        return f"{self.reason} ({self.waived})" if self.waived else self.reason

    @property
    def text(self) -> str:
        """State and detail of the gate as text."""
        return f"{self.state}: {self.detail}"


def missing(name: str, what: str = "") -> GateResult:
    """Return the failed result of a gate without evidence."""
    return GateResult(name=name, state="failed", reason=f"no evidence{': ' if what else ''}{what}")


def decided(name: str, passed: bool, reason: str, **evidence: Any) -> GateResult:
    """Return the result of a gate that was evaluated."""
    return GateResult(name=name, state="passed" if passed else "failed", reason=reason, evidence=evidence)


def blocking(results: Iterable[GateResult]) -> tuple[GateResult, ...]:
    """Return the gates that block promotion, which are failed or pending."""
    return tuple(result for result in results if result.blocks)


def is_open(results: Sequence[GateResult]) -> bool:
    """Return True if there are gates and no gate blocks promotion."""
    return bool(results) and not blocking(results)


def outcome(results: Sequence[GateResult]) -> str:
    """Summarize the state of a candidate: `passed`, `passed with 2 waivers (…)`, `pending (…)`, `failed (…)`."""
    if not results:
        return "failed (no gates)"
    for state in ("failed", "pending"):
        if own := [one.name for one in results if one.state == state]:
            return f"{state} ({', '.join(own)})"
    waived = [f"{one.name} {_who(one)}" for one in results if one.state == "waived"]
    return f"passed with {counted(len(waived), 'waiver')} ({'; '.join(waived)})" if waived else "passed"


def account(results: Sequence[GateResult]) -> str:
    """Count gates by state: `23 gates: 19 passed, 1 waived, 3 not applicable`."""
    found = Counter(result.state for result in results)
    parts = [f"{found[state]} {state}" for state in STATES if found[state]]
    return f"{counted(len(results), 'gate')}: {', '.join(parts) or 'none evaluated'}"


def summary(results: Sequence[GateResult]) -> str:
    """Return a candidate's outcome and the number of its gates by state, on one line."""
    return f"{outcome(results)}; {account(results)}"


def skipped(what: str, least: int, small: Sequence[tuple[str, int]]) -> str:
    """Return the part of a gate's reason that lists the samples below the minimum size. Return an empty string if there
    are none.

    Args:
        what: noun of one sample, such as `slice`.
        small: names of the samples with their size.
    """
    if not small:
        return ""
    return f"; {counted(len(small), what)} not judged (n below {least:,}): {named(small)}"


def named(small: Sequence[tuple[str, int]]) -> str:
    """Return the first few sample names with their sizes, as text."""
    shown_ones = ", ".join(f"{name} (n {n:,})" for name, n in small[:NAMES_SHOWN])
    more = len(small) - NAMES_SHOWN
    return f"{shown_ones} and {more} more" if more > 0 else shown_ones


def shown(value: float, apart_from: float | None = None, signed: bool = False) -> str:
    """Format a number with two decimals or three digits. More digits are used if they are needed to distinguish it from
    `apart_from`."""
    if value != value:
        return "unknown"
    value, plus = value + 0.0, "+" if signed else ""  # -0.0 is 0.0
    for digits in range(3, 17):
        text = _digits(value, digits, plus)
        if apart_from is None or value == apart_from or text.lstrip("+") != _digits(apart_from, digits, ""):
            return text
    return f"{value:{plus}}"


def percent(share: float, apart_from: float | None = None) -> str:
    """Format a fraction in percent. More digits are used if they are needed to distinguish it from `apart_from`."""
    if share != share:
        return "unknown"
    return f"{shown(share * 100, None if apart_from is None else apart_from * 100)}%"


def number(value: float) -> float | str:
    """Return a number for JSON. NaN and infinity are returned as text."""
    return value if value == value and abs(value) != float("inf") else str(value)


def _digits(value: float, digits: int, plus: str) -> str:
    if 1_000 <= abs(value) < 1e15:
        return f"{value:{plus},.{max(digits - len(str(int(abs(value)))), 0)}f}"
    text = f"{value:{plus}.{digits}g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _who(one: GateResult) -> str:
    """Return the person who signed a gate's waiver and its date, without the reason."""
    return one.waived.partition(": ")[0].removeprefix("waived ")


def evaluate(
    policy: GatePolicy, evidence: Evidence, waived: Mapping[str, str] = MappingProxyType({})
) -> tuple[GateResult, ...]:
    """Evaluate every gate that the policy requires.

    Args:
        waived: text of each waiver, by gate (`plinth_registry.judgement`); waivers of mandatory gates are ignored.
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
    """Evaluate every export gate: the built-in gates, and the gates that the policy names.

    Args:
        policy: policy with the parameters in its `extensions`. A gate that is not named there uses its defaults.
        evidence: evidence with a `comparison` in which the form is the candidate and the release is the champion.
    """
    given = policy.extensions if policy else {}
    required = {name for name in (*GATES.built_in, *given) if _is_of_exports(name)}
    return tuple(_by_name(name, given.get(name, {}), evidence) for name in sorted(required))


def _is_of_exports(name: str) -> bool:
    """Return True if a gate applies to exports. A gate that cannot be loaded counts as a gate of candidates, and it
    fails."""
    with suppress(RecipeError):
        return GATES.find(name).of_exports
    return False


def _recomputed(gate: Gate, result: GateResult, evidence: Evidence) -> GateResult:
    """Return the gate's result, changed to failed if the gate's evidence does not match its own tables."""
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
    """Return a gate that a policy requires under `extensions`.

    Raises:
        RecipeError: the gate does not exist, or is evaluated for every candidate anyway.
    """
    found = GATES.find(name)
    if name in release_gates():
        raise RecipeError(
            f"the gate {name} is evaluated for every candidate",
            found=f"extensions.{name}",
            expected=f"its parameters under {found.section}" if found.section else "no parameters",
        )
    return found


def _by_name(name: str, raw: Mapping[str, Any], evidence: Evidence) -> GateResult:
    """Evaluate a gate that the policy names. A gate that cannot be loaded, lacks evidence or raises an error fails."""
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
        verdict = gate.judge(params, evidence.model_copy(deep=True))  # protects later gates
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
    """Return True if a value is None, an empty table, or a record that has only absent values."""
    if isinstance(value, Frozen):
        return all(_is_absent(getattr(value, name)) for name in type(value).model_fields)
    return value is None or (isinstance(value, Mapping | tuple) and not value)
