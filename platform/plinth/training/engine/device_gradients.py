"""Norm, clipping and finiteness of a step's gradient on the device, in place of DeepSpeed's, which the host reads.

    backward ──► squared norm of this rank's part ──► sum over all ranks ──► norm ──► factor ──► optimizer
                                                                              └─► not finite: found_inf

The gradient lies where the ZeRO stage has put it: every number of it is counted on one rank of the sum (without ZeRO,
equally often on each). A gradient of which a number is not finite changes nothing: the optimizer keeps the update back
(`torch.optim.Optimizer`'s `found_inf`). With an offloaded optimizer its update runs on the CPU, which must wait for
the gradient; norm and verdict travel with it, and are waited for there and only there.

FP16 is DeepSpeed's own: its loss factor depends on the overflow, which the host reads once a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class DeviceGradients:
    """Measures the gradient of a step and clips it when the optimizer's step begins."""

    def __init__(self, engine: Any, clip: float, *, stage: int, counts_all: bool, replicas: int, summed: bool) -> None:
        """Of one engine.

        Args:
            engine: DeepSpeed's, initialised.
            clip: norm above which a gradient is scaled down to it.
            stage: of ZeRO.
            counts_all: whether this rank counts what tensor ranks hold alike.
            replicas: ranks that average their gradients.
            summed: gradients are sums over replicas, not yet means.
        """
        self._engine, self._clip, self._stage, self._counts_all = engine, clip, stage, counts_all
        self._copies, self._shrink = (replicas if stage == 0 else 1), (replicas if summed else 1)
        self.norm: Tensor | None = None
        self._host = HostCopy(torch.zeros(()))
        engine.basic_optimizer.register_step_pre_hook(self._scale)

    def measure(self) -> None:
        """After the last backward pass of a step; a collective of all ranks, for which nobody waits."""
        norms = list(self._norms())
        device = self._engine.device
        total = torch.stack([n.to(device) for n in norms]).double().square().sum() if norms else _zero(device)
        dist.all_reduce(total)
        self.norm = (total / self._copies).sqrt() / self._shrink
        if outer_offloads(self._engine.optimizer):
            self._host = HostCopy(self.norm)

    def _norms(self) -> Iterator[Tensor]:
        """FP32 norms of this rank's gradients, by parameter."""
        outer = self._engine.optimizer
        if self._stage == 0:
            yield from _foreach_norm(
                p.grad for p in self._engine.module.parameters() if p.grad is not None and self._counts(p)
            )
        elif outer_offloads(outer):
            for number, norm in outer.norm_for_param_grads.items():
                if self._stage == 3 or self._counts(outer.param_dict[number]):
                    yield norm
        elif self._stage == 3:
            for gradients in outer.averaged_gradients.values():
                yield from _foreach_norm(gradients)
        else:
            for group, gradients in outer.averaged_gradients.items():
                real = (g for g in gradients if not getattr(g, "_zero_padding", False))
                pairs = zip(real, outer.params_in_partition[group], strict=False)  # an empty part is one of zeros
                yield from _foreach_norm(g for g, p in pairs if self._counts(p))

    def _counts(self, parameter: nn.Parameter) -> bool:
        return self._counts_all or hasattr(parameter, "shard")

    def _scale(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Hook at the beginning of the optimizer's step; ZeRO begins one for each of its groups."""
        assert self.norm is not None
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return
        norm = self.norm if self.norm.device == state_device(optimizer) else self._host.read()
        factor = 1 / ((norm.float() + 1e-6) / self._clip).clamp(min=1.0) / self._shrink
        torch._foreach_mul_(gradients, factor)
        if keeps_back(optimizer):
            optimizer.found_inf = (~torch.isfinite(norm)).float()


class HostCopy:
    """A tensor on its way to the host, for which nobody waits before it is read."""

    def __init__(self, source: Tensor) -> None:
        self._event: Any = None
        self._values = source
        if source.is_cuda:
            self._values = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._values.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> Tensor:
        """The tensor on the host; waits for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


def keeps_back(optimizer: Any) -> bool:
    """Whether an optimizer leaves everything as it is where its `found_inf` is 1, as PyTorch's fused ones do."""
    return all(group.get("fused") for group in optimizer.param_groups)


def state_device(optimizer: Any) -> torch.device:
    """Where the tensors lie that a beginning step changes."""
    device: torch.device = next(p.device for group in optimizer.param_groups for p in group["params"])
    return device


def outer_offloads(outer: Any) -> bool:
    """Whether DeepSpeed keeps the optimizer's state on the host."""
    return bool(getattr(outer, "cpu_offload", False) or getattr(outer, "offload_optimizer", False))


def _foreach_norm(gradients: Any) -> list[Tensor]:
    kept = [gradient.detach() for gradient in gradients]
    return list(torch._foreach_norm(kept, 2, dtype=torch.float32)) if kept else []


def _zero(device: Any) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=device)
