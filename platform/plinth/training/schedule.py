"""Learning rate as a function of the step: nothing to save, nothing to resume."""

from __future__ import annotations

import math

from plinth.recipe.training import Optimizer


def learning_rate(optimizer: Optimizer, step: int, total_steps: int) -> float:
    """Rate of optimizer step `step` (1 … total_steps).

    Batches are of constant size, so the share of steps is the share of tokens. Linear warm-up, then
    cosine (Loshchilov and Hutter, arXiv:1608.03983), linear, or warm-up-stable-decay (Hu et al.,
    arXiv:2404.06395; linear decay as in Hägele et al., arXiv:2405.18392).
    """
    warmup = math.ceil(optimizer.warmup_fraction * total_steps)
    if step <= warmup:
        return optimizer.lr * step / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * _share(optimizer, step, total_steps, done)


def _share(optimizer: Optimizer, step: int, total_steps: int, done: float) -> float:
    """What is left of the span between peak and minimum: 1 after warm-up, 0 at the last step."""
    if optimizer.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if optimizer.schedule == "linear":
        return 1 - done
    decay = optimizer.decay_fraction * total_steps
    return min(1.0, (total_steps - step) / decay) if decay else 1.0
