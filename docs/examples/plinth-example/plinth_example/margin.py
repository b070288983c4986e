"""A gate: bits per byte below a baseline by a margin on every slice, not by a hair."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.evaluation.measurement import Gate, GateVerdict
from plinth.records import Frozen
from plinth_registry.gates.facts import EvaluationFacts, Evidence


class Params(Frozen):
    """By how much the model must be better."""

    than: Literal["trigram", "gzip"] = Field("trigram", description="Baseline.")
    bits_per_byte: float = Field(gt=0, description="The model's bits per byte are at most the baseline's minus this.")


def judge(params: Params, evidence: Evidence) -> GateVerdict:
    """Return True if every expected slice was measured and is below the margin; NaN is not below anything."""
    known = evidence.of("evaluation", EvaluationFacts)
    slices = known.slices if known else {}
    margins = {name: getattr(score, params.than) - score.model for name, score in sorted(slices.items())}
    unseen = sorted(set(evidence.expected_slices) - {name for name, score in slices.items() if score.bytes > 0})
    near = [name for name, margin in margins.items() if name not in unseen and not margin >= params.bits_per_byte]
    faults = [f"less than {params.bits_per_byte:g} below {params.than} on {', '.join(near)}"] * bool(near)
    faults += [f"nothing measured on {', '.join(unseen)}"] * bool(unseen)
    reason = "; ".join(faults) or f"at least {params.bits_per_byte:g} below {params.than} on all {len(margins)} slices"
    shown = {name: f"{margin:.4f}" for name, margin in margins.items()}
    return GateVerdict(passed=not faults, reason=reason, evidence={"margins": shown})


GATE = Gate(
    name="margin",
    description="Bits per byte below a baseline by a margin on every slice.",
    needs=("evaluation",),
    judge=judge,
    params=Params,
)
