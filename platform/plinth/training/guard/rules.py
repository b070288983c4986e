"""Rules of the guard and their records: published heuristics for loss and gradient norm, and limits on the text of a
batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plinth.errors import RecipeError
from plinth.records import Frozen
from plinth.tokens.reading.compact_batch import FACTS, CompactBatch, row_facts
from plinth.training.parameters.guard import BatchScreening, GuardParameters, IdleExperts, LayerRule, Throughput

Rule = Literal[
    "nonfinite", "loss_spike", "gradient_spike", "layer_gradient", "activations", "idle_experts", "plateau",
    "throughput", "duplicate_ngrams", "top_ngram", "entropy", "streams", "corruption",
]  # fmt: skip

#: Actions from the mildest to the most severe. If several rules demand an action at a step, the most severe is taken.
ACTIONS = ("warn", "skip", "lower_lr", "rollback", "stop")


class Finding(Frozen):
    """One rule's finding that a step is suspicious.

    Attributes:
        value, threshold: value of the step, and its limit; for a screening rule, fractions of the step's rows.
        bound: limit for a single row, if the rule judges rows.
    """

    rule: Rule
    value: float
    threshold: float
    layer: str | None = None
    bound: float | None = None


class TrainedStep(Frozen):
    """Record of one trained step, the same on all ranks.

    Attributes:
        vetoed: True if the update was skipped.
        screened: findings of the screening rules that found the batch suspicious.
        gradients, activations: values of each layer, if measured.
        idle_experts: share of idle experts in each sparse layer, if measured.
    """

    step: int
    loss: float
    grad_norm: float
    vetoed: bool = False
    screened: tuple[Finding, ...] = ()
    gradients: Mapping[str, float] | None = None
    activations: Mapping[str, float] | None = None
    idle_experts: Mapping[str, float] | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Limits(Frozen):
    """Limits of a step. A loss or gradient norm above its limit is suspicious. A value with an infinite limit is not
    judged yet.

    Attributes:
        rows: maximum number of rows that are allowed to violate a screening bound.
    """

    loss: float = math.inf
    grad_norm: float = math.inf
    rows: float = math.inf


class Intervention(Frozen):
    """An intervention of the guard, as logged on the timeline.

    Attributes:
        step: step of the decision.
        first, last: range of affected steps; a rollback skips them. It skips none if `last` is before `first`.
        factor: factor of the learning rate after `last`.
        bound: limit for a single row, if the rule judges rows.
        number: number of this intervention among the run's interventions with the same action, from 1.
        reason: reason why the action is more severe than the rule's configured action.
    """

    step: int
    rule: Rule
    action: Literal["warn", "skip", "lower_lr", "rollback", "stop"]
    value: float
    threshold: float
    first: int
    last: int
    number: int = 1
    factor: float = 1.0
    layer: str | None = None
    bound: float | None = None
    reason: str = ""

    def event(self) -> dict[str, Any]:
        """Return the fields of the intervention's event."""
        return self.model_dump(mode="json", exclude={"first", "last"}) | {"window": [self.first, self.last]}

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Intervention:
        """Return the intervention that an event records. Numbers that JSON cannot represent are text in the event."""
        first, last = event["window"]
        fields = {name: event[name] for name in cls.model_fields if name in event}
        return cls(
            **{**fields, "value": float(event["value"]), "threshold": float(event["threshold"])}, first=first, last=last
        )


# Published heuristics as functions from numbers to a limit or a finding; rolling window; throughput rule.

# A rolling window of numbers. Its level and spread are robust to spikes and to the trend.
#
# Level is the median of the newest numbers. Spread is the median absolute difference of neighbors, scaled to the
# standard deviation of normal noise: medians instead of means, so up to half of the window may be spikes (Leys et al.
# 2013, doi:10.1016/j.jesp.2013.03.013), and differences instead of deviations, so a loss that falls fast does not look
# like a noisy one (von Neumann et al. 1941, doi:10.1214/aoms/1177731677).

#: Ratio of standard deviation to median absolute value of normal noise: 1 / 0.6745. Differences have twice the
#: variance.
DIFFERENCE_TO_SIGMA = 1.4826 / math.sqrt(2)

#: The level covers the newest quarter of the window, but at least this many numbers.
LEVEL_SHARE, LEVEL_MINIMUM = 4, 8


