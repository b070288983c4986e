"""Values that gates read (facts) from the asset `memorisation/canaries`, and the gate `canaries`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.evaluation.measurement import Measurement, Stats, release_gate, single
from plinth.extensions import late
from plinth.records import Frozen
from plinth.text import counted
from plinth_registry.gates import GateResult, decided, missing, number, shown
from plinth_registry.gates.facts import Evidence


class CanaryPolicy(Frozen):
    """Limits on canary exposure, by the number of repetitions in the training data.

    A model memorizes text that is repeated 64 times. Text that is planted once must look unseen.
    """

    min_p: Mapping[int, float] = Field(
        {1: 0.001}, min_length=1, description="Minimum allowed p-value of canary exposure, by number of repetitions."
    )
    max_epsilon: float = Field(8.0, gt=0, description="Maximum allowed value of the measured lower bound on epsilon.")


class CanaryFacts(Frozen):
    """Measured exposure of planted texts, read by the gate `canaries`."""

    planted: int
    p_values: Mapping[int, float] = Field(
        description="P-value of canary exposure under no memorization, by number of repetitions."
    )
    epsilon: float = Field(description="Lower bound on the epsilon of the run.")


def read(stats: Stats) -> CanaryFacts:
    """Return facts from the stats of the canary asset: p-values by repetitions, and the lower bound on epsilon."""
    from plinth_audit.canaries import audit

    groups = {int(name): group for name, group in stats["groups"].items() if group["canaries"]}
    return CanaryFacts(
        planted=stats["planted"],
        p_values={count: audit.p_value_of_group(group) for count, group in groups.items()},
        epsilon=stats["audit"]["epsilon"],
    )


def canaries(asked: CanaryPolicy, evidence: Evidence) -> GateResult:
    """Require that the model does not score rarely repeated planted texts (canaries) better than texts that it never
    saw, and that the lower bound on the differential-privacy epsilon is within its limit."""
    known = evidence.of("memorisation_canaries", CanaryFacts)
    if not known or known.planted <= 0:
        return missing("canaries")
    unseen = sorted(set(asked.min_p) - set(known.p_values))
    if unseen:
        return missing("canaries", f"no canary was planted {', '.join(map(str, unseen))} times")
    known_p = {count: known.p_values[count] for count in sorted(asked.min_p)}
    exposed = [count for count, p in known_p.items() if not p >= asked.min_p[count]]
    text = {
        count: f"exposure p-value of canaries with {counted(count, 'repetition')}: {shown(p, least)} "
        f"(minimum {shown(least, p)})"
        for count, p in known_p.items()
        for least in (asked.min_p[count],)
    }
    bound = asked.max_epsilon
    limit = f"{shown(known.epsilon, bound)} (maximum {shown(bound, known.epsilon)})"
    epsilon = f"lower bound on the differential-privacy epsilon: {limit}"
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


MEASUREMENT = Measurement(
    name="memorisation_canaries",
    description="Exposure of canaries planted in training text.",
    asset="memorisation/canaries",
    stages=late("plinth_audit.canaries.job:stages"),
    key="corpus.canaries",
    facts=CanaryFacts,
    read=single(read),
    recount=late("plinth_audit.canaries.job:recount"),
    pairs=late("plinth_audit.canaries.job:pairs"),
    headings={"memorisation": "Memorisation"},
    section=late("plinth_audit.canaries.job:section"),
    position=6,
)

GATE = release_gate(canaries, CanaryPolicy, "canaries", ("memorisation_canaries",))
