"""The gate `forecast`: a run kept its launch contract, in its final loss and in its cost.

The contract was signed by the run's owner before the start. The losses are in the run's manifest, which is in the
candidate's ancestry; the trainer attests the cost. A contract without a predicted curve promises no loss and cannot
pass. A loss below the interval fails too: look for training text in the held-out set, or for repeated text, before the
gate is waived.
"""

from __future__ import annotations

from plinth.evaluation.measurement import Gate
from plinth.extensions import NoParams
from plinth.text import counted
from plinth_registry.gates import GateResult, decided, missing, shown
from plinth_registry.gates.facts import ContractFacts, Evidence

FORECAST = "forecast"


def forecast(_: NoParams, evidence: Evidence) -> GateResult:
    """Require the final loss in the interval that the launch contract promises, and a cost within its budget."""
    known = evidence.contract
    if known is None:
        return missing(FORECAST, "a launch contract")
    loss, loss_said = _loss(known)
    cost, cost_said = _cost(known, evidence.cost.amounts.get("device_s") if evidence.cost else None)
    reason = f"{loss_said}; {cost_said}; contract {known.number} of {known.owner}"
    return decided(FORECAST, loss and cost, reason, **known.model_dump(mode="json"))


def _loss(known: ContractFacts) -> tuple[bool, str]:
    if known.level is None:
        return False, "the contract has no predicted curve"
    if known.final is None:
        return False, f"the run has no finite loss in the last of {counted(known.segments, 'promised segment')}"
    one, missed = known.final, f"; {len(known.missed)} of {known.segments} segments outside" if known.missed else ""
    side = "in" if one.low <= one.loss <= one.high else "above" if one.loss > one.high else "below"
    interval = f"{shown(one.low)} to {shown(one.high)} ({known.level:.0%} for all segments)"
    return side == "in", f"final loss {shown(one.loss)}, {side} {interval}{missed}"


def _cost(known: ContractFacts, device_s: float | None) -> tuple[bool, str]:
    if not device_s or not device_s > 0:
        return False, "no evidence: the rank-hours of the run"
    hours, limit = device_s / 3600, known.rank_hours
    return hours <= limit, f"{shown(hours, limit)} rank-hours (limit {shown(limit, hours)})"


FORECAST_GATE = Gate(
    name=FORECAST,
    description="The final loss is in the interval of the launch contract, and the cost within its budget.",
    needs=("contract", "cost"),
    judge=forecast,
)
