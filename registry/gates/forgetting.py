"""Forgetting: a model that began from another is no worse than that one, beyond a bound, on text that either held out.

For a gate policy to ask, under `extensions`; where the parent is the champion, `quality.slices` asks the same. Rests on
the comparison that `evaluation.against: initial` makes: paired by document, the upper end of the interval decides. What
the parent held out is known where its run is of this workspace; of weights from outside it is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.evaluation.parameters import PARENT_SLICES
from plinth.recipe.gate import Gate, GateVerdict
from plinth.records import Frozen
from registry.gates.facts import Evidence, PairedLine
from registry.gates.quality import WHOLE, is_known
from registry.gates.result import number, shown

#: The kind of lines on held-out text of the recipe.
OWN = "slices"


class ForgettingBound(Frozen):
    """How much worse than its parent a model may be, in bits per byte."""

    margin: float = Field(0.02, gt=0, description="Of the whole, and of each slice.")
    margins: Mapping[str, float] = Field(default_factory=dict, description="Of slices, where it is another.")
    parents_text: bool = Field(
        True, description="Text that the parent held out must be compared; of weights from outside none is known."
    )
    min_documents: int = Field(30, ge=2, description="Slices with fewer are not judged.")

    def of(self, label: str) -> float:
        """The bound of a slice."""
        return self.margins.get(label, self.margin)


def judge(params: ForgettingBound, evidence: Evidence) -> GateVerdict:
    """Whether every slice that can be judged, and the whole, is proved to be no worse than the parent by its bound."""
    parent, compared = evidence.parent, evidence.comparison
    if not parent:
        return GateVerdict(passed=True, reason="the run began from random weights")
    if compared is None or compared.champion != parent:
        other = "nothing" if compared is None else compared.champion[:12]
        reason = f"compared with {other}, not with the parent {parent[:12]}: set evaluation.against: initial"
        return GateVerdict(passed=False, reason=reason)
    if wrong := evidence.miscounted.get("comparison", ()):
        return GateVerdict(passed=False, reason=f"not what its tables say: {'; '.join(wrong)}")
    lines = [one for one in compared.lines if one.kind in (OWN, PARENT_SLICES)]
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= params.min_documents]
    wholes = {one.kind for one in judged if one.slice == WHOLE}
    if OWN not in wholes:
        return GateVerdict(passed=False, reason="held-out text as a whole was not compared with the parent")
    if params.parents_text and PARENT_SLICES not in wholes:
        reason = "text that the parent held out was not compared: of weights from outside none is known (parents_text)"
        return GateVerdict(passed=False, reason=reason)
    worse = [
        f"{_named(one)} may be {shown(one.worse_at_most)} worse than the parent, allowed is less than "
        f"{shown(params.of(one.slice))}"
        for one in judged
        if not _within(one, params.of(one.slice))
    ]
    left = f"; {len(lines) - len(judged)} too small to judge" if len(judged) < len(lines) else ""
    reason = ("; ".join(worse) or f"no worse than the parent on {len(judged)} slices") + left
    found = {
        _named(one): {"worse_at_most": number(one.worse_at_most), "margin": params.of(one.slice)} for one in judged
    }
    return GateVerdict(passed=not worse, reason=reason, evidence={"parent": parent, "compared": found})


def _named(line: PairedLine) -> str:
    """A slice; of the parent's text as such."""
    return line.slice if line.kind == OWN else f"{line.slice} of the parent's text"


def _within(line: PairedLine, margin: float) -> bool:
    return line.worse_at_most < margin and is_known(line)


GATE = Gate(
    name="forgetting",
    description="A model that began from another is no worse than that on held-out text, beyond a bound.",
    needs=("parent",),
    judge=judge,
    params=ForgettingBound,
)
