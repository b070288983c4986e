"""Learning rate as a function of tokens: nothing to save, nothing to resume, whatever a step's size.

    lr       ____________             warm-up   linear from start_lr
            /            \\            cosine    half a cosine (Loshchilov and Hutter, arXiv:1608.03983)
           /   stable     \\           linear    a straight line
    start /                \\ min      wsd       stable, then decay (Hu et al., arXiv:2404.06395): linear, or
          0              total                  1 - sqrt (both Hägele et al., arXiv:2405.18392)
                                      constant  stable
                                      inverse-sqrt  lr * sqrt(warm-up / tokens) (Vaswani et al., arXiv:1706.03762)

WSD with horizons decays before each of them, over `decay_fraction` of the tokens until there, and is at the peak again
with the next step (WSD-S, Wen et al., arXiv:2410.05192): one run gives the loss of every horizon.

A run that goes on from a trained checkpoint warms up again from `start_lr` (Ibrahim et al., arXiv:2403.08763).
"""

from __future__ import annotations

import math

from plinth.training.parameters.engine import Optimizer


def learning_rate(optimizer: Optimizer, tokens: int, total_tokens: int) -> float:
    """Peak-group rate of the optimizer step that ends at `tokens` (1 … total_tokens); other groups are multiples.

    Tokens are of any unit, so long as both are of the same.
    """
    warmup = math.ceil(optimizer.warmup(total_tokens))
    if tokens <= warmup:
        return optimizer.start_lr + (optimizer.lr - optimizer.start_lr) * tokens / warmup
    if optimizer.schedule == "inverse-sqrt":
        return max(optimizer.min_lr, optimizer.lr * math.sqrt(warmup / tokens))
    done = (tokens - warmup) / max(1, total_tokens - warmup)
    return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * _share(optimizer, tokens, total_tokens, done)


def _share(optimizer: Optimizer, tokens: int, total_tokens: int, done: float) -> float:
    """The remaining share of the span between peak and minimum: 1 after warm-up, 0 at the end."""
    if optimizer.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if optimizer.schedule == "linear":
        return 1 - done
    ends = (round(share * total_tokens) for share in optimizer.horizons)
    end = next((end for end in ends if tokens <= end), total_tokens)
    decay = optimizer.decay(end) if optimizer.schedule.startswith("wsd") else 0.0
    left = min(1.0, (end - tokens) / decay) if decay else 1.0
    return 1 - math.sqrt(1 - left) if optimizer.schedule == "wsd-sqrt" else left
