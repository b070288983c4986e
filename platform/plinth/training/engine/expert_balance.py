"""Load of the experts over a step: loss-free balancing, a bias per expert moved once per step, and health.

    forward passes ─► load of this rank [layers, experts] ─► sum over replicas ─► bias of each router
                 └─► every n-th step: load by bucket, entropy of the router ─► sum over all ranks ─► host

The bias is a buffer of the router: part of the model's files and of checkpoints, in FP32, equal on every rank. A step
whose update is skipped leaves it unchanged. The load is counted in integers, so the result does not depend on ranks.

Does not belong here: the losses, which the model adds (plinth.model.experts).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.model.experts import BIAS, sparse_layers
from plinth.training.engine.device_measurements import HostCopy
from plinth.training.parallel.topology import Topology

#: An expert with less than this share of the mean load is idle.
IDLE = 0.01

#: Every n-th measurement lists the load of every expert, and the experts of each bucket in three layers.
LISTED_EVERY = 10


@dataclass(frozen=True)
class ExpertStatistics:
    """Load of the experts in one step, over all ranks."""

    step: int
    layers: tuple[int, ...]  # indices of the L sparse layers
    load: NDArray[np.float64]  # [L, N], relative to the mean of the layer
    entropy: NDArray[np.float64]  # [L], mean over tokens, in nats
    buckets: Mapping[str, NDArray[np.float64]]  # [L, N], share of the bucket's assignments
    listed: bool  # True if the event lists every expert

    def idle(self) -> dict[str, float]:
        """Return the share of idle experts by layer."""
        shares = (self.load < IDLE).mean(1)
        return {str(layer): float(share) for layer, share in zip(self.layers, shares, strict=True)}

    def event(self) -> dict[str, Any]:
        """Return the fields of an event: numbers over all layers, then lists with one entry per layer. An entropy that
        is not finite is null."""
        found: dict[str, Any] = {
            "most": round(float(self.load.max()), 4),
            "idle": int((self.load < IDLE).sum()),
            "entropy": _finite(float(self.entropy.mean())),
            "by_layer": {
                "layers": list(self.layers),
                "most": self.load.max(1).round(4).tolist(),
                "idle": (self.load < IDLE).sum(1).tolist(),
                "entropy": [_finite(value) for value in self.entropy.tolist()],
            },
        }
        if self.listed:
            last = len(self.layers) - 1
            some = sorted({0, last // 2, last})
            found["load"] = self.load.round(3).tolist()
            found["buckets"] = {
                name: {str(self.layers[row]): shares[row].round(4).tolist() for row in some}
                for name, shares in self.buckets.items()
            }
        return found


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


class ExpertBalance:
    """Load of each expert in the sparse layers of this rank, and the update of their biases."""

    def __init__(self, decoder: Decoder, topology: Topology, every: int) -> None:
        """Attach to a model, a `Decoder` or this rank's part of one.

        Args:
            every: interval between measured steps; 0 measures no step.
        """
        assert decoder.config.experts is not None
        self._decoder, self._experts, self._topology = decoder, decoder.config.experts, topology
        self._every, self._step, self._sent = every, 0, deque[tuple[int, HostCopy]]()
        self._latest: ExpertStatistics | None = None
        self._routers = [layer.gate for layer in sparse_layers(decoder)]
        whole = [layer for layer in range(decoder.config.layers) if self._experts.at(layer)]
        self._layers = tuple(whole)
        first = next((row for row, layer in enumerate(whole) if str(layer) in decoder.layers), 0)
        self._rows = slice(first, first + len(self._routers))  # a stage has consecutive layers
        device = next(decoder.parameters()).device
        self._loads = torch.zeros(len(self._routers), self._experts.count, dtype=torch.int64, device=device)
        self._entropy = torch.zeros(len(self._routers) + 1, dtype=torch.float64, device=device)  # and the passes
        self._by_bucket = torch.zeros(len(self._routers), 0, self._experts.count, dtype=torch.int64, device=device)
        self._names: tuple[str, ...] = ()
        #: Number of the bucket of each sequence in the micro batch, set before a forward pass; None if unknown.
        self.streams: NDArray[np.int16] | None = None
        decoder.register_forward_hook(self._add)

    def begin(self, step: int, names: tuple[str, ...]) -> None:
        """Start a step. `names` are the buckets' names by number."""
        self._step = step
        while self._sent and self._sent[-1][0] >= step:  # undone by a rollback
            self._sent.pop()
        self._decoder.measures_routing = bool(self._every) and step % self._every == 0
        if self._decoder.measures_routing and names != self._names:
            self._names = names
            self._by_bucket = self._by_bucket.new_zeros(len(self._routers), len(names), self._experts.count)
        self.again()

    def again(self) -> None:
        """Discard the load, because the step will be repeated."""
        self._loads.zero_()
        if self._decoder.measures_routing:
            self._entropy.zero_()
            self._by_bucket.zero_()

    def update(self, skipped: Tensor | bool | None) -> None:
        """Move the biases after the update of a step. All ranks must call this.

        Args:
            skipped: not 0 if the update was skipped.
        """
        if self._decoder.measures_routing:
            self._send()
        if self._experts.balancing == "loss_free" and self._routers:
            if self._topology.replicas is not None:
                dist.all_reduce(self._loads, group=self._topology.replicas)
            errors = self._loads.double().mean(1, keepdim=True) - self._loads
            change = errors.sign().float() * self._experts.bias_rate
            if skipped is not None:
                change = change * (1 - torch.as_tensor(skipped, dtype=torch.float32, device=change.device))
            for router, row in zip(self._routers, change, strict=True):
                getattr(router, BIAS).add_(row)
        self.again()

    def at(self, step: int) -> ExpertStatistics | None:
        """Return the measurement of exactly this step, or None. Call this in the order of steps, after the step's loss
        has been read on the host."""
        while self._sent and self._sent[0][0] <= step:
            number, copy = self._sent.popleft()
            self._latest = self._statistics(number, copy.read().numpy())
        return self._latest if self._latest is not None and self._latest.step == step else None

    def _add(self, decoder: Decoder, inputs: Any, output: Any) -> None:
        routing = decoder.routing
        if routing is None or not decoder.training:
            return
        self._loads += routing.loads()
        if not decoder.measures_routing:
            return
        for row, layer in enumerate(routing.layers):
            assert layer.rows is not None
            assert layer.entropy is not None
            self._entropy[row] += layer.entropy
            if self.streams is not None and self._names:
                each = torch.from_numpy(self.streams.astype(np.int64)).to(layer.rows.device, non_blocking=True)
                self._by_bucket[row].index_add_(0, each.repeat_interleave(len(layer.rows) // len(each)), layer.rows)
        self._entropy[-1] += 1

    def _send(self) -> None:
        """Start the sum over ranks. The table has a row for each sparse layer of the model: load, load by bucket,
        entropy, passes."""
        count, buckets = self._experts.count, len(self._names)
        table = self._entropy.new_zeros(len(self._layers), count * (1 + buckets) + 2)
        table[self._rows, :count] = self._loads.double()
        table[self._rows, count:-2] = self._by_bucket.flatten(1).double()
        table[self._rows, -2] = self._entropy[:-1]
        table[self._rows, -1] = self._entropy[-1]
        if dist.get_world_size() > 1:
            dist.all_reduce(table)
        self._sent.append((self._step, HostCopy(table)))

    def _statistics(self, step: int, table: NDArray[np.float64]) -> ExpertStatistics:
        count = self._experts.count
        load = table[:, :count]
        buckets = table[:, count:-2].reshape(len(table), len(self._names), count)
        totals = buckets.sum(2, keepdims=True)
        shares = np.divide(buckets, totals, out=np.zeros_like(buckets), where=totals > 0)
        return ExpertStatistics(
            step,
            self._layers,
            load / load.mean(1, keepdims=True),
            table[:, -2] / table[:, -1],
            {name: shares[:, number] for number, name in enumerate(self._names) if totals[:, number].any()},
            step // self._every % LISTED_EVERY == 0 or step == self._every,
        )