class Rolling:
    """Rolling window over the newest `size` numbers."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._values: deque[float] = deque(values, maxlen=size)
        self._newest = max(LEVEL_MINIMUM, size // LEVEL_SHARE)

    def add(self, value: float) -> None:
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> list[float]:
        """Numbers in the window, oldest first."""
        return list(self._values)

    @property
    def level(self) -> float:
        """Median of the numbers in the window."""
        return float(median(self.values[-self._newest :]))

    @property
    def sigma(self) -> float:
        """Robust standard deviation around the trend; 0 for fewer than two numbers."""
        steps = [abs(after - before) for before, after in pairwise(self._values)]
        return DIFFERENCE_TO_SIGMA * float(median(steps)) if steps else 0.0


# Published heuristics as functions from numbers to a limit or a finding.
#
# Sources of the rules:
#
#     PaLM (arXiv:2204.02311, 5.1)      restart about 100 steps before a loss spike and leave out 200 to 500 batches
#     OPT (arXiv:2205.01068, 2.5)       when the loss diverged: lower the learning rate, restart from before; preceded
#                                       by growing activations of the last layer
#     GLM-130B (arXiv:2210.02414, 3.1)  the gradient of one layer (the embedding's) is abnormal some steps before
#     OLMo-core, SkipStepOptimizer      no update when loss or gradient norm is 6 standard deviations above its mean
#                                       of the last 128 steps
#     OLMo 2 (arXiv:2501.00656)         gradient spikes precede loss spikes; outliers over a rolling 1,000 steps
#     ZClip (arXiv:2504.02507)          z-score of the gradient norm over its moving average, 25 steps of warm-up
#     AdaGC (arXiv:2502.11034)          a bound for each parameter relative to its own history

#: Window of a layer's measurements, and the minimum number before it judges.
LAYER_WINDOW, LAYER_MINIMUM = 32, 4


def limits(policy: GuardParameters, losses: Rolling, norms: Rolling) -> Limits:
    """Return the limits above which a step is suspicious: level plus `sigmas` robust deviations of the previous steps.

    If the spread is almost 0, every small change would be a spike. The loss must therefore rise by a minimum number of
    nats, and the norm by a minimum ratio.
    """
    if len(losses) < policy.min_steps:
        return Limits()
    loss, gradient = policy.loss_spike, policy.gradient_spike
    return Limits(
        loss=losses.level + max(loss.sigmas * losses.sigma, loss.min_rise),
        grad_norm=max(norms.level + gradient.sigmas * norms.sigma, gradient.min_ratio * norms.level),
    )


def judge(seen: TrainedStep, limit: Limits) -> list[Finding]:
    """Return the findings on the loss and the global gradient norm of a step."""
    if not seen.finite:
        value = seen.loss if not math.isfinite(seen.loss) else seen.grad_norm
        return [Finding(rule="nonfinite", value=value, threshold=math.inf)]
    found = []
    if seen.loss > limit.loss:
        found.append(Finding(rule="loss_spike", value=seen.loss, threshold=limit.loss))
    if seen.grad_norm > limit.grad_norm:
        found.append(Finding(rule="gradient_spike", value=seen.grad_norm, threshold=limit.grad_norm))
    return found


def judge_layers(
    rule: LayerRule, name: Rule, measured: Mapping[str, float] | None, history: dict[str, Rolling]
) -> Finding | None:
    """Return the finding for the layer that is furthest outside its usual range, or None. Add the measurement to the
    history."""
    worst: Finding | None = None
    for layer, value in (measured or {}).items():
        window = history.setdefault(layer, Rolling(LAYER_WINDOW))
        if len(window) >= LAYER_MINIMUM:
            bound = rule.ratio * window.level
            if value > bound and (worst is None or value / bound > worst.value / worst.threshold):
                worst = Finding(rule=name, value=value, threshold=bound, layer=layer)
        if math.isfinite(value):
            window.add(value)
    return worst


def judge_experts(rule: IdleExperts, measured: Mapping[str, float] | None) -> Finding | None:
    """Return the finding for the layer with the largest share of idle experts, or None if no layer has too many."""
    layer = max(measured, key=measured.__getitem__) if measured else None
    if measured is None or layer is None or measured[layer] <= rule.share:
        return None
    return Finding(rule="idle_experts", value=measured[layer], threshold=rule.share, layer=layer)


# Throughput: steps that take much longer than before.
#
# Time is not a function of the data, so this rule has no state in a checkpoint, and its only actions are warn and
# stop. The seconds are the mean over ranks, shared by all ranks, so they warn and stop together.

#: Number of first steps of a process that are not judged, since kernels are compiled and caches are cold.
WARM_UP = 10


class ThroughputRule:
    """Rule that judges the seconds per token of every step. It does not judge seconds per step, because batches may
    grow."""

    def __init__(self, policy: Throughput, window_steps: int) -> None:
        self.policy, self._window = policy, Rolling(window_steps)
        self._seen = self._streak = 0

    def record(self, step: int, tokens: int, seconds: float) -> list[Intervention]:
        """Judge the speed of a step and return the interventions."""
        self._seen += 1
        if self.policy.action == "off" or self._seen <= WARM_UP or seconds <= 0:
            return []
        rate, slow = tokens / seconds, False
        if len(self._window) >= WARM_UP:
            slow = rate < self.policy.ratio * self._window.level
        self._streak = self._streak + 1 if slow else 0
        bound = self.policy.ratio * self._window.level if slow else 0.0
        self._window.add(rate)
        if self._streak != self.policy.confirmations:
            return []
        first = step - self._streak + 1
        return [
            Intervention(
                step=step,
                rule="throughput",
                action=self.policy.action,
                value=rate,
                threshold=bound,
                first=first,
                last=step,
            )
        ]


# Screening: judge the text of a batch before its update, by bounds in the guard's policy.
#
#     loader's thread: token ids ─► facts of each row ─► rows that violate a bound, by rule        numbers of this rank
#     device:          sum over ranks, with loss and fingerprint ─► more than the policy's share? ─► no update
#     host:            the same sums ─► findings ─► an intervention that names rule, share, bound, rows and documents
#
# A count of rows is exact on any number of ranks, and a bound has no history: the same batches are skipped on every
# rank, in every layout and after any resume. Loss and gradient of a skipped batch are not judged, and do not enter the
# levels of other steps.
#
# Does not belong here: the facts (tokens.reading.compact_batch), skipping of an update (skipped_update).

#: Rules of screening: one per fact of rows, and the streams of rows.
TEXT_RULES = (*FACTS, "streams")

#: Counts of a rank without rows of its own.
NONE_BROKEN = (0,) * len(TEXT_RULES)


def values(policy: BatchScreening, batch: CompactBatch, streams: Sequence[str] = ()) -> NDArray[np.float64]:
    """Return one number per screening rule and sequence [B, TEXT_RULES].

    The numbers are text statistics, and for the rule `streams` 1 if the sequence's stream is screened, otherwise 0.

    Args:
        streams: name of each sequence's stream; empty if a source has no streams.
    """
    named = np.zeros(len(batch))
    if policy.streams and streams:
        known = {name: float(_is_named(policy, name)) for name in set(streams)}
        named[:] = [known[name] for name in streams]
    judged = any(getattr(policy, fact) is not None for fact in FACTS)
    facts = row_facts(batch) if judged else np.zeros((len(batch), len(FACTS)))
    return np.column_stack([facts, named])


def breaking(policy: BatchScreening, found: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask [B, TEXT_RULES] that is True where a sequence violates a rule's bound."""
    duplicate, top, entropy = (found[:, FACTS.index(fact)] for fact in FACTS)
    return np.column_stack(
        [
            duplicate > _or(policy.duplicate_ngrams, math.inf),
            top > _or(policy.top_ngram, math.inf),
            entropy < _or(policy.entropy, -math.inf),
            found[:, TEXT_RULES.index("streams")] > 0,
        ]
    )


