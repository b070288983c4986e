"""The gate `forgetting`: a model that started from another is within a margin of it, on text that either held out.

A gate policy requires it under `extensions`; if the parent is the champion, `quality.slices` checks the same. Uses the
comparison that `evaluation.against: initial` makes: paired by document, the upper end of the interval decides. The
parent's held-out text is known only if its run is in this workspace.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.evaluation.gate import Gate, GateVerdict
from plinth.evaluation.parameters import PARENT_SLICES
from plinth.records import Frozen
from plinth_registry.gates.facts import ComparisonFacts, Evidence, PairedLine
from plinth_registry.gates.margins import WHOLE, Bounded, label, within_margins
from plinth_registry.gates.result import number, skipped

NAME = "forgetting"
#: The kind of lines on held-out text of the recipe.
OWN = "slices"


class ForgettingBound(Frozen):
    """How much worse than its parent a model may be, in bits per byte."""

    margin: float = Field(0.02, gt=0, description="Margin of the whole and of each slice.")
    margins: Mapping[str, float] = Field(default_factory=dict, description="Margins of single slices, by label.")
    parents_text: bool = Field(
        True, description="Require a comparison on the parent's held-out text; imported weights have none."
    )
    min_documents: int = Field(30, ge=2, description="Slices with fewer documents are skipped.")

    def of(self, slice_label: str) -> float:
        """Margin of a slice."""
        return self.margins.get(slice_label, self.margin)


def judge(params: ForgettingBound, evidence: Evidence) -> GateVerdict:
    """Require the whole, and every slice with enough documents, to be within its margin of the parent."""
    parent, compared = evidence.parent, evidence.of("comparison", ComparisonFacts)
    if not parent:
        return GateVerdict(state="not applicable", reason="the run started from random weights")
    if compared is None or compared.champion != parent:
        other = "nothing" if compared is None else compared.champion[:12]
        reason = f"compared with {other}, not with the parent {parent[:12]}: set evaluation.against: initial"
        return GateVerdict(state="failed", reason=reason)
    lines = [one for one in compared.lines if one.kind in (OWN, PARENT_SLICES)]
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= params.min_documents]
    wholes = {one.kind for one in judged if one.slice == WHOLE}
    if OWN not in wholes:
        return GateVerdict(state="failed", reason="held-out text as a whole was not compared with the parent")
    if params.parents_text and PARENT_SLICES not in wholes:
        reason = "the parent's held-out text was not compared; imported weights have none (parents_text: false)"
        return GateVerdict(state="failed", reason=reason)
    bounded = [Bounded(one, params.of(one.slice), _named(one, label(one))) for one in judged]
    small = [one for one in lines if one not in judged]
    left = skipped("slice", params.min_documents, [(_named(one, label(one)), one.clusters) for one in small])
    result = within_margins(NAME, bounded, left, small, "parent")
    found = {
        _named(one, one.slice): {"worse_at_most": number(one.worse_at_most), "margin": params.of(one.slice)}
        for one in judged
    }
    return GateVerdict(state=result.state, reason=result.reason, evidence={"parent": parent, "compared": found})


def _named(line: PairedLine, name: str) -> str:
    """Name of a slice; of the parent's text as such."""
    return name if line.kind == OWN else f"{name} of the parent's text"


GATE = Gate(
    name=NAME,
    description="A model that started from another is within a margin of it on held-out text.",
    needs=("parent",),
    rests_on=("comparison",),
    judge=judge,
    params=ForgettingBound,
)
