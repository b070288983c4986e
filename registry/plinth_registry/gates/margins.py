"""Paired differences and upper bounds of rates, for gates that compare two models. The gates `forgetting` and
`compressed`, for a model derived from another model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field

from plinth.evaluation.measurement import Gate, GateState, GateVerdict
from plinth.evaluation.parameters import PARENT_SLICES
from plinth.records import Frozen
from plinth.text import counted
from plinth_registry.gates import GateResult, decided, missing, named, number, percent, shown, skipped
from plinth_registry.gates.facts import ComparisonFacts, Evidence, PairedLine

# Paired differences from the champion, for gates on measurements of both.
#
# Non-inferiority: `worse_at_most`, the upper bound of the candidate's loss, is below the margin. A point estimate
# decides nothing, and a measurement with too wide an interval does not pass.

WHOLE: Final = "all"
#: Axis prefix that is omitted from labels.
BUCKET: Final = "bucket "


def champion_of(name: str, evidence: Evidence) -> GateResult | None:
    """Return the gate's result if there is no champion to compare with, or None if there is a champion.

    Before the first release there is no champion. The policy decides if this blocks the candidate.
    """
    if evidence.champion is None:
        return missing(name, "the champion is unknown")
    if not evidence.champion:
        state: GateState = "not applicable" if evidence.first_release == "allowed" else "failed"
        reason = f"no change measured: this is the first release, {evidence.first_release} by the policy"
        return GateResult(name=name, state=state, reason=reason)
    found = evidence.of("comparison", ComparisonFacts)
    if found is None:
        return missing(name, f"there is no comparison with the champion {evidence.champion[:12]}")
    if found.champion != evidence.champion:
        other = found.champion[:12]
        return decided(name, False, f"compared with {other}, but the champion is {evidence.champion[:12]}")
    return None


def compared(name: str, kind: str, evidence: Evidence) -> tuple[list[PairedLine], GateResult | None]:
    """Return the lines of one kind from the comparison with the current champion. If there are no such lines, return
    the gate's result."""
    closed = champion_of(name, evidence)
    if closed is not None:
        return [], closed
    found = evidence.of("comparison", ComparisonFacts)
    assert found is not None
    lines = [one for one in found.lines if one.kind == kind]
    return lines, None if lines else missing(name, f"the comparison has no {kind}")


class Bounded(NamedTuple):
    """Paired difference between two models, with its margin and its label."""

    line: PairedLine
    margin: float
    name: str

    @classmethod
    def of(cls, line: PairedLine, margin: float) -> Bounded:
        """Return the paired difference with its margin and the label of its slice."""
        return cls(line, margin, label(line))

    @property
    def key(self) -> str:
        """Key of the difference in the gate's evidence: the slice, or the measure if there are no slices."""
        return self.name if self.name == self.line.measure else self.line.slice

    @property
    def holds(self) -> bool:
        """True if the difference is proved to be below the margin."""
        return self.line.worse_at_most < self.margin and is_known(self.line)

    @property
    def excess(self) -> float:
        """Amount by which the difference's bound exceeds the margin, or infinity if the bound is unknown."""
        value = self.line.worse_at_most - self.margin
        return value if value == value and is_known(self.line) else math.inf

    @property
    def text(self) -> str:
        """Difference, bound, limit and sample size as text: `code +0.57 (95% upper bound 0.61), limit 3.0, n 40`."""
        one, fewer = self.line, self.line.fewer_is_better
        side, bound, limit = ("upper", one.high, self.margin) if fewer else ("lower", one.low, 0.0 - self.margin)
        known = "" if is_known(one) else ", interval without width"
        return (
            f"{self.name} {shown(one.value, signed=True)} (95% {side} bound {shown(bound, limit)}), "
            f"limit {shown(limit, bound)}, n {one.clusters:,}{known}"
        )


def within_margins(
    name: str, judged: Sequence[Bounded], left: str, small: Sequence[PairedLine], model: str = "champion"
) -> GateResult:
    """Return the result of a gate that requires each paired difference to be within its margin.

    Args:
        left: description of skipped lines.
        small: the lines that were skipped.
        model: name of the model that the candidate is compared with.
    """
    above = sorted((one for one in judged if not one.holds), key=lambda one: -one.excess)
    worst = max(judged, key=lambda one: one.excess)
    if above:
        reason = f"{len(above)} of {counted(len(judged), 'difference')} from the {model} above the limit: "
        reason += "; ".join(one.text for one in above)
    else:
        reason = f"{counted(len(judged), 'difference')} from the {model} within the limit; worst: {worst.text}"
    found = {
        one.key: {
            **{key: number(value) for key, value in _values(one.line).items()},
            "margin": one.margin,
            "clusters": one.line.clusters,
        }
        for one in judged
    }
    too_small = [one.slice if one.slice != WHOLE else one.measure for one in small]
    return decided(name, not above, reason + left, compared=found, too_small=too_small)


