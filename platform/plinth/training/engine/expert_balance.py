"""Load of the experts over a step, and loss-free balancing: a bias per expert, moved once per step.

    forward passes ─► load of this rank [layers, experts] ─► sum over replicas ─► bias of each router

The bias is a buffer of the router: part of the model's files and of checkpoints, in FP32, equal on every rank. A step
whose update is skipped leaves it unchanged. The load is counted in integers, so the result does not depend on ranks.

Does not belong here: the losses, which the model adds (plinth.model.experts).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.model.experts import BIAS, sparse_layers
from plinth.training.parallel.topology import Topology


class ExpertBalance:
    """Load of each expert in the sparse layers of this rank, and the update of their biases."""

    def __init__(self, decoder: Decoder, topology: Topology) -> None:
        assert decoder.config.experts is not None
        self._decoder, self._experts, self._group = decoder, decoder.config.experts, topology.replicas
        self._routers = [layer.gate for layer in sparse_layers(decoder)]
        shape, device = (len(self._routers), self._experts.count), next(decoder.parameters()).device
        self._loads = torch.zeros(shape, dtype=torch.int64, device=device)
        decoder.register_forward_hook(self._add)

    def again(self) -> None:
        """Discard the load, because the step will be repeated."""
        self._loads.zero_()

    def update(self, skipped: Tensor | bool | None) -> None:
        """Move the biases after the update of a step. All ranks must call this.

        Args:
            skipped: not 0 if the update was skipped.
        """
        if self._experts.balancing == "loss_free" and self._routers:
            if self._group is not None:
                dist.all_reduce(self._loads, group=self._group)
            errors = self._loads.double().mean(1, keepdim=True) - self._loads
            change = errors.sign().float() * self._experts.bias_rate
            if skipped is not None:
                change = change * (1 - torch.as_tensor(skipped, dtype=torch.float32, device=change.device))
            for router, row in zip(self._routers, change, strict=True):
                getattr(router, BIAS).add_(row)
        self.again()

    def _add(self, decoder: Decoder, inputs: Any, output: Any) -> None:
        if decoder.routing is not None and decoder.training:
            self._loads += decoder.routing.loads()
