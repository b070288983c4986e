"""Measurements of a step on the device: norm, clipping and finiteness of the gradient, and statistics by layer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from plinth.model.blocks import Block
from plinth.training.parallel.topology import has_own_experts

# Norm, clipping and finiteness of a step's gradient, computed on the device (DeepSpeed reads them on the host).
#
#     backward ──► squared norm of this rank's part ──► sum over all ranks ──► norm ──► factor ──► optimizer
#                                                                               └─► not finite: found_inf
#
# The gradient is where the ZeRO stage has put it: each of its numbers is counted on one rank of the sum (without ZeRO,
# equally often on each). A gradient with a non-finite number changes nothing: the optimizer skips the update
# (`torch.optim.Optimizer`'s `found_inf`). An offloaded optimizer updates on the CPU, which must wait for the gradient;
# norm and verdict are copied with it, and only there the host waits.
#
# FP16 is left to DeepSpeed: its loss scale depends on the overflow, which the host reads once per step.


class DeviceGradients:
    """Measurement of a step's gradient on the device. The gradient is clipped when the optimizer's step begins."""

    def __init__(
        self, engine: Any, clip: float, *, stage: int, counts_all: bool, replicas: int, summed: bool, experts: int = 1
    ) -> None:
        """Attach to DeepSpeed's engine.

        Args:
            engine: DeepSpeed's engine, initialized.
            clip: maximum norm; larger gradients are scaled down to it.
            stage: ZeRO stage.
            counts_all: True if this rank counts parameters that tensor ranks replicate.
            replicas: number of ranks that average their gradients.
            experts: number of replicas that divide the experts among them.
            summed: True if gradients are still sums over replicas and must be divided to give means.
        """
        self._engine, self._clip, self._stage, self._counts_all = engine, clip, stage, counts_all
        self._copies, self._shrink = (replicas if stage == 0 else 1), (replicas if summed else 1)
        self._experts = math.sqrt(experts)
        self.norm: Tensor | None = None
        self._host = HostCopy(torch.zeros(()))
        engine.basic_optimizer.register_step_pre_hook(self._scale)

    def measure(self) -> None:
        """Measure the gradient after the last backward pass of a step. All ranks must call this. The host does not
        wait."""
        norms = list(self._norms())
        device = self._engine.device
        total = torch.stack([n.to(device) for n in norms]).double().square().sum() if norms else _zero(device)
        dist.all_reduce(total)
        self.norm = (total / self._copies).sqrt() / self._shrink
        if outer_offloads(self._engine.optimizer):
            self._host = HostCopy(self.norm)

    def _norms(self) -> Iterator[Tensor]:
        """Yield the FP32 norm of each parameter's gradient on this rank."""
        outer = self._engine.optimizer
        if self._stage == 0:
            counted = [p for p in self._engine.module.parameters() if p.grad is not None and self._counts(p)]
            own = [has_own_experts(p) for p in counted]
            norms = _foreach_norm(p.grad for p in counted)
            # an expert is on fewer ranks than the others, by this factor
            yield from (norm * self._experts if divided else norm for norm, divided in zip(norms, own, strict=True))
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
                pairs = zip(real, outer.params_in_partition[group], strict=False)  # an empty part has zeros only
                yield from _foreach_norm(g for g, p in pairs if self._counts(p))

    def _counts(self, parameter: nn.Parameter) -> bool:
        return self._counts_all or hasattr(parameter, "shard")

    def _scale(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Clip the gradient when the optimizer's step begins. ZeRO runs one optimizer step per parameter group."""
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
    """Asynchronous copy of a tensor to the host. Only `read` waits."""

    def __init__(self, source: Tensor) -> None:
        self._event: Any = None
        self._values = source
        if source.is_cuda:
            self._values = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._values.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> Tensor:
        """Wait for the tensor on the host and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


def keeps_back(optimizer: Any) -> bool:
    """Return True if an optimizer skips its update when its `found_inf` is 1, like PyTorch's fused optimizers."""
    return all(group.get("fused") for group in optimizer.param_groups)


def state_device(optimizer: Any) -> torch.device:
    """Return the device of the tensors that an optimizer step updates."""
    device: torch.device = next(p.device for group in optimizer.param_groups for p in group["params"])
    return device


def outer_offloads(outer: Any) -> bool:
    """Return True if DeepSpeed keeps the optimizer's state on the host."""
    return bool(getattr(outer, "cpu_offload", False) or getattr(outer, "offload_optimizer", False))


def _foreach_norm(gradients: Any) -> list[Tensor]:
    kept = [gradient.detach() for gradient in gradients]
    return list(torch._foreach_norm(kept, 2, dtype=torch.float32)) if kept else []


def _zero(device: Any) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=device)


