"""Trial of a canary. This module decides if the canary is withdrawn, stays on trial, or can become champion. The
decision is a pure function of the canary's values paired with the champion's.

    feeds   pairs from the metrics of the release owner: JSON lines, or two queries; pairs are kept between checks, and
            rejects are counted
    watch   values signed by the evaluator; one check of the canary and its consequences
    page    page of the trial, with a curve per stream

A pair has one value of the canary and one of the champion on the same document or request, in a named *stream* (a
slice, a probe, a metric). Each stream has a sequential test of

    worse = canary - champion - margin |champion|        (canary and champion swapped if higher is better)

that may be evaluated after every pair (`plinth.evaluation.statistics.Sequential`). Streams share the error rate: the
stream at position k gets alpha / (k (k + 1)), which sums to at most alpha for any number of streams. Positions are
unique in a trial: signed measurements get odd positions and the owner's metrics even positions, so that adding one kind
does not shift the other.

Code that moves a version does not belong here (see `plinth_registry.promotion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.evaluation.statistics import Estimate, Sequential
from plinth.records import Frozen
from plinth_registry.gates.settings import TrialPolicy

Decision = Literal["continue", "return", "promote"]
#: Role of a stream: `measured` is signed evidence on the whole held-out text, and promotion requires it. `guard` (a
#: slice or probe) and `metric` (unsigned) can only block promotion or withdraw the canary.
Role = Literal["measured", "guard", "metric"]
#: Maximum number of points per curve on the page.
POINTS = 120


class PairedStream(NamedTuple):
    """Paired values of canary and champion, in order of evaluation.

    `values` are pairs (canary, champion) of finite numbers, in the stream's own unit.
    """

    name: str
    values: Sequence[tuple[float, float]]
    place: int = 1
    role: Role = "measured"
    higher_is_better: bool = False


class StreamTrial(Frozen):
    """Result of one stream of a canary trial. `worse` is the mean loss beyond the margin, with an always-valid
    interval.

    If there are no observations, `worse` and the champion's mean are None. `decided_at` is the number of the pair that
    decided the withdrawal.
    """

    name: str
    role: Role
    decision: Decision
    worse: Estimate | None = None
    champion: float | None = None
    decided_at: int | None = None

    @property
    def sentence(self) -> str:
        """Result of the stream as a sentence."""
        if self.worse is None:
            return f"{self.name}: no observations"
        found = {"return": "worse than the margin", "promote": "within the margin", "continue": "undecided"}
        low, high = self.worse.low, self.worse.high
        shown = f"beyond the margin {self.worse.value:+.4g} [{low:+.4g}, {high:+.4g}]"
        return f"{self.name}: {found[self.decision]} after {self.worse.n}; {shown}, champion {self.champion:.4g}"


class EvidencePoint(NamedTuple):
    """Mean loss beyond the margin with its always-valid interval, after a number of pairs."""

    pairs: int
    value: float
    low: float
    high: float


class Trial(Frozen):
    """State of a canary trial after all observations."""

    decision: Decision
    streams: tuple[StreamTrial, ...] = ()

    @property
    def reason(self) -> str:
        """Results of the streams that decided the canary trial, as text."""
        own = [one.sentence for one in self.streams if one.decision == self.decision]
        return "; ".join(own) or "no observations"


class FeedCount(Frozen):
    """Number of observations of one of the owner's metrics: pairs, lines from before the trial, and rejects by reason.
    `fault` is the reason why the feed could not be read further."""

    pairs: int
    earlier: int
    rejects: Mapping[str, int]
    fault: str


class CanaryStatus(Frozen):
    """State of a canary trial: the canary with all its observations and the decision that follows from them.

    `number` is the release record that started the canary. `since` is the time when its comparison with this champion
    started (UTC). `small` lists the streams with too few pairs. `missing` is the reason why signed measurements could
    not be paired.
    """

    release: str
    canary: str
    champion: str | None
    candidate_version: str | None
    number: int
    since: str
    policy: str
    trial: Trial
    small: tuple[str, ...] = ()
    missing: str = ""
    manifests: Mapping[str, str] = {}
    feeds: Mapping[str, FeedCount] = {}

    @property
    def next(self) -> str:
        """Next decision about the canary and its condition, as text."""
        if self.champion is None:
            return "no champion to compare with: promote or withdraw the canary by hand"
        if self.trial.decision == "return":
            return "will be withdrawn"
        if self.trial.decision == "promote":
            promote = f"`plinth release promote {self.candidate_version} --by PERSON --reason TEXT`"
            return f"the canary may become champion: {promote} evaluates its gates again"
        open_ = [one.name for one in self.trial.streams if one.role != "guard" and one.decision == "continue"]
        waits = f"undecided: {', '.join(open_)}" if open_ else f"no signed evidence: {self.missing}"
        return f"{waits}; the canary is withdrawn if any stream is worse than the margin"


def judge(policy: TrialPolicy, observed: Iterable[PairedStream]) -> Trial:
    """Return the decision about the canary after all values, as if the test had been evaluated after each value in
    order.

    A single stream that is worse than the margin withdraws the canary. The canary can become champion if all streams
    except guards are within the margin, and at least one of these streams is measured.

    Raises:
        ValueError: a value is not finite.
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
    """Return the mean loss beyond the margin and its interval after up to `POINTS` different numbers of pairs. The
    number of pairs at the decision is included."""
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
    """Return each pair's loss beyond the margin."""
    canary, champion = np.asarray(stream.values, np.float64).reshape(-1, 2).T
    more = stream.higher_is_better or stream.name in policy.higher_is_better
    found: NDArray[np.float64] = (champion - canary if more else canary - champion) - policy.margin * np.abs(champion)
    return found


def _test(policy: TrialPolicy, stream: PairedStream) -> Sequential:
    level = 1 - (1 - policy.level) / (stream.place * (stream.place + 1))
    return Sequential(level=level, first_look=policy.least)


def _decision(test: Sequential) -> Decision:
    """Return the decision for a stream. Once a stream is worse than the margin, the decision no longer changes."""
    if test.exceeded:
        return "return"
    # `decided` is also checked, because constant values give an interval without width, which proves nothing.
    within = test.decided and test.estimate.high < 0
    return "promote" if within else "continue"


def _first_exceeding(test: Sequential, worse: NDArray[np.float64]) -> int:
    """Return the number of the first pair at which the test rejected "loss beyond the margin is at most 0". Bisection
    finds it because a rejection is permanent."""
    low, high = 0, len(worse)
    while high - low > 1:
        middle = (low + high) // 2
        grown = test.add(worse[low:middle])
        low, high, test = (low, middle, test) if grown.exceeded else (middle, high, grown)
    return high
