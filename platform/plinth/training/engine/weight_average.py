"""The exponential mean of the weights, kept beside them while they train.

    mean <- mean + (1 - d) (w - mean),    d = decay, or decay ^ (tokens of the step / decay_tokens)

It is a tensor of the optimizer's state in FP32, `ema`: divided over ranks as the masters are, saved and restored with
the moments, on any layout, without a gather. The first update begins it as a copy. An update that is kept back
(`found_inf`) leaves it as it is. As `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`.
"""

from __future__ import annotations

from typing import Any

import torch

from plinth.training.parameters.engine import Optimizer

#: The name in the optimizer's state and in checkpoints.
EMA = "ema"


def step_weight(optimizer: Optimizer, tokens: int) -> float:
    """The share of the new weights in the mean after a step of so many tokens."""
    if optimizer.ema_decay is None:
        return 0.0
    return float(1 - optimizer.ema_decay ** (tokens / (optimizer.ema_tokens or tokens)))


class WeightAverage:
    """Follows an optimizer; `weight` is that of the step that comes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.weight = 0.0
        optimizer.register_step_post_hook(self._follow)

    @torch.no_grad()
    def _follow(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Hook at the end of the optimizer's step, of which ZeRO takes several, each for a part of the parameters."""
        bad = getattr(optimizer, "found_inf", None)
        for flat in (flat for group in optimizer.param_groups for flat in group["params"]):
            state = optimizer.state.get(flat)
            if not state:  # never stepped
                continue
            if EMA not in state:
                state[EMA] = flat.detach().clone()
            elif bad is None:
                state[EMA].lerp_(flat, self.weight)
            else:  # weights that were kept back are finite: a share of 0 leaves the mean as it is
                state[EMA].lerp_(flat, (bad.to(flat.device) == 0) * self.weight)