def count_broken(policy: BatchScreening, batch: CompactBatch, streams: Sequence[str] = ()) -> tuple[int, ...]:
    """Return, for each screening rule, the number of sequences that violate its bound."""
    return tuple(breaking(policy, values(policy, batch, streams)).sum(axis=0).tolist())


def limit_of(policy: BatchScreening | None, rows: int) -> float:
    """Return the maximum number of rows that may violate a bound without the update being skipped."""
    return math.inf if policy is None or policy.action == "warn" else policy.rows * rows


def findings(policy: BatchScreening, counts: Sequence[int], rows: int) -> tuple[Finding, ...]:
    """Return the findings of the rules that judge a batch suspicious, each with the fraction of rows over the limit.

    Args:
        counts: number of rows on all ranks that violate the bound of each rule.
        rows: number of rows on all ranks.
    """
    return tuple(
        Finding(rule=rule, value=broken / rows, threshold=policy.rows, bound=bound(policy, rule))
        for rule, broken in zip(TEXT_RULES, counts, strict=True)
        if broken > policy.rows * rows
    )


def bound(policy: BatchScreening, rule: str) -> float | None:
    """Return a screening rule's limit for a single row. Return None for the rule `streams`, which has no limit."""
    return None if rule == "streams" else getattr(policy, rule)


def require_streams(policy: BatchScreening, streams: Sequence[str]) -> None:
    """Raise an error if a screening policy names a stream that the run does not have.

    Raises:
        RecipeError: a listed name matches no stream of the run.
    """
    unknown = [name for name in policy.streams if not any(fnmatchcase(stream, name) for stream in streams)]
    if unknown:
        raise RecipeError(
            "training.guard.screening.streams matches no stream of the run",
            found=", ".join(unknown),
            expected=", ".join(streams),
            remedy="list streams, or patterns of streams such as `web/language=*`",
        )


def broken_rows(
    policy: BatchScreening, batch: CompactBatch, streams: Sequence[str], rule: Any
) -> list[tuple[int, float]]:
    """Return the index and value of each sequence that violates a rule's bound, the most extreme first."""
    found, place = values(policy, batch, streams), TEXT_RULES.index(rule)
    rows = np.flatnonzero(breaking(policy, found)[:, place]).tolist()
    rows.sort(key=lambda row: (found[row, place] if rule == "entropy" else -found[row, place], row))
    return [(row, float(found[row, place])) for row in rows]


def _is_named(policy: BatchScreening, stream: str) -> bool:
    return any(fnmatchcase(stream, name) for name in policy.streams)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
