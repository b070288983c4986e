"""The trial of a canary. This module decides if it is withdrawn, continues, or may become champion, as a pure function
of values paired with the champion's.

    feeds   pairs from the owner's metrics: lines of JSON, or two queries; kept between checks, rejects are counted
    watch   values signed by the evaluator; one check of the canary and its consequences

A pair is one value of the canary and one of the champion on the same document or request, in a named *stream* (a slice,
a probe, a metric). Each stream has a sequential test of

    worse = canary - champion - margin |champion|        (canary and champion swapped where more is better)

that may be evaluated after every pair (`plinth.evaluation.statistics.Sequential`). Streams share the error:
position k has alpha / (k (k + 1)), which sums to alpha for any number of positions. Positions are unique in a trial:
signed measurements have odd ones, the owner's metrics even ones, so that neither shifts the other.

Does not belong here: moving a version (`plinth_registry.promotion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.evaluation.statistics import Estimate, Sequential
from plinth.records import Frozen
from plinth_registry.gates.settings import TrialPolicy

Decision = Literal["continue", "return", "promote"]
#: Role of a stream: `measured` is signed evidence on the whole, required for promotion; `guard` (a part of the whole)
#: and `metric` (unsigned) can only block promotion or withdraw.
Role = Literal["measured", "guard", "metric"]
#: Maximum number of points of a curve on the page.
POINTS = 120


class PairedStream(NamedTuple):
    """Paired values of canary and champion, in order of evaluation.

    `values` are (canary, champion), finite, in the stream's own unit.
    """

    name: str
    values: Sequence[tuple[float, float]]
    place: int = 1
    role: Role = "measured"
    higher_is_better: bool = False


class StreamTrial(Frozen):
    """Result of one stream: `worse` is the mean beyond the margin, with an always-valid interval.

    `worse` and the champion's mean are None without observations; `decided_at` is the pair that decided the
    withdrawal.
    """

    name: str
    role: Role
    decision: Decision
    worse: Estimate | None = None
    champion: float | None = None
    decided_at: int | None = None

    @property
    def sentence(self) -> str:
        """Finding in words."""
        if self.worse is None:
            return f"{self.name}: no observations"
        found = {"return": "worse than the margin", "promote": "within the margin", "continue": "undecided"}
        low, high = self.worse.low, self.worse.high
        shown = f"beyond the margin {self.worse.value:+.4g} [{low:+.4g}, {high:+.4g}]"
        return f"{self.name}: {found[self.decision]} after {self.worse.n}; {shown}, champion {self.champion:.4g}"


class EvidencePoint(NamedTuple):
    """Mean beyond the margin with its always-valid interval, after a number of pairs."""

    pairs: int
    value: float
    low: float
    high: float


class Trial(Frozen):
    """State of a trial after all observations."""

    decision: Decision
    streams: tuple[StreamTrial, ...] = ()

    @property
    def reason(self) -> str:
        """Findings of the deciding streams."""
        own = [one.sentence for one in self.streams if one.decision == self.decision]
        return "; ".join(own) or "no observations"


def judge(policy: TrialPolicy, observed: Iterable[PairedStream]) -> Trial:
    """Return the decision after these values in order, as if evaluated after each.

    One stream that is worse than the margin withdraws the canary. It may become champion if all streams except guards
    are within the margin, and at least one of them is measured.

    Raises:
        ValueError: a value that is not finite.
    """
    streams = tuple(_stream(policy, one) for one in observed)
    if any(one.decision == "return" for one in streams):
        return Trial(decision="return", streams=streams)
    asked = [one for one in streams if one.role != "guard"]
    within = all(one.decision == "promote" for one in asked) and any(one.role == "measured" for one in asked)
    return Trial(decision="promote" if within else "continue", streams=streams)


def evidence_curve(
    policy: TrialPolicy, stream: PairedStream, decided_at: int | None = None
) -> tuple[EvidencePoint, ...]:
    """Return mean and interval beyond the margin at up to `POINTS` pairs, including the deciding pair."""
    worse, found, before = _worse(policy, stream), [], 0
    test, looks = _test(policy, stream), np.linspace(min(policy.least, len(worse)), len(worse), POINTS)
    for upto in sorted({*map(int, looks), decided_at or 0} - {0}):
        test, before = test.add(worse[before:upto]), upto
        now = test.estimate
        found.append(EvidencePoint(upto, now.value, now.low, now.high))
    return tuple(found)


def _stream(policy: TrialPolicy, stream: PairedStream) -> StreamTrial:
    if not len(stream.values):
        return StreamTrial(name=stream.name, role=stream.role, decision="continue")
    worse = _worse(policy, stream)
    test = _test(policy, stream).add(worse)
    decision = _decision(test)
    return StreamTrial(
        name=stream.name,
        role=stream.role,
        decision=decision,
        worse=test.estimate,
        champion=sum(champion for _, champion in stream.values) / len(stream.values),
        decided_at=_first_exceeding(_test(policy, stream), worse) if decision == "return" else None,
    )


def _worse(policy: TrialPolicy, stream: PairedStream) -> NDArray[np.float64]:
    """Return the loss beyond the margin of each pair."""
    canary, champion = np.asarray(stream.values, np.float64).reshape(-1, 2).T
    more = stream.higher_is_better or stream.name in policy.higher_is_better
    found: NDArray[np.float64] = (champion - canary if more else canary - champion) - policy.margin * np.abs(champion)
    return found


def _test(policy: TrialPolicy, stream: PairedStream) -> Sequential:
    level = 1 - (1 - policy.level) / (stream.place * (stream.place + 1))
    return Sequential(level=level, first_look=policy.least)


def _decision(test: Sequential) -> Decision:
    """Return the decision of a stream. Once worse, it stays worse."""
    if test.exceeded:
        return "return"
    # also `decided`, because constant values give an interval without width, which proves nothing
    within = test.decided and test.estimate.high < 0
    return "promote" if within else "continue"


def _first_exceeding(test: Sequential, worse: NDArray[np.float64]) -> int:
    """Return the first pair at which the test rejected "at most 0", by bisection, since it stays rejected."""
    low, high = 0, len(worse)
    while high - low > 1:
        middle = (low + high) // 2
        grown = test.add(worse[low:middle])
        low, high, test = (low, middle, test) if grown.exceeded else (middle, high, grown)
    return high