def label(line: PairedLine) -> str:
    """Return the displayed name of a slice: `overall`, a bucket, or another slice with its axis."""
    return "overall" if line.slice == WHOLE else line.slice.removeprefix(BUCKET)


def is_known(line: PairedLine) -> bool:
    """Return True if the interval is informative. An interval without width is informative only if both models gave
    equal answers."""
    return line.low < line.high or line.low == line.high == line.value == 0


def _values(line: PairedLine) -> dict[str, float]:
    return {"worse_at_most": line.worse_at_most, "value": line.value}


def each_within(name: str, lines: Sequence[PairedLine], margin: float, least: int) -> GateResult:
    """Return the gate's result over lines with at least `least` items, each labeled by its measure. If no line has
    enough items, the result states that evidence is missing."""
    small = [one for one in lines if one.clusters < least]
    judged = [Bounded(one, margin, one.measure) for one in lines if one not in small]
    sizes = [(one.measure, one.clusters) for one in small]
    if not judged:
        return missing(name, f"n too small, minimum {least}: {named(sizes)}")
    return within_margins(name, judged, skipped("measure", least, sizes), small)


def subject_of(line: PairedLine) -> str:
    """Return the probe or task that a line measures. The line's measure has the form `name: measure`."""
    return line.measure.partition(":")[0]


class UpperBound(NamedTuple):
    """Upper bound of a rate over n items, with the number of findings if it is known."""

    n: int
    at_most: float
    found: int | None = None

    def text(self, limit: float) -> str:
        """Return the bound as text: `≤ 1.89% (95% upper bound), limit 5.0%, n 60`."""
        size = f"n {self.n:,}" if self.found is None else f"n {self.n:,}, {self.found:,} found"
        return f"≤ {percent(self.at_most, limit)} (95% upper bound), limit {percent(limit, self.at_most)}, {size}"


def worst_share(
    name: str,
    what: str,
    rates: Mapping[str, UpperBound],
    least: int,
    limit: float,
    group: str = "slice",
    **evidence: Any,
) -> GateResult:
    """Return the result of a gate that limits the upper bound of a rate, both overall and on every slice of at least
    `least` items. `group` is the noun for a slice."""
    judged = {key: one for key, one in rates.items() if key == WHOLE or one.n >= least}
    small = [(f"{key} ≤ {percent(one.at_most)}", one.n) for key, one in rates.items() if key not in judged]
    above = [key for key, one in judged.items() if not one.at_most <= limit]
    worst = max(judged, key=lambda key: (key in above, judged[key].at_most))
    text = "; ".join(f"{'overall' if key == WHOLE else key} {judged[key].text(limit)}" for key in above or [worst])
    head = "above the limit" if above else "worst"
    groups = sum(key not in (WHOLE, worst) for key in judged)
    others = ["overall"] if WHOLE in judged and worst != WHOLE else []
    others += [counted(groups, f"other {group}" if worst != WHOLE else group)] if groups else []
    lower = f"; not higher: {' and '.join(others)}" if others and not above else ""
    return decided(
        name,
        not above,
        f"{what}, {head}: {text}{lower}{skipped(group, least, small)}",
        at_most=number(judged[worst].at_most),
        bound=limit,
        **evidence,
    )


# The gate `forgetting`: a model that started from another model is within a margin of that parent, on text that either
# model held out.
#
# A gate policy requires it under `extensions`; if the parent is the champion, the gate `slices` checks the same. Uses
# the comparison that `evaluation.against: initial` makes: paired by document, the upper end of the interval decides.
# The parent's held-out text is known only if its run is in this workspace.

FORGETTING = "forgetting"
#: The kind of lines on held-out text of the recipe.
OWN_SLICES = "slices"


