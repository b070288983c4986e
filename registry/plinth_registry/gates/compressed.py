"""The gate `compressed`: a quantised or pruned form of a release loses few bits per byte of held-out text.

A gate of exports: evaluated when a form is about to be exported, not for candidates. The upper end of the interval of
form minus release, paired by document, is below the margin: as a whole, and on every slice with enough documents.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.evaluation.gate import Gate, GateVerdict
from plinth.records import Frozen
from plinth_registry.gates.facts import ComparisonFacts, Evidence, PairedLine
from plinth_registry.gates.margins import WHOLE, Bounded, label, within_margins
from plinth_registry.gates.result import number, skipped

NAME = "compressed"


class CompressedPolicy(Frozen):
    """Loss of a form against the release that it is derived from, in bits per byte."""

    margin: float = Field(0.02, ge=0, description="By how much a slice may be worse than the release's.")
    margins: Mapping[str, float] = Field(
        default_factory=dict, description="Other margins, by label, such as `bucket web`; `all` is the whole."
    )
    min_documents: int = Field(10, ge=2, description="A slice of fewer is shown and not judged; the whole always is.")


def judge(asked: CompressedPolicy, evidence: Evidence) -> GateVerdict:
    """Require every slice below its margin; a form that was not measured fails."""
    known = evidence.of("comparison", ComparisonFacts)
    lines = [one for one in known.lines if one.kind == "slices"] if known else []
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= asked.min_documents]
    if not any(one.slice == WHOLE for one in judged):
        return GateVerdict(state="failed", reason="no evidence: held-out text as a whole was not compared")
    small = [one for one in lines if one not in judged]
    left = skipped("slice", asked.min_documents, [(label(one), one.clusters) for one in small])
    result = within_margins(NAME, [Bounded.of(one, _margin(asked, one)) for one in judged], left, small, "release")
    found = {
        one.slice: {
            **{name: number(getattr(one, name)) for name in ("value", "low", "high")},
            "margin": _margin(asked, one),
            "documents": one.clusters,
        }
        for one in judged
    }
    return GateVerdict(state=result.state, reason=result.reason, evidence={"bits_per_byte": found})


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
