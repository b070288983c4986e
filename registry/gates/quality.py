"""Gates on how good the model is: against baselines and bounds, and no worse than the champion.

Non-inferiority: `worse_at_most`, the upper end of the interval of how much worse the candidate is, lies below the
margin. A point estimate decides nothing, and a measurement too small to tell does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from registry.gates.facts import Evidence, PairedLine, SliceScore
from registry.gates.result import GateResult, missing, number, shown
from registry.gates.settings import GatePolicy

WHOLE: Final = "all"


def beats_gzip(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below `gzip -9` on every slice."""
    return _below("beats_gzip", evidence, lambda score: score.gzip, "gzip -9")


def beats_trigram(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below the byte trigram on every slice."""
    return _below("beats_trigram", evidence, lambda score: score.trigram, "the byte trigram")


def max_bits_per_byte(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below an absolute bound on every slice."""
    bound = policy.slices.max_bits_per_byte
    assert bound is not None  # a policy that asks this gate has one
    return _below("max_bits_per_byte", evidence, lambda _: bound, f"the bound {bound}")


def slices(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Held-out text no worse than the champion's: the whole, and every slice with enough documents."""
    asked = policy.slices
    lines, closed = compared("slices", "slices", policy, evidence)
    if closed is not None:
        return closed
    small = [one for one in lines if one.slice != WHOLE and one.clusters < asked.min_documents]
    judged = [one for one in lines if one not in small]
    if not any(one.slice == WHOLE for one in judged):
        return missing("slices", "held-out text as a whole was not compared with the champion")
    margins = [asked.margins.get(one.slice, asked.margin) for one in judged]
    return _no_worse("slices", judged, margins, [one.slice for one in judged], small)


def probes(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Probes that decide (signal-to-noise ratio of at least 1) no worse than the champion's."""
    known = evidence.probes
    if known is None or not any(one.items for one in known.probes.values()):
        return missing("probes")
    deciding = sorted(name for name, one in known.probes.items() if one.decides and one.items)
    noise = {name: None if one.snr is None else number(one.snr) for name, one in sorted(known.probes.items())}
    if not deciding:
        reason = f"none of {len(noise)} probes can be told from noise; the policy says: {policy.probes.none_decides}"
        passed = policy.probes.none_decides == "passes"
        return GateResult(name="probes", passed=passed, reason=reason, evidence={"snr": noise})
    lines, closed = compared("probes", "probes", policy, evidence)
    if closed is not None:
        return closed.model_copy(update={"evidence": {"snr": noise}})
    own = [one for one in lines if one.slice == WHOLE and _name(one) in deciding]
    unseen = sorted(set(deciding) - {_name(one) for one in own})
    if unseen:
        return missing("probes", f"{', '.join(unseen)} not compared with the champion")
    result = _each("probes", own, policy.probes.margin, policy.probes.min_templates)
    return result.model_copy(update={"evidence": {**result.evidence, "snr": noise}})


def tasks(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Every metric of every task no worse than the champion's."""
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
    """The result of a gate that compares with the champion where nothing can be compared; None where it can.

    Before the first release there is no champion: the policy says whether that passes.
    """
    if evidence.champion is None:
        return missing(name, "nobody looked which version is champion")
    if not evidence.champion:
        reason = f"there is no champion to compare with: a first release is {policy.first_release} by the policy"
        return GateResult(name=name, passed=policy.first_release == "allowed", reason=reason)
    if evidence.comparison is None:
        return missing(name, f"no comparison with the champion {evidence.champion[:12]}")
    if evidence.comparison.champion != evidence.champion:
        reason = f"compared with {evidence.comparison.champion[:12]}, but the champion is {evidence.champion[:12]}"
        return GateResult(name=name, passed=False, reason=reason)
    return None


def compared(
    name: str, kind: str, policy: GatePolicy, evidence: Evidence
) -> tuple[list[PairedLine], GateResult | None]:
    """Lines of a kind against the present champion, for a gate; or its result where there are none."""
    closed = champion_of(name, policy, evidence)
    if closed is not None:
        return [], closed
    assert evidence.comparison is not None
    lines = [one for one in evidence.comparison.lines if one.kind == kind]
    return lines, None if lines else missing(name, f"the comparison has no {kind}")


def _each(name: str, lines: Sequence[PairedLine], margin: float, fewest: int) -> GateResult:
    """Lines with enough clusters, each by its measure; none with enough is no evidence."""
    small = [one for one in lines if one.clusters < fewest]
    judged = [one for one in lines if one not in small]
    if not judged:
        return missing(name, f"none of {len(lines)} was measured on at least {fewest} items")
    return _no_worse(name, judged, [margin] * len(judged), [one.measure for one in judged], small)


def _no_worse(
    name: str,
    judged: Sequence[PairedLine],
    margins: Sequence[float],
    labels: Sequence[str],
    small: Sequence[PairedLine],
) -> GateResult:
    worse = [
        f"{label} may be {shown(one.worse_at_most)} worse than the champion, allowed is less than {shown(margin)}"
        for label, one, margin in zip(labels, judged, margins, strict=True)
        if not (one.worse_at_most < margin and is_known(one))
    ]
    left = f"; {len(small)} too small to judge" if small else ""
    found = {
        label: {"worse_at_most": number(one.worse_at_most), "margin": margin, "clusters": one.clusters}
        for label, one, margin in zip(labels, judged, margins, strict=True)
    }
    return GateResult(
        name=name,
        passed=not worse,
        reason=("; ".join(worse) or f"no worse than the champion in {len(judged)} comparisons") + left,
        evidence={"compared": found, "too_small": [one.slice if one.slice != WHOLE else one.measure for one in small]},
    )


def is_known(line: PairedLine) -> bool:
    """Whether the interval says anything: one without width does so only where both models gave the same answers."""
    return line.low < line.high or line.low == line.high == line.value == 0


def _name(line: PairedLine) -> str:
    """The probe or task of a line: measures are written `name: measure`."""
    return line.measure.partition(":")[0]


def _below(name: str, evidence: Evidence, bound: Callable[[SliceScore], float], what: str) -> GateResult:
    """Whether the model is strictly below the bound on every expected slice; NaN is not below anything."""
    if evidence.evaluation is None or not evidence.evaluation.slices:
        return missing(name)
    scores: Mapping[str, SliceScore] = evidence.evaluation.slices
    rows = {key: {"model": score.model, "bound": bound(score)} for key, score in sorted(scores.items())}
    empty = {key for key, score in scores.items() if score.bytes <= 0}
    unseen = sorted(empty.union(set(evidence.expected_slices) - set(rows)))
    above = [key for key, row in rows.items() if key not in empty and not row["model"] < row["bound"]]
    faults = [f"not below {what} on {', '.join(above)}"] * bool(above)
    faults += [f"nothing measured on {', '.join(unseen)}"] * bool(unseen)
    reason = "; ".join(faults) or f"below {what} on all {len(rows)} slices"
    table = {key: {side: number(value) for side, value in row.items()} for key, row in rows.items()}
    return GateResult(name=name, passed=not faults, reason=reason, evidence={"bits_per_byte": table})
