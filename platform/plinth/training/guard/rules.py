"""The published heuristics, each a function from numbers to a limit or a finding.

The projects and papers that the rules follow:

    PaLM (arXiv:2204.02311, 5.1)      restart about 100 steps before a loss spike and leave out 200 to 500 batches
    OPT (arXiv:2205.01068, 2.5)       when the loss diverged: lower the learning rate, restart from before; growing
                                      activations of the last layer announced it
    GLM-130B (arXiv:2210.02414, 3.1)  the gradient of one layer (the embedding's) is abnormal some steps before
    OLMo-core, SkipStepOptimizer      no update when loss or gradient norm is 6 standard deviations above its mean
                                      of the last 128 steps
    OLMo 2 (arXiv:2501.00656)         gradient spikes precede loss spikes; outliers over a rolling 1,000 steps
    ZClip (arXiv:2504.02507)          z-score of the gradient norm over its moving average, 25 steps of warm-up
    AdaGC (arXiv:2502.11034)          a bound for each parameter relative to its own history
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from plinth.training.guard.records import Finding, Limits, Rule, TrainedStep
from plinth.training.guard.rolling import Rolling
from plinth.training.parameters.guard import GuardParameters, LayerRule

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
