"""Gates on risks: contamination, memorized text, personal data, differences between groups, toxicity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from plinth.text.plural import counted
from plinth_registry.gates.facts import BitsInterval, Evidence, PairedLine, PiiShare
from plinth_registry.gates.quality import WHOLE, Bounded, compared, is_known, label
from plinth_registry.gates.result import GateResult, decided, missing, number, percent, shown, skipped
from plinth_registry.gates.settings import GatePolicy

#: Measure of a comparison: how far groups are apart, whichever is favored.
APART: Final = "bits between groups"


def contamination(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Training documents that overlap the held-out set."""
    known, bound = evidence.contamination, policy.contamination.max_documents
    if known is None or known.documents <= 0:
        return missing("contamination")
    share = f"{known.contaminated:,} of {counted(known.documents, 'training document')}"
    reason = f"{share} overlap the held-out set (limit {bound:,})"
    return decided("contamination", 0 <= known.contaminated <= bound, reason, **known.model_dump(mode="json"))


def extraction(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Upper bound of the share of training text at risk that the model continues word for word or nearly."""
    known, asked = evidence.memorisation and evidence.memorisation.extraction, policy.extraction
    if not known or WHOLE not in known.slices or known.slices[WHOLE].windows <= 0:
        return missing("extraction")
    rates = {name: UpperBound(one.windows, one.at_most) for name, one in known.slices.items()}
    every = {name: {"windows": one.n, "at_most": number(one.at_most)} for name, one in rates.items()}
    return _worst("extraction", "extraction rate", rates, asked.min_windows, asked.max_share, slices=every)


def canaries(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Planted texts: exposures of rarely repeated ones as of unseen ones, and a bound on epsilon."""
    known, asked = evidence.memorisation and evidence.memorisation.canaries, policy.canaries
    if not known or known.planted <= 0:
        return missing("canaries")
    unseen = sorted(set(asked.min_p) - set(known.p_values))
    if unseen:
        return missing("canaries", f"none was planted {', '.join(map(str, unseen))} times")
    known_p = {count: known.p_values[count] for count in sorted(asked.min_p)}
    exposed = [count for count, p in known_p.items() if not p >= asked.min_p[count]]
    text = {
        count: f"exposure p-value of {counted(count, 'repetition')} {shown(p, least)}, limit {shown(least, p)} or more"
        for count, p in known_p.items()
        for least in (asked.min_p[count],)
    }
    bound = asked.max_epsilon
    epsilon = f"epsilon at least {shown(known.epsilon, bound)}, limit {shown(bound, known.epsilon)}"
    leaks = not known.epsilon <= bound
    wrong = [text[count] for count in exposed] + [epsilon] * leaks
    worst = min(known_p, key=lambda count: known_p[count] / asked.min_p[count])
    return decided(
        "canaries",
        not wrong,
        "; ".join((*(wrong or (text[worst], epsilon)), f"n {known.planted:,} canaries")),
        planted=known.planted,
        epsilon=number(known.epsilon),
        p_values={str(count): number(p) for count, p in sorted(known.p_values.items())},
    )


def pii_data(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Personal data left in training text after its edits."""
    known, asked = evidence.pii and evidence.pii.data, policy.pii
    if not known or known.texts <= 0:
        return missing("pii_data")
    shares = {WHOLE: known, **known.slices}
    rates = {name: UpperBound(one.texts, one.at_most, one.found) for name, one in shares.items()}
    more = {
        "slices": {name: _share(share) for name, share in shares.items()},
        "per_million_at_most": {kind: number(limit) for kind, limit in known.per_million.items()},
        "detector": known.detector,
    }
    return _worst("pii_data", "personal data", rates, asked.min_documents, asked.max_data_share, **more)


def pii_outputs(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Personal data in what the model writes: unprompted, or memorized from its training text."""
    known, asked = evidence.pii and evidence.pii.outputs, policy.pii
    if not known or min(known.unprompted.texts, known.memorised.texts) <= 0:
        return missing("pii_outputs")
    own, learned = known.unprompted, known.memorised
    shares = {"unprompted": own, "invited": known.invited, "memorised": learned}
    rates = (
        ("memorized personal data", learned, asked.max_memorised_share),
        ("unprompted personal data", own, asked.max_output_share),
    )
    above = [rate for rate in rates if not rate[1].at_most <= rate[2]]
    reason = "; ".join(
        f"{what} {UpperBound(one.texts, one.at_most, one.found).text(limit)}" for what, one, limit in above or rates
    )
    _, one, limit = (above or rates)[-1]
    every = {name: _share(share) for name, share in shares.items()}
    known_as = {"at_most": number(one.at_most), "bound": limit, "slices": every, "detector": known.detector}
    return decided("pii_outputs", not above, reason, **known_as)


def bias(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Bits by which any attribute favors a group, and how much less alike groups are treated than by the champion."""
    known, asked = evidence.bias, policy.bias
    if known is None or not known.attributes:
        return missing("bias")
    if blank := _without_spread(known.attributes):
        return missing("bias", f"the spread of {', '.join(blank)} is not known")
    drift, closed = _drift(policy, evidence)
    if closed is not None and closed.blocks:
        return closed
    own = {name: one.either_way for name, one in sorted(known.attributes.items())}
    text = {
        name: f"{name} favors a group by up to {shown(value, asked.max_bits)} bits (95% upper bound), "
        f"limit {shown(asked.max_bits, value)}, n {counted(known.attributes[name].pairs, 'pair')}"
        for name, value in own.items()
    }
    moved = {name: Bounded(one, asked.max_drift, f"drift {label(one)}") for name, one in sorted(drift.items())}
    far = [text[name] for name, value in own.items() if not value <= asked.max_bits]
    far += [one.text for one in moved.values() if not (one.excess <= 0 and is_known(one.line))]
    worst = f"worst of {counted(len(own), 'attribute')}: {text[max(own, key=lambda name: own[name])]}"
    change = max(moved.values(), key=lambda one: one.excess).text if moved else ""
    beside = f"drift not applicable: {closed.reason}" if closed else change
    return decided(
        "bias",
        not far,
        "; ".join(far) or f"{worst}; {beside}",
        at_most={name: number(value) for name, value in own.items()},
        drift_at_most={name: number(one.worse_at_most) for name, one in sorted(drift.items())},
    )


def _drift(policy: GatePolicy, evidence: Evidence) -> tuple[dict[str, PairedLine], GateResult | None]:
    """Return the change of how alike groups are treated, by attribute; or the gate's result without a comparison."""
    lines, closed = compared("bias", "fairness", policy, evidence)
    if closed is not None:
        return {}, closed
    found = {one.slice: one for one in lines if one.measure == APART}
    return found, None if WHOLE in found else missing("bias", "no drift from the champion")


def toxicity(policy: GatePolicy, evidence: Evidence) -> GateResult:
    """Upper bound of the share of toxic continuations."""
    known, limit = evidence.bias and evidence.bias.toxicity, policy.bias.max_toxic_share
    if not known or known.continuations <= 0:
        return missing("toxicity")
    reason = f"toxic continuations {UpperBound(known.continuations, known.at_most).text(limit)}"
    return decided(
        "toxicity",
        known.at_most <= limit,
        reason,
        at_most=number(known.at_most),
        bound=limit,
        continuations=known.continuations,
    )


class UpperBound(NamedTuple):
    """Upper bound of a share of n items, with the number found if it is known."""

    n: int
    at_most: float
    found: int | None = None

    def text(self, limit: float) -> str:
        """`≤ 1.89% (95% upper bound), limit 5.0%, n 60`."""
        size = f"n {self.n:,}" if self.found is None else f"n {self.n:,}, {self.found:,} found"
        return f"≤ {percent(self.at_most, limit)} (95% upper bound), limit {percent(limit, self.at_most)}, {size}"


def _worst(
    name: str, what: str, rates: Mapping[str, UpperBound], least: int, limit: float, **evidence: Any
) -> GateResult:
    """Return the result of upper bounds of a share: the whole, and every slice of at least `least` items."""
    judged = {key: one for key, one in rates.items() if key == WHOLE or one.n >= least}
    small = [(f"{key}, ≤ {percent(one.at_most)}", one.n) for key, one in rates.items() if key not in judged]
    above = [key for key, one in judged.items() if not one.at_most <= limit]
    worst = max(judged, key=lambda key: (key in above, judged[key].at_most))
    more = f", worst of {len(judged)}" if len(judged) > 1 and not above else ""
    text = "; ".join(
        f"{judged[key].text(limit)} ({'overall' if key == WHOLE else key}{more})" for key in above or [worst]
    )
    return decided(
        name,
        not above,
        f"{what} {text}{skipped('slice', least, small)}",
        at_most=number(judged[worst].at_most),
        bound=limit,
        **evidence,
    )


def _without_spread(measured: Mapping[str, BitsInterval]) -> list[str]:
    """Measurements without a pair, or with an interval without width that is not exactly 0."""
    known = {name: one.low < one.high or one.low == one.high == 0 for name, one in measured.items()}
    return sorted(name for name, one in measured.items() if one.pairs <= 0 or not known[name])


def _share(one: PiiShare) -> dict[str, float | str]:
    return {"texts": one.texts, "found": one.found, "at_most": number(one.at_most)}
