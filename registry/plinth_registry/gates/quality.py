"""Gates on quality: against baselines and bounds, and against the champion.

Non-inferiority: `worse_at_most`, the upper end of the interval of how much worse the candidate is, is below the margin.
A point estimate decides nothing, and a measurement with too wide an interval does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from plinth.recipe.gate import GateState
from plinth.text.plural import counted
from plinth_registry.gates.facts import Evidence, PairedLine, SliceScore
from plinth_registry.gates.result import GateResult, decided, missing, named, number, shown, skipped
from plinth_registry.gates.settings import GatePolicy

WHOLE: Final = "all"
#: Prefix of the slices that need none to be understood.
BUCKET: Final = "bucket "


def beats_gzip(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below `gzip -9` on every slice."""
    return _below("beats_gzip", evidence, lambda score: score.gzip, "gzip -9")


def beats_trigram(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below the byte trigram on every slice."""
    return _below("beats_trigram", evidence, lambda score: score.trigram, "the byte trigram")


def max_bits_per_byte(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below an absolute bound on every slice."""
    bound = policy.slices.max_bits_per_byte
    assert bound is not None  # a policy that requires this gate has one
    return _below("max_bits_per_byte", evidence, lambda _: bound, "the bound")


def slices(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Held-out text within the margin of the champion: the whole, and every slice with enough documents."""
    asked = policy.slices
    lines, closed = compared("slices", "slices", policy, evidence)
    if closed is not None:
        return closed
    small = [one for one in lines if one.slice != WHOLE and one.clusters < asked.min_documents]
    judged = [Bounded.of(one, asked.margins.get(one.slice, asked.margin)) for one in lines if one not in small]
    if not any(one.line.slice == WHOLE for one in judged):
        return missing("slices", "held-out text as a whole was not compared with the champion")
    left = skipped("slice", asked.min_documents, [(label(one), one.clusters) for one in small])
    return within_margins("slices", judged, left, small)


def probes(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Probes that decide (signal-to-noise ratio of at least 1) within the margin of the champion."""
    known = evidence.probes
    if known is None or not any(one.items for one in known.probes.values()):
        return missing("probes")
    deciding = sorted(name for name, one in known.probes.items() if one.decides and one.items)
    noise = {name: None if one.snr is None else number(one.snr) for name, one in sorted(known.probes.items())}
    undecided = named([(name, one.items) for name, one in sorted(known.probes.items()) if name not in deciding])
    if not deciding:
        state: GateState = "skipped" if policy.probes.none_decides == "passes" else "failed"
        reason = f"none of {len(noise)} probes has a signal-to-noise ratio of at least 1: {undecided}"
        return GateResult(name="probes", state=state, reason=reason, evidence={"snr": noise})
    lines, closed = compared("probes", "probes", policy, evidence)
    if closed is not None:
        return closed.model_copy(update={"evidence": {"snr": noise}})
    own = [one for one in lines if one.slice == WHOLE and _name(one) in deciding]
    unseen = sorted(set(deciding) - {_name(one) for one in own})
    if unseen:
        return missing("probes", f"{', '.join(unseen)} not compared with the champion")
    result = _each("probes", own, policy.probes.margin, policy.probes.min_templates)
    count = len(noise) - len(deciding)
    left = f"; {counted(count, 'probe')} skipped (signal-to-noise ratio below 1): {undecided}" if count else ""
    return result.model_copy(update={"reason": result.reason + left, "evidence": {**result.evidence, "snr": noise}})


def tasks(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Every metric of every task within the margin of the champion."""
    known = evidence.tasks
    if known is None or not known.tasks:
        return missing("tasks")
    empty = sorted(name for name, one in known.tasks.items() if one.documents - one.damaged <= 0)
    if empty:
        return missing("tasks", f"nothing measured of {', '.join(empty)}")
    lines, closed = compared("tasks", "tasks", policy, evidence)
    if closed is not None:
        return closed
    own = [one for one in lines if one.slice == WHOLE]
    unseen = sorted(set(known.tasks) - {_name(one) for one in own})
    if unseen:
        return missing("tasks", f"{', '.join(unseen)} not compared with the champion")
    return _each("tasks", own, policy.tasks.margin, policy.tasks.min_items)


def champion_of(name: str, policy: GatePolicy, evidence: Evidence) -> GateResult | None:
    """Return the result of a gate that cannot be compared with the champion; None if it can.

    Before the first release there is no champion: the policy says whether that blocks.
    """
    if evidence.champion is None:
        return missing(name, "the champion could not be determined")
    if not evidence.champion:
        state: GateState = "not applicable" if policy.first_release == "allowed" else "failed"
        reason = f"no champion to compare with; a first release is {policy.first_release} by the policy"
        return GateResult(name=name, state=state, reason=reason)
    if evidence.comparison is None:
        return missing(name, f"no comparison with the champion {evidence.champion[:12]}")
    if evidence.comparison.champion != evidence.champion:
        other = evidence.comparison.champion[:12]
        return decided(name, False, f"compared with {other}, but the champion is {evidence.champion[:12]}")
    return None


def compared(
    name: str, kind: str, policy: GatePolicy, evidence: Evidence
) -> tuple[list[PairedLine], GateResult | None]:
    """Return the lines of a kind against the present champion; or the gate's result if there are none."""
    closed = champion_of(name, policy, evidence)
    if closed is not None:
        return [], closed
    assert evidence.comparison is not None
    lines = [one for one in evidence.comparison.lines if one.kind == kind]
    return lines, None if lines else missing(name, f"the comparison has no {kind}")


class Bounded(NamedTuple):
    """A paired difference with its margin and its label."""

    line: PairedLine
    margin: float
    name: str

    @classmethod
    def of(cls, line: PairedLine, margin: float) -> Bounded:
        """With the label of its slice."""
        return cls(line, margin, label(line))

    @property
    def key(self) -> str:
        """Its key in the evidence: the slice, or the measure of what has no slices."""
        return self.name if self.name == self.line.measure else self.line.slice

    @property
    def holds(self) -> bool:
        """True if the difference is proved to be below the margin."""
        return self.line.worse_at_most < self.margin and is_known(self.line)

    @property
    def excess(self) -> float:
        """How far the bound lies above the margin; infinite if it is unknown."""
        value = self.line.worse_at_most - self.margin
        return value if value == value and is_known(self.line) else math.inf

    @property
    def text(self) -> str:
        """Difference, bound, limit and n: `code +0.57 (95% upper bound 0.61), limit 3.0, n 40`."""
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
    """Return the result of paired differences: each within its margin.

    Args:
        left: what was skipped, in words.
        small: the lines that were skipped.
        model: what the candidate is compared with.
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
    """Name of a slice for people: `overall`, a bucket, or another slice with its axis."""
    return "overall" if line.slice == WHOLE else line.slice.removeprefix(BUCKET)


def is_known(line: PairedLine) -> bool:
    """True if the interval carries information: one without width does so only if both models gave the same answers."""
    return line.low < line.high or line.low == line.high == line.value == 0


def _values(line: PairedLine) -> dict[str, float]:
    return {"worse_at_most": line.worse_at_most, "value": line.value}


def _each(name: str, lines: Sequence[PairedLine], margin: float, least: int) -> GateResult:
    """Lines with enough items, each by its measure; none with enough is no evidence."""
    small = [one for one in lines if one.clusters < least]
    judged = [Bounded(one, margin, one.measure) for one in lines if one not in small]
    sizes = [(one.measure, one.clusters) for one in small]
    if not judged:
        return missing(name, f"n too small, minimum {least}: {named(sizes)}")
    return within_margins(name, judged, skipped("measure", least, sizes), small)


def _name(line: PairedLine) -> str:
    """Probe or task of a line: measures are written `name: measure`."""
    return line.measure.partition(":")[0]


def _below(name: str, evidence: Evidence, bound: Callable[[SliceScore], float], what: str) -> GateResult:
    """Require bits per byte strictly below the bound on every expected slice; NaN is not below anything."""
    if evidence.evaluation is None or not evidence.evaluation.slices:
        return missing(name)
    scores: Mapping[str, SliceScore] = evidence.evaluation.slices
    rows = {key: {"model": score.model, "bound": bound(score)} for key, score in sorted(scores.items())}
    empty = {key for key, score in scores.items() if score.bytes <= 0}
    unseen = sorted(empty.union(set(evidence.expected_slices) - set(rows)))
    text = {
        key: f"{key} {shown(row['model'], row['bound'])}, limit {shown(row['bound'], row['model'])}, "
        f"n {scores[key].bytes:,} bytes"
        for key, row in rows.items()
    }
    above = [key for key, row in rows.items() if key not in empty and not row["model"] < row["bound"]]
    faults = [f"bits per byte not below {what}: {'; '.join(text[key] for key in above)}"] * bool(above)
    faults += [f"nothing measured on {', '.join(unseen)}"] * bool(unseen)
    closest = max(rows, key=lambda key: rows[key]["model"] - rows[key]["bound"])
    reason = f"bits per byte below {what} on {counted(len(rows), 'slice')}; closest: {text[closest]}"
    table = {key: {side: number(value) for side, value in row.items()} for key, row in rows.items()}
    return decided(name, not faults, "; ".join(faults) or reason, bits_per_byte=table)
