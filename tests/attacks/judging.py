"""Gate results of a candidate that is not registered in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.measurement import Gate, GateVerdict
from plinth.recipe.recipe import Recipe
from plinth_registry import approval, evidence, policy
from plinth_registry.candidate import Candidate
from plinth_registry.gates import blocking, evaluate
from plinth_registry.gates.facts import Approval


def _forging(params: Any, seen: Any) -> GateVerdict:
    approved = Approval(by=BEN, decision="approved", reason="good", how="statement")
    object.__setattr__(seen, "approvals", (approved,))
    return GateVerdict(passed=True, reason="fine")


#: A plug-in that writes an approval into the evidence.
FORGING = Gate(name="forging", description="A gate.", judge=_forging)
ANNA, BEN = "anna@example.org", "ben@example.org"


def closed(ctx: Context, recipe: Recipe, found: Candidate, tags: Mapping[str, str] | None = None) -> dict[str, str]:
    """Reason by gate that does not pass under the policy that governs."""
    governing = policy.current(ctx, recipe.required_release().name).policy
    results = evaluate(governing, evidence.gather(ctx, recipe, found, tags or {}))
    return {one.name: one.reason for one in blocking(results)}


def decide(ctx: Context, found: Candidate, by: str, reason: str, decision: approval.Decision = "approved") -> Path:
    """Sign a person's decision under the policy that governs."""
    governing = policy.governing(ctx, found.model.removesuffix("-candidate"))
    return approval.sign(ctx, found, by, reason, decision, governing)
