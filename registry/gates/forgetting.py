"""Forgetting: a model that began from another is no worse than that one on held-out text, beyond a bound.

For a gate policy to ask, under `extensions`; where the parent is the champion, `quality.slices` asks the same. Rests on
the comparison that `evaluation.against: initial` makes: paired by document, the upper end of the interval decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.recipe.gate import Gate, GateVerdict
from plinth.records import Frozen
from registry.gates.facts import Evidence, PairedLine
from registry.gates.quality import WHOLE, is_known
from registry.gates.result import number, shown


class ForgettingBound(Frozen):
    """How much worse than its parent a model may be, in bits per byte."""

    margin: float = Field(0.02, gt=0, description="Of the whole, and of each slice.")
    margins: Mapping[str, float] = Field(default_factory=dict, description="Of slices, where it is another.")
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
    lines = [one for one in compared.lines if one.kind == "slices"]
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= params.min_documents]
    if not any(one.slice == WHOLE for one in judged):
        return GateVerdict(passed=False, reason="held-out text as a whole was not compared with the parent")
    worse = [
        f"{one.slice} may be {shown(one.worse_at_most)} worse than the parent, allowed is less than "
        f"{shown(params.of(one.slice))}"
        for one in judged
        if not _within(one, params.of(one.slice))
    ]
    left = f"; {len(lines) - len(judged)} too small to judge" if len(judged) < len(lines) else ""
    reason = ("; ".join(worse) or f"no worse than the parent on {len(judged)} slices") + left
    found = {one.slice: {"worse_at_most": number(one.worse_at_most), "margin": params.of(one.slice)} for one in judged}
    return GateVerdict(passed=not worse, reason=reason, evidence={"parent": parent, "compared": found})


def _within(line: PairedLine, margin: float) -> bool:
    return line.worse_at_most < margin and is_known(line)


GATE = Gate(
    name="forgetting",
    description="A model that began from another is no worse than that on held-out text, beyond a bound.",
    needs=("parent",),
    judge=judge,
    params=ForgettingBound,
)
