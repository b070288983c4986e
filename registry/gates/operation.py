"""The gate on the error budgets of the pipeline: where one is spent, nothing is promoted until somebody signs a waiver.

The budgets are counted again each time from timelines, ledgers and the log of assets, against the objectives of the
signed policy; a workspace's own `objectives.yaml` is for showing, and changes nothing here.
"""

from __future__ import annotations

from collections.abc import Collection

from registry.gates.facts import Evidence
from registry.gates.result import GateResult, missing
from registry.gates.settings import GatePolicy

ERROR_BUDGET = "error_budget"


def error_budget(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Every asked indicator has some of its error budget left; the required ones were measured."""
    asked = policy.error_budget
    found = {one.indicator: one for one in evidence.error_budgets or () if one.indicator in asked.indicators}
    unknown = [name for name in asked.required if name not in found or not found[name].total_s]
    if unknown:
        days = asked.objectives.window_days
        return missing(ERROR_BUDGET, f"{', '.join(unknown)} was not measured in the last {days:g} days")
    measured = [one for one in found.values() if one.total_s]
    spent = [one for one in measured if one.is_spent]
    shown = "; ".join(one.words for one in spent or measured)
    window = f"in {asked.objectives.window_days:g} days, objectives of the policy"
    return GateResult(
        name=ERROR_BUDGET,
        passed=not spent,
        reason=(f"error budget spent: {shown}" if spent else f"some left of each required error budget: {shown}")
        + f"; {window}{_not_required(evidence, found)}",
        evidence={one.indicator: one.model_dump(include={"good_s", "total_s", "target"}) for one in measured},
    )


def _not_required(evidence: Evidence, required: Collection[str]) -> str:
    """Spent budgets that the policy does not require: a checklist that measures them all calls them spent."""
    others = [one.words for one in evidence.error_budgets or () if one.indicator not in required and one.is_spent]
    return f"; spent, not required by the policy: {'; '.join(others)}" if others else ""