class ForgettingBound(Frozen):
    """Maximum loss of a model relative to its parent, in bits per byte."""

    margin: float = Field(
        0.02,
        gt=0,
        description="Maximum regression of the held-out text as a whole and of each slice, in bits per byte.",
    )
    margins: Mapping[str, float] = Field(default_factory=dict, description="Margins of individual slices, by label.")
    parents_text: bool = Field(
        True, description="Require a comparison on the parent's held-out text, which imported weights do not have."
    )
    min_documents: int = Field(30, ge=2, description="Slices with fewer documents than this are skipped.")

    def of(self, slice_label: str) -> float:
        """Return the margin of a slice, by its label."""
        return self.margins.get(slice_label, self.margin)


def forgetting(params: ForgettingBound, evidence: Evidence) -> GateVerdict:
    """Require the loss relative to the parent to be within the margin, both overall and on every slice with enough
    documents."""
    parent, compared = evidence.parent, evidence.of("comparison", ComparisonFacts)
    if not parent:
        return GateVerdict(state="not applicable", reason="the run started from random weights")
    if compared is None or compared.champion != parent:
        other = "nothing" if compared is None else compared.champion[:12]
        reason = f"compared with {other}, not with the parent {parent[:12]}: set evaluation.against: initial"
        return GateVerdict(state="failed", reason=reason)
    lines = [one for one in compared.lines if one.kind in (OWN_SLICES, PARENT_SLICES)]
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= params.min_documents]
    wholes = {one.kind for one in judged if one.slice == WHOLE}
    if OWN_SLICES not in wholes:
        return GateVerdict(state="failed", reason="held-out text as a whole was not compared with the parent")
    if params.parents_text and PARENT_SLICES not in wholes:
        reason = "the parent's held-out text was not compared; imported weights have none (parents_text: false)"
        return GateVerdict(state="failed", reason=reason)
    bounded = [Bounded(one, params.of(one.slice), _named(one, label(one))) for one in judged]
    small = [one for one in lines if one not in judged]
    left = skipped("slice", params.min_documents, [(_named(one, label(one)), one.clusters) for one in small])
    result = within_margins(FORGETTING, bounded, left, small, "parent")
    found = {
        _named(one, one.slice): {"worse_at_most": number(one.worse_at_most), "margin": params.of(one.slice)}
        for one in judged
    }
    return GateVerdict(state=result.state, reason=result.reason, evidence={"parent": parent, "compared": found})


def _named(line: PairedLine, name: str) -> str:
    """Return the name of a slice, labeled if the slice belongs to the parent's text."""
    return name if line.kind == OWN_SLICES else f"{name} of the parent's text"


FORGETTING_GATE = Gate(
    name=FORGETTING,
    description="A model that started from another model is within a margin of that model on held-out text.",
    needs=("parent",),
    rests_on=("comparison",),
    judge=forgetting,
    params=ForgettingBound,
)


# The gate `compressed`: a quantized or pruned form of a release loses few bits per byte of held-out text.
#
# A gate of exports: evaluated when a form is about to be exported, not for candidates. The upper end of the interval of
# form minus release, paired by document, is below the margin: as a whole, and on every slice with enough documents.

COMPRESSED = "compressed"


class CompressedPolicy(Frozen):
    """Limits on the loss of a compressed form relative to its release, in bits per byte."""

    margin: float = Field(0.02, ge=0, description="Maximum regression of a slice against the release.")
    margins: Mapping[str, float] = Field(
        default_factory=dict,
        description="Margins by slice label, such as `bucket web`; `all` is the held-out text as a whole.",
    )
    min_documents: int = Field(
        10, ge=2, description="Slices with fewer documents than this are listed, but not judged."
    )


def compressed(asked: CompressedPolicy, evidence: Evidence) -> GateVerdict:
    """Require the loss of a compressed form on every slice to be below a margin. A form that was not measured fails."""
    known = evidence.of("comparison", ComparisonFacts)
    lines = [one for one in known.lines if one.kind == "slices"] if known else []
    judged = [one for one in lines if one.slice == WHOLE or one.clusters >= asked.min_documents]
    if not any(one.slice == WHOLE for one in judged):
        return GateVerdict(state="failed", reason="no evidence: held-out text as a whole was not compared")
    small = [one for one in lines if one not in judged]
    left = skipped("slice", asked.min_documents, [(label(one), one.clusters) for one in small])
    result = within_margins(
        COMPRESSED, [Bounded.of(one, _margin(asked, one)) for one in judged], left, small, "release"
    )
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


COMPRESSED_GATE = Gate(
    name=COMPRESSED,
    description="A quantized or pruned form is within a margin of the release on held-out text.",
    needs=("comparison",),
    judge=compressed,
    params=CompressedPolicy,
    of_exports=True,
)