# Gradient norm and activations by layer, measured on the device during the step.
#
#     B  sequences of a micro batch    S  tokens of a sequence    D  model width    R  rows    C  columns
#
# Rows are the embedding (its output), every block (its output) and the head (the final norm's output).
# Hooks add to two small tensors on the device; nothing is read on the host within the step. `end` starts one
# sum and one maximum over ranks and a copy; `at` and `latest` read what has arrived.
#
# A gradient norm is taken of one micro batch's gradient on one rank, before the gradient is accumulated, reduced,
# partitioned or clipped. Over micro batches and ranks the root mean square is reported. ZeRO divides gradients over
# ranks only afterward, so the number has one meaning in stages 0 to 3, in any precision. It is not the norm of the
# averaged gradient, which is smaller where gradients disagree (their noise: McCandlish et al., arXiv:1812.06162); the
# global norm of that is in every step event as `grad_norm`. If the tokens of a sequence are divided over ranks, it is
# the gradient of a rank's share of the sequence. A token's gradient counts once under activation checkpointing;
# recomputed activations count again, which changes no mean.

#: C: `grad_norm` root mean square over micro batches; `rms` and `max_abs` of activations; `zero` share of exact
#: zeros; `logit_bound` the largest |q| |k| / scale of a head, which no attention logit exceeds (Cauchy-Schwarz;
#: growing attention logits are the instability of Dehghani et al., arXiv:2302.05442).
COLUMNS = ("grad_norm", "rms", "max_abs", "zero", "logit_bound")

#: Sums per row on the device, then their divisors, counted on the host.
_GRADIENT, _SQUARES, _NONZERO, _BACKWARDS, _ELEMENTS = range(5)

#: Maximal per row.
_MAX_ABS, _LOGIT = range(2)


@dataclass(frozen=True)
class LayerStatistics:
    """Layer statistics of one step, over all ranks."""

    step: int
    names: tuple[str, ...]  # R: "embedding", "0" … "L-1", "head"
    values: npt.NDArray[np.float32]  # [R, C]; NaN where nothing was measured

    def column(self, name: str) -> npt.NDArray[np.float32]:
        """Return the values of one of `COLUMNS` for every row [R]."""
        values: npt.NDArray[np.float32] = self.values[:, COLUMNS.index(name)]
        return values

    def named(self, name: str) -> dict[str, float]:
        """Return the values of one of `COLUMNS` by row name, without rows that were not measured."""
        return {row: float(x) for row, x in zip(self.names, self.column(name), strict=True) if not math.isnan(x)}

    def event(self) -> dict[str, Any]:
        """Return the fields of an event: one list per column, with one number per row. NaN and infinity become null."""
        columns = {
            name: [float(f"{value:.6g}") if np.isfinite(value) else None for value in self.column(name).tolist()]
            for name in COLUMNS
        }
        return {"names": list(self.names), **columns}


