"""FP32 master weights and FP32 gradients of a BF16 model without ZeRO.

DeepSpeed (0.19) adds up BF16 gradients in BF16 there, and reads their norm on the host. Here PyTorch accumulates them
in FP32 (`Tensor.grad_dtype`), DeepSpeed reduces what it finds as the gradients of an FP32 run, and the optimizer steps
masters that lend them for the time of its step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


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
