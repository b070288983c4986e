"""The published heuristics, each a function from numbers to a limit or a finding; the window of numbers that they rest
on; and the rule for steps that take much longer than they did.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import median

from plinth.training.guard.records import Finding, Intervention, Limits, Rule, TrainedStep
from plinth.training.parameters.guard import GuardParameters, LayerRule, Throughput

# A window of numbers with its level and spread, both robust to spikes and to the trend.
#
# Level is the median of the newest numbers. Spread is the median absolute difference of neighbours, scaled to the
# standard deviation of normal noise: medians instead of means, so up to half of the window may be spikes and need
# not be kept out (Leys et al. 2013, doi:10.1016/j.jesp.2013.03.013), and differences instead of deviations, so that
# a loss that falls fast does not look like a noisy one (von Neumann et al. 1941, doi:10.1214/aoms/1177731677).

#: Median absolute value of normal noise to its standard deviation: 1 / 0.6745. Differences have twice the variance.
DIFFERENCE_TO_SIGMA = 1.4826 / math.sqrt(2)

#: The level is that of the newest quarter of the window, of these many numbers at least.
LEVEL_SHARE, LEVEL_MINIMUM = 4, 8


class Rolling:
    """The newest `size` numbers."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._values: deque[float] = deque(values, maxlen=size)
        self._newest = max(LEVEL_MINIMUM, size // LEVEL_SHARE)

    def add(self, value: float) -> None:
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._values)

    @property
    def level(self) -> float:
        """Median of the newest numbers."""
        return float(median(self.values[-self._newest :]))

    @property
    def sigma(self) -> float:
        """Robust standard deviation around the trend; 0 for fewer than two numbers."""
        steps = [abs(after - before) for before, after in pairwise(self._values)]
        return DIFFERENCE_TO_SIGMA * float(median(steps)) if steps else 0.0


# The published heuristics, each a function from numbers to a limit or a finding.
#
# The projects and papers that the rules follow:
#
#     PaLM (arXiv:2204.02311, 5.1)      restart about 100 steps before a loss spike and leave out 200 to 500 batches
#     OPT (arXiv:2205.01068, 2.5)       when the loss diverged: lower the learning rate, restart from before; growing
#                                       activations of the last layer announced it
#     GLM-130B (arXiv:2210.02414, 3.1)  the gradient of one layer (the embedding's) is abnormal some steps before
#     OLMo-core, SkipStepOptimizer      no update when loss or gradient norm is 6 standard deviations above its mean
#                                       of the last 128 steps
#     OLMo 2 (arXiv:2501.00656)         gradient spikes precede loss spikes; outliers over a rolling 1,000 steps
#     ZClip (arXiv:2504.02507)          z-score of the gradient norm over its moving average, 25 steps of warm-up
#     AdaGC (arXiv:2502.11034)          a bound for each parameter relative to its own history

#: Measurements of a layer that its median covers, and that are needed before it judges.
LAYER_WINDOW, LAYER_MINIMUM = 32, 4


def limits(policy: GuardParameters, losses: Rolling, norms: Rolling) -> Limits:
    """Limits above which a step is suspicious: level and `sigmas` robust deviations of the steps before it.

    A spread of nearly nothing would make every ripple a spike, so loss has to rise by nats and norm by a ratio too.
    """
    if len(losses) < policy.min_steps:
        return Limits()
    loss, gradient = policy.loss_spike, policy.gradient_spike
    return Limits(
        loss=losses.level + max(loss.sigmas * losses.sigma, loss.min_rise),
        grad_norm=max(norms.level + gradient.sigmas * norms.sigma, gradient.min_ratio * norms.level),
    )


def judge(seen: TrainedStep, limit: Limits) -> list[Finding]:
    """Findings about the loss and the global gradient norm of a step."""
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
    """The layer that is furthest out of its own range, if any; the measurement joins its history."""
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


# Throughput: steps that take much longer than they did.
#
# A clock is no function of the data, so nothing of this enters a checkpoint and it may only warn or stop. The
# seconds are the mean over ranks, which all ranks share, so they warn and stop together.

#: Steps of a process that are not judged: kernels are chosen and compiled, caches are cold.
WARM_UP = 10


class ThroughputRule:
    """Judges the seconds of every step, by token: batches may grow."""

    def __init__(self, policy: Throughput, window_steps: int) -> None:
        self.policy, self._window = policy, Rolling(window_steps)
        self._seen = self._streak = 0

    def record(self, step: int, tokens: int, seconds: float) -> list[Intervention]:
        """Judge a step; the interventions it leads to."""
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
