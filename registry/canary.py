"""Whether a canary is given back, stays on trial, or may become champion: a pure function of paired observations.

An observation is one value of the canary and one of the champion on the same document or request, in a named *stream*
(a slice, a metric). Each stream has a sequential test of

    worse = canary - champion - margin |champion|        (canary and champion swapped where more is better)

that may be looked at after every observation (`plinth.evaluation.statistics.Sequential`). Streams share the error: the
k-th to appear has alpha / (k (k + 1)), which adds up to alpha for any number of them, also those that appear later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from plinth.evaluation.statistics import Estimate, Sequential
from plinth.records import Frozen
from registry.gates import TrialPolicy

Decision = Literal["continue", "return", "promote"]


class PairedValue(NamedTuple):
    """What canary and champion did with the same thing; finite, in the stream's own unit."""

    stream: str
    canary: float
    champion: float


class StreamTrial(Frozen):
    """One stream: `worse` is the mean beyond the margin, with an interval that holds at all looks together."""

    name: str
    decision: Decision
    worse: Estimate
    champion: float  # mean

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        found = {"return": "worse than the margin", "promote": "within the margin", "continue": "undecided"}
        low, high = self.worse.low, self.worse.high
        shown = f"beyond the margin {self.worse.value:+.4g} [{low:+.4g}, {high:+.4g}]"
        return f"{self.name}: {found[self.decision]} after {self.worse.n}; {shown}, champion {self.champion:.4g}"


class Trial(Frozen):
    """A canary by what was observed so far."""

    decision: Decision
    streams: tuple[StreamTrial, ...] = ()

    @property
    def reason(self) -> str:
        """The streams that decided, a sentence each."""
        own = [one.sentence for one in self.streams if one.decision == self.decision]
        return "; ".join(own) or "nothing was observed"


def judge(policy: TrialPolicy, observed: Iterable[PairedValue]) -> Trial:
    """The decision after these observations, in their order, as if one had looked after each.

    One stream that is worse than the margin gives the canary back; it may become champion when every stream is within.

    Raises:
        ValueError: a value that is not finite.
    """
    held: dict[str, list[PairedValue]] = {}
    for one in observed:
        held.setdefault(one.stream, []).append(one)
    streams = tuple(_stream(policy, place, name, pairs) for place, (name, pairs) in enumerate(held.items(), start=1))
    said = {one.decision for one in streams}
    decision: Decision = "return" if "return" in said else "promote" if said == {"promote"} else "continue"
    return Trial(decision=decision, streams=streams)


def _stream(policy: TrialPolicy, place: int, name: str, pairs: list[PairedValue]) -> StreamTrial:
    sign = -1.0 if name in policy.higher_is_better else 1.0
    level = 1 - (1 - policy.level) / (place * (place + 1))
    worse = [sign * (one.canary - one.champion) - policy.margin * abs(one.champion) for one in pairs]
    test = Sequential(level=level, first_look=policy.least).add(worse)
    champion = sum(one.champion for one in pairs) / len(pairs)
    return StreamTrial(name=name, decision=_decision(test), worse=test.estimate, champion=champion)


def _decision(test: Sequential) -> Decision:
    """A stream that was once found worse stays so: the canary should have been given back at that look."""
    if test.exceeded:
        return "return"
    # `decided` besides, because an interval of values that do not vary has no width and proves nothing.
    within = test.decided and test.estimate.high < 0
    return "promote" if within else "continue"
