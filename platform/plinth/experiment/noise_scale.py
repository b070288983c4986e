"""The critical batch from gradient noise (McCandlish et al., arXiv:1812.06162, appendix A.1).

    B_simple = tr(S) / |G|^2,  S the covariance of one token's gradient, G the true gradient

Squared norms of the gradient of a micro batch of b tokens and of a step of B tokens differ by noise alone:

    |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b)        tr(S) ~ (|G_b|^2 - |G_B|^2) / (1/b - 1/B)

Both are noisy and are averaged over steps before they are divided. Both norms are in the timeline: the first of every
tenth step by layer, before accumulation, the second of every step, before clipping. Tokens of a row depend on each
other: the scale holds for rows of the run's own length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from plinth.evaluation.statistics import Estimate, ratio
from plinth.records import Frozen

#: Measured steps from which on a scale is stated.
FEWEST = 5


class NoiseScale(Frozen):
    """B_simple in tokens, over the second half of a run, beside the batch that the run had."""

    tokens: Estimate
    batch_tokens: int


def of_steps(steps: Iterable[tuple[Mapping[str, Any], int]], micro_tokens: int) -> NoiseScale | None:
    """The noise scale of a run.

    Args:
        steps: step events of the timeline, each with the tokens of its batch.
        micro_tokens: of one forward pass on one rank.

    Returns:
        None where too few steps were measured, steps are one micro batch, or noise hides the gradient whole.
    """
    noise, signal, batch = [], [], 0
    for event, tokens in steps:
        norms = event.get("layers", {}).get("grad_norm", ())
        if not norms or tokens <= micro_tokens or any(one is None or not math.isfinite(one) for one in norms):
            continue
        found = pair(sum(one**2 for one in norms), float(event["grad_norm"]) ** 2, micro_tokens, tokens)
        noise.append(found[0])
        signal.append(found[1])
        batch = tokens
    if len(noise) < FEWEST or sum(signal) <= 0:
        return None
    return NoiseScale(tokens=ratio(noise, signal), batch_tokens=batch)


def pair(small: float, big: float, small_tokens: int, big_tokens: int) -> tuple[float, float]:
    """Unbiased tr(S) and |G|^2 from squared norms of gradients of two batches."""
    noise = (small - big) / (1 / small_tokens - 1 / big_tokens)
    signal = (big_tokens * big - small_tokens * small) / (big_tokens - small_tokens)
    return noise, signal
