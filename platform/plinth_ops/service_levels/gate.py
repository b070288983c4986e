"""The gate on the error budgets of the pipeline: one that is exhausted blocks promotion until a waiver is signed.

Budgets are recomputed each time from timelines, ledgers and the log of assets, against the objectives of the signed
policy; a workspace's own `objectives.yaml` is for display only.
"""

from __future__ import annotations

import time

from pydantic import Field, model_validator

from plinth.compute.context import Context
from plinth.evaluation.gate import release_gate
from plinth.records import Frozen
from plinth_ops.service_levels.indicators import INDICATORS
from plinth_ops.service_levels.tallies import ErrorBudget, Objectives
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.result import GateResult, decided, missing

ERROR_BUDGET = "error_budget"


class ErrorBudgetPolicy(Frozen):
    """Seconds of the pipeline that may be bad. The objectives are the policy's: nothing in a workspace changes them."""

    indicators: tuple[str, ...] = Field(
        ("job success", "checkpoint age", "restore time"),
        min_length=1,
        description="Error budgets of which some must be left, by the names of `plinth ops sli`.",
    )
    required: tuple[str, ...] = Field(
        ("job success",), description="Those that must have been measured; others may have had no occasion."
    )
    objectives: Objectives = Field(Objectives(), description="Window, shares and bounds, as in `objectives.yaml`.")

    @model_validator(mode="after")
    def _known(self) -> ErrorBudgetPolicy:
        if unknown := sorted({*self.indicators, *self.required} - set(INDICATORS)):
            raise ValueError(f"there is no indicator {unknown[0]!r}; there are {', '.join(INDICATORS)}")
        if lacking := sorted(set(self.required) - set(self.indicators)):
            raise ValueError(f"{lacking[0]} is required and not among the indicators")
        return self


def find(ctx: Context, asked: ErrorBudgetPolicy) -> tuple[ErrorBudget, ...]:
    """Error budgets of the whole pipeline until now, by the objectives of the policy."""
    from plinth_ops.service_levels import objectives

    return tuple(objectives.measure(ctx, asked.objectives, time.time(), objectives.completeness(ctx)))


def error_budget(asked: ErrorBudgetPolicy, evidence: Evidence) -> GateResult:
    """Some error budget is left for every indicator that the policy names; the required ones were measured."""
    budgets = [ErrorBudget.model_validate(one) for one in evidence.own.get(ERROR_BUDGET) or ()]
    found = {one.indicator: one for one in budgets if one.indicator in asked.indicators}
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
    if others := [one.words for one in budgets if one.indicator not in found and one.is_spent]:
        parts.append(f"spent, not required by the policy: {'; '.join(others)}")
    head = "error budget spent" if spent else "some left of each required error budget"
    known = {one.indicator: one.model_dump(include={"good_s", "total_s", "target"}) for one in measured}
    return decided(ERROR_BUDGET, not spent, f"{head}: {'; '.join(parts)}", **known)


GATE = release_gate(error_budget, ErrorBudgetPolicy, "error_budget", find=find, shown=False)