class LayerMonitor:
    """Monitor of a model's layer statistics. Attach it once, before or after DeepSpeed wraps the model.

    In every step call `begin(step)`, run forward and backward, call `end()`, then `at(step)`, on all ranks together.
    """

    def __init__(self, module: nn.Module, layers: int, every: int, *, ranks: int = 1, tensor_ranks: int = 1) -> None:
        """Attach hooks to `module`, a `Decoder` or this rank's part of one.

        Args:
            layers: number of blocks in the whole model.
            every: interval between measured steps; 0 measures no step and adds no hooks.
            ranks: size of the process group for sums and maxima; 1 measures this rank alone.
            tensor_ranks: number of ranks that divide parameters marked `model_parallel`.
        """
        self.every, self.ranks, self.tensor_ranks = every, ranks, tensor_ranks
        self.names = ("embedding", *map(str, range(layers)), "head")
        #: Factor of the loss before backward; 1 / accumulation, times FP16's loss scale.
        self.gradient_scale = 1.0
        self._step, self._active = 0, False
        self._counts = np.zeros((len(self.names), 2))
        self._sums = self._maxima = torch.empty(0)
        self._sent: deque[tuple[int, Tensor, Any]] = deque()
        self._latest: LayerStatistics | None = None
        if every:
            self._attach(module)

    def begin(self, step: int) -> None:
        """Start step `step`. The step is measured if `step` is a multiple of `every`."""
        self._step, self._active = step, bool(self.every) and step % self.every == 0
        while self._sent and self._sent[-1][0] >= step:  # undone by a rollback
            self._sent.pop()
        self.again()

    def again(self) -> None:
        """Discard the measurements since `begin`, because the step will be repeated."""
        if self._active:
            self._counts[:] = 0
            self._sums.zero_()
            self._maxima.zero_()

    def end(self) -> None:
        """Start the sum over ranks after the last backward pass of the step. The host does not wait for GPUs."""
        if not self._active:
            return
        self._active = False
        counts = torch.from_numpy(self._counts).to(self._sums.device, non_blocking=True)
        sums = torch.cat((self._sums, counts), dim=1)
        sums[:, _GRADIENT] /= self.gradient_scale**2
        if self.ranks > 1:
            dist.all_reduce(sums)
            dist.all_reduce(self._maxima, op=dist.ReduceOp.MAX)
        values, arrived = torch.cat((sums, self._maxima), dim=1), None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            values, arrived = host, torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._sent.append((self._step, values, arrived))

    def latest(self) -> LayerStatistics | None:
        """Return the newest measurement that has reached the host, without waiting. Return None before the first
        measurement."""
        while self._sent and (self._sent[0][2] is None or self._sent[0][2].query()):
            self._receive()
        return self._latest

    def at(self, step: int) -> LayerStatistics | None:
        """Return the measurement of exactly this step, or None if it was not measured.

        Call this in the order of steps, after the step's loss has been read on the host. The measurement has then
        reached the host as well.
        """
        while self._sent and self._sent[0][0] <= step:
            self._receive()
        return self._latest if self._latest is not None and self._latest.step == step else None

    def _receive(self) -> None:
        step, values, arrived = self._sent.popleft()
        if arrived is not None:
            arrived.synchronize()
        self._latest = LayerStatistics(step, self.names, _table(values.numpy()))

    def _attach(self, module: nn.Module) -> None:
        inside: set[int] = set()
        for block in blocks(module):
            row = block.index + 1
            block.register_forward_hook(self._activations(row))
            block.self_attn.core.register_forward_pre_hook(self._logits(row, block.self_attn.scale))
            if block.index == 0:
                block.register_forward_pre_hook(self._inputs)
            self._gradients(row, list(block.parameters()))
            inside.update(map(id, (*block.parameters(), *block.modules())))
        for name, part in module.named_modules():
            if name.split(".")[-1] == "norm" and id(part) not in inside:
                part.register_forward_hook(self._activations(len(self.names) - 1))
        outside = [(name, p) for name, p in module.named_parameters() if id(p) not in inside]
        self._gradients(0, [p for name, p in outside if "embed" in name])
        self._gradients(len(self.names) - 1, [p for name, p in outside if "embed" not in name])
        device = next(module.parameters()).device
        self._sums = torch.zeros(len(self.names), 3, dtype=torch.float64, device=device)
        self._maxima = torch.zeros(len(self.names), 2, dtype=torch.float64, device=device)

    def _gradients(self, row: int, parameters: list[nn.Parameter]) -> None:
        """Register hooks that add the squared norms of these parameters' gradients once autograd has computed them."""

        def adder(weight: int) -> Callable[[Tensor], None]:
            def add(gradient: Tensor) -> None:
                if self._active:
                    squared = torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
                    self._sums[row, _GRADIENT] += squared * weight

            return add

        def count(gradient: Tensor) -> None:
            if self._active:
                self._counts[row, 0] += 1

        for number, parameter in enumerate(p for p in parameters if p.requires_grad):
            divided = getattr(parameter, "model_parallel", False)  # parts are summed over ranks, copies averaged
            parameter.register_hook(adder(self.tensor_ranks if divided else 1))  # type: ignore[no-untyped-call]
            if number == 0:
                parameter.register_hook(count)  # type: ignore[no-untyped-call]

    def _activations(self, row: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._measure(row, output)

        return hook

    def _inputs(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._measure(0, inputs[0])

    def _measure(self, row: int, x: Tensor) -> None:
        """Add the activations `x` [B, S, D] to the statistics of a table row, without copying them."""
        if not self._active:
            return
        with torch.no_grad():
            x = x.detach()
            self._sums[row, _SQUARES] += torch.linalg.vector_norm(x, dtype=torch.float32).square()
            self._sums[row, _NONZERO] += torch.count_nonzero(x)
            least, most = torch.aminmax(x)  # on CPUs 30 times as fast as the infinity norm
            peak = torch.maximum(-least, most).double()
            self._maxima[row, _MAX_ABS] = torch.maximum(self._maxima[row, _MAX_ABS], peak)
        self._counts[row, 1] += x.numel()

    def _logits(self, row: int, scale: float) -> Any:
        def hook(core: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not self._active:
                return
            with torch.no_grad():
                q, k = (_longest(x.detach()) for x in inputs[:2])
                bound = (q.view(len(k), -1) * k[:, None]).max().double() * scale
                self._maxima[row, _LOGIT] = torch.maximum(self._maxima[row, _LOGIT], bound)

        return hook


def blocks(module: nn.Module) -> Iterator[Any]:
    """Yield the decoder blocks within a module, through any wrappers."""
    return (part for part in module.modules() if isinstance(part, Block))


def _longest(x: Tensor) -> Tensor:
    """Return the largest row norm of each head: [B, H, S, E] to [H]."""
    longest: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax(dim=(0, 2))
    return longest


def _table(raw: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Convert sums, counts and maxima [R, 7] to the columns of the layer statistics [R, C]."""
    sums, maxima = raw[:, :5], raw[:, 5:]
    backwards = np.where(sums[:, _BACKWARDS] > 0, sums[:, _BACKWARDS], np.nan)
    elements = np.where(sums[:, _ELEMENTS] > 0, sums[:, _ELEMENTS], np.nan)
    seen = np.where(np.isnan(elements), np.nan, 1.0)
    columns = (
        np.sqrt(sums[:, _GRADIENT] / backwards),
        np.sqrt(sums[:, _SQUARES] / elements),
        maxima[:, _MAX_ABS] * seen,
        1 - sums[:, _NONZERO] / elements,
        np.where(maxima[:, _LOGIT] > 0, maxima[:, _LOGIT], np.nan),
    )
    return np.stack(columns, axis=1).astype(np.float32)
