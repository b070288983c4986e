"""Gates on what may do harm: contamination, memorised text, personal data, differences between groups, toxicity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from registry.gates.facts import BitsInterval, Evidence, PairedLine, PiiShare
from registry.gates.quality import WHOLE, compared, is_known
from registry.gates.result import GateResult, bounded, missing, number, shown
from registry.gates.settings import GatePolicy

#: The measure of a comparison that says how far groups are apart, whichever is favoured.
APART: Final = "bits between groups"


def contamination(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Training documents that overlap the held-out set."""
    known, bound = evidence.contamination, policy.contamination.max_documents
    if known is None or known.documents <= 0:
        return missing("contamination")
    return GateResult(
        name="contamination",
        passed=0 <= known.contaminated <= bound,
        reason=f"{known.contaminated} of {known.documents} training documents contaminated, at most {bound} allowed",
        evidence=known.model_dump(mode="json"),
    )


def extraction(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Training text of risk that the model continues word for word or nearly: the upper limit of its share."""
    known, asked = evidence.memorisation and evidence.memorisation.extraction, policy.extraction
    if not known or WHOLE not in known.slices or known.slices[WHOLE].windows <= 0:
        return missing("extraction")
    judged = {name: one for name, one in known.slices.items() if name == WHOLE or one.windows >= asked.min_windows}
    worst = max(judged, key=lambda name: (not judged[name].at_most <= asked.max_share, judged[name].at_most))
    what = f"share extracted of {worst} ({judged[worst].windows} windows, {len(judged)} slices judged)"
    every = {name: {"windows": one.windows, "at_most": number(one.at_most)} for name, one in known.slices.items()}
    return bounded("extraction", judged[worst].at_most, asked.max_share, what, slices=every)


def canaries(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Planted texts: exposures of rarely repeated ones as of unseen ones, and a bound on epsilon."""
    known, asked = evidence.memorisation and evidence.memorisation.canaries, policy.canaries
    if not known or known.planted <= 0:
        return missing("canaries")
    unseen = sorted(set(asked.min_p) - set(known.p_values))
    if unseen:
        return missing("canaries", f"none was planted {', '.join(map(str, unseen))} times")
    shown_up = [
        f"canaries planted {count} times are known: p = {shown(known.p_values[count])}, at least {shown(least)} allowed"
        for count, least in sorted(asked.min_p.items())
        if not known.p_values[count] >= least
    ]
    if not known.epsilon <= asked.max_epsilon:
        shown_up.append(f"epsilon is at least {shown(known.epsilon)}, at most {shown(asked.max_epsilon)} allowed")
    reason = f"p = {shown(min(known.p_values[n] for n in asked.min_p))}, epsilon at least {shown(known.epsilon)}"
    return GateResult(
        name="canaries",
        passed=not shown_up,
        reason="; ".join(shown_up) or reason,
        evidence={
            "planted": known.planted,
            "epsilon": number(known.epsilon),
            "p_values": {str(count): number(p) for count, p in sorted(known.p_values.items())},
        },
    )


def pii_data(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Personal data left in training text after its edits."""
    known, asked = evidence.pii and evidence.pii.data, policy.pii
    if not known or known.texts <= 0:
        return missing("pii_data")
    shares = {WHOLE: known, **known.slices}
    judged = {name: one for name, one in shares.items() if name == WHOLE or one.texts >= asked.min_documents}
    worst = max(judged, key=lambda name: (not judged[name].at_most <= asked.max_data_share, judged[name].at_most))
    one = judged[worst]
    what = f"personal data in {one.found} of {one.texts} training documents of {worst}: share"
    every = {name: _share(share) for name, share in shares.items()}
    kinds = {kind: number(limit) for kind, limit in known.per_million.items()}
    more = {"slices": every, "per_million_at_most": kinds, "detector": known.detector}
    return bounded("pii_data", one.at_most, asked.max_data_share, what, **more)


def pii_outputs(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Personal data in what the model writes: made up without being asked, or out of its training text."""
    known, asked = evidence.pii and evidence.pii.outputs, policy.pii
    if not known or min(known.unprompted.texts, known.memorised.texts) <= 0:
        return missing("pii_outputs")
    own, learnt = known.unprompted, known.memorised
    shares = {"unprompted": own, "invited": known.invited, "memorised": learnt}
    every = {"slices": {name: _share(one) for name, one in shares.items()}, "detector": known.detector}
    what = f"personal data out of training text in {learnt.found} of {learnt.texts} outputs: share"
    memory = bounded("pii_outputs", learnt.at_most, asked.max_memorised_share, what, **every)
    if not memory.passed:
        return memory
    what = f"{memory.reason}; any personal data in {own.found} of {own.texts} outputs without a prompt: share"
    return bounded("pii_outputs", own.at_most, asked.max_output_share, what, **every)


def bias(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits by which a group is favoured, of any attribute; and how much less alike groups are treated than before."""
    known, asked = evidence.bias, policy.bias
    if known is None or not known.attributes:
        return missing("bias")
    if blank := _without_spread(known.attributes):
        return missing("bias", f"the spread of {', '.join(blank)} is not known")
    drift, closed = _drift(policy, evidence)
    if closed is not None and not closed.passed:
        return closed
    far = [
        f"{name} favours a group by up to {shown(one.either_way)} bits, at most {shown(asked.max_bits)} allowed"
        for name, one in sorted(known.attributes.items())
        if not one.either_way <= asked.max_bits
    ] + [
        f"{name} drifted by up to {shown(one.worse_at_most)} bits, at most {shown(asked.max_drift)} allowed"
        for name, one in sorted(drift.items())
        if not (one.worse_at_most <= asked.max_drift and is_known(one))
    ]
    within = f"{len(known.attributes)} attributes within {shown(asked.max_bits)} bits"
    beside = f"; {closed.reason}" if closed else f", drift within {shown(asked.max_drift)}"
    return GateResult(
        name="bias",
        passed=not far,
        reason="; ".join(far) or within + beside,
        evidence={
            "at_most": {name: number(one.either_way) for name, one in sorted(known.attributes.items())},
            "drift_at_most": {name: number(one.worse_at_most) for name, one in sorted(drift.items())},
        },
    )


def _drift(policy: GatePolicy, evidence: Evidence) -> tuple[dict[str, PairedLine], GateResult | None]:
    """How much less alike groups are treated, as a whole and by attribute; or the result where nothing is compared."""
    lines, closed = compared("bias", "fairness", policy, evidence)
    if closed is not None:
        return {}, closed
    found = {one.slice: one for one in lines if one.measure == APART}
    return found, None if WHOLE in found else missing("bias", "no drift from the champion")


def toxicity(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Toxic continuations: the upper limit of their share."""
    known = evidence.bias and evidence.bias.toxicity
    if not known or known.continuations <= 0:
        return missing("toxicity")
    what = f"share of toxic ones of {known.continuations} continuations"
    return bounded(
        "toxicity", known.at_most, policy.bias.max_toxic_share, what, continuations=known.continuations
    )


def _without_spread(measured: Mapping[str, BitsInterval]) -> list[str]:
    """Measurements of no pair, or with an interval without width that is not exactly 0: they say nothing."""
    said = {name: one.low < one.high or one.low == one.high == 0 for name, one in measured.items()}
    return sorted(name for name, one in measured.items() if one.pairs <= 0 or not said[name])


def _share(one: PiiShare) -> dict[str, float | str]:
    return {"texts": one.texts, "found": one.found, "at_most": number(one.at_most)}
