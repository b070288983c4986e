"""Copies of the weights beside the model's: FP32 masters and gradients of a BF16 model without ZeRO, and the
exponential mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from plinth.training.parameters.engine import Optimizer

# FP32 master weights and FP32 gradients of a BF16 model without ZeRO.
#
# DeepSpeed (0.19) adds up BF16 gradients in BF16 there, and reads their norm on the host. Here PyTorch accumulates them
# in FP32 (`Tensor.grad_dtype`), DeepSpeed reduces what it finds as the gradients of an FP32 run, and the optimizer
# steps masters that lend them for the time of its step.


def master_weights(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups with an FP32 master in place of each parameter, whose gradient becomes FP32."""
    return [{**group, "params": [_master(parameter) for parameter in group["params"]]} for group in groups]


def _master(parameter: nn.Parameter) -> nn.Parameter:
    parameter.grad_dtype = torch.float32
    return nn.Parameter(parameter.detach().float())


class MasterWeights:
    """Ties the masters of an optimizer to the parameters that they are masters of.

    The optimizer gets DeepSpeed's names for both (`fp16_groups`, `fp32_groups`), by which checkpoints find them.
    """

    def __init__(self, groups: list[dict[str, Any]], optimizer: Any) -> None:
        self._optimizer = optimizer
        optimizer.fp16_groups = [group["params"] for group in groups]
        optimizer.fp32_groups = [group["params"] for group in optimizer.param_groups]
        optimizer.register_step_pre_hook(self._lend)

    def follow(self) -> None:
        """Take over the new weights after each step; to be called after others that look at it with its gradients."""
        self._optimizer.register_step_post_hook(self._update)

    def _pairs(self) -> Iterator[tuple[Any, Tensor]]:
        for parameters, masters in zip(self._optimizer.fp16_groups, self._optimizer.fp32_groups, strict=True):
            yield from zip(parameters, masters, strict=True)

    def _lend(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, master in self._pairs():
            master.grad = parameter.grad

    def _update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, master in self._pairs():
            master.grad = None
            parameter.data.copy_(master.data)


# The exponential mean of the weights, kept beside them while they train.
#
#     mean <- mean + (1 - d) (w - mean),    d = decay, or decay ^ (tokens of the step / decay_tokens)
#
# It is a tensor of the optimizer's state in FP32, `ema`: divided over ranks as the masters are, saved and restored with
# the moments, on any layout, without a gather. The first update begins it as a copy. An update that is kept back
# (`found_inf`) leaves it as it is. As `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`.

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
