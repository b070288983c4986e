"""The gate on the error budgets of the pipeline: one that is exhausted blocks promotion until a waiver is signed.

Budgets are recomputed each time from timelines, ledgers and the log of assets, against the objectives of the signed
policy; a workspace's own `objectives.yaml` is for display only.
"""

from __future__ import annotations

from plinth.evaluation.gate import release_gate
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.result import GateResult, decided, missing
from plinth_registry.gates.settings import ErrorBudgetPolicy

ERROR_BUDGET = "error_budget"


def error_budget(asked: ErrorBudgetPolicy, evidence: Evidence) -> GateResult:
    """Some error budget is left for every indicator that the policy names; the required ones were measured."""
    found = {one.indicator: one for one in evidence.error_budgets or () if one.indicator in asked.indicators}
    unknown = [name for name in asked.required if name not in found or not found[name].is_judged]
    days = asked.objectives.window_days
    if unknown:
        return missing(ERROR_BUDGET, f"{', '.join(unknown)} was not measured in the last {days:g} days")
    measured = [one for one in found.values() if one.is_judged]
    spent = [one for one in measured if one.is_spent]
    idle = [name for name in asked.indicators if name not in {one.indicator for one in measured}]
    if not measured:
        reason = f"not measured in the last {days:g} days: {', '.join(idle)}"
        return GateResult(name=ERROR_BUDGET, state="skipped", reason=reason)
    parts = ["; ".join(one.words for one in spent or measured), f"in {days:g} days, objectives of the policy"]
    if idle:
        parts.append(f"not measured: {', '.join(idle)}")
    if others := [one.words for one in evidence.error_budgets or () if one.indicator not in found and one.is_spent]:
        parts.append(f"spent, not required by the policy: {'; '.join(others)}")
    head = "error budget spent" if spent else "some left of each required error budget"
    known = {one.indicator: one.model_dump(include={"good_s", "total_s", "target"}) for one in measured}
    return decided(ERROR_BUDGET, not spent, f"{head}: {'; '.join(parts)}", **known)


GATE = release_gate(error_budget, ErrorBudgetPolicy, "error_budget")
