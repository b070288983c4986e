"""The gate `compressed`: a quantised or pruned form of a release loses few bits per byte of held-out text.

A gate of exports: it is asked of a form when it is about to leave, not of candidates. The upper end of the interval of
form minus release, document by document, lies below the margin: as a whole, and on every slice with enough documents.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.recipe.gate import Gate, GateVerdict
from plinth.records import Frozen
from registry.gates.facts import Evidence, PairedLine
from registry.gates.quality import WHOLE, is_known
from registry.gates.result import number, shown

NAME = "compressed"


class CompressedPolicy(Frozen):
    """Loss of a form against the release that it was made of, in bits per byte."""

    margin: float = Field(0.02, ge=0, description="By how much a slice may be worse than the release's.")
    margins: Mapping[str, float] = Field(
        default_factory=dict, description="Other margins, by label, such as `bucket web`; `all` is the whole."
    )
    min_documents: int = Field(10, ge=2, description="A slice of fewer is shown and not judged; the whole always is.")


def judge(asked: CompressedPolicy, evidence: Evidence) -> GateVerdict:
    """Whether every slice lies below its margin; a form that was not measured has not passed."""
    known = evidence.comparison
    lines = [one for one in known.lines if one.kind == "slices"] if known else []
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= asked.min_documents]
    if not any(one.slice == WHOLE for one in judged):
        return GateVerdict(passed=False, reason="no evidence: held-out text as a whole was not compared")
    worse = [
        f"{one.slice} may lose {shown(one.worse_at_most)} bits per byte, below {shown(_margin(asked, one))} is allowed"
        for one in judged
        if not (one.worse_at_most < _margin(asked, one) and is_known(one))
    ]
    whole = next(one for one in judged if one.slice == WHOLE)
    said = f"loses {shown(whole.value)} bits per byte ({shown(whole.low)} to {shown(whole.high)})"
    found = {
        one.slice: {
            **{name: number(getattr(one, name)) for name in ("value", "low", "high")},
            "margin": _margin(asked, one),
            "documents": one.clusters,
        }
        for one in judged
    }
    reason = "; ".join(worse) or f"{said}; within the margin on all {len(judged)} slices"
    return GateVerdict(passed=not worse, reason=reason, evidence={"bits_per_byte": found})


def _margin(asked: CompressedPolicy, line: PairedLine) -> float:
    return asked.margins.get(line.slice, asked.margin)


GATE = Gate(
    name=NAME,
    description="A quantised or pruned form loses few bits per byte of held-out text.",
    needs=("comparison",),
    judge=judge,
    params=CompressedPolicy,
    of_exports=True,
)
