"""A rank's part of a decoder, in the form that DeepSpeed and checkpoints need.

It provides differentiable collectives, tensor and sequence ranks, whole parameters, compiled and recomputed blocks, and
initial weights under ZeRO-3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional_collectives
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from plinth.model.blocks import Block
from plinth.model.decoder import Decoder, empty
from plinth.model.division import (
    Division,
    ExpertRanks,
    PipelineStage,
    Placement,
    Role,
    SequenceRanks,
    TensorRanks,
    WeightSource,
    buffers,
    declarations,
    fill,
)
from plinth.model.experts import inverse_of, permuted
from plinth.model.parameters import Model
from plinth.training.parallel.topology import EXPERT_GROUP, Topology, has_own_experts
from plinth.training.parameters.parallel import Parallel

# Differentiable collectives.
#
#     enter_region    forward: identity         backward: sum over the group    (Megatron-LM's f, arXiv:1909.08053)
#     leave_region    forward: sum             backward: identity              (its g)
#     scatter_heads   [B, H, S/n, E] -> [B, H/n, S, E], backward the reverse    (DeepSpeed-Ulysses, arXiv:2309.14509)
#     gather_heads    the reverse
#
# `torch.compile` traces the first two, so that a block is one graph on tensor ranks too. The others are around the
# attention, outside of every graph.


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0], ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Exchange(torch.autograd.Function):
    """All-to-all that divides axis `divided` over the group and joins axis `joined`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, divided: int, joined: int) -> Tensor:
        ctx.group, ctx.divided, ctx.joined = group, divided, joined
        return _exchanged(x, group, divided, joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.group, ctx.joined, ctx.divided), None, None, None


def _exchanged(x: Tensor, group: ProcessGroup, divided: int, joined: int) -> Tensor:
    """Exchange parts of a tensor between all ranks of a group. The received parts are joined in rank order."""
    size = dist.get_world_size(group)
    sent = torch.stack(x.chunk(size, dim=divided)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(0), dim=joined)


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum of a tensor over all ranks of the group, in a new tensor."""
    if torch.compiler.is_compiling():  # the same collective in functional form, for graphs
        total: Tensor = functional_collectives.all_reduce(x, "sum", group)
        return total
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def enter_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """Mark `x` as the input of a tensor-parallel region.

    `x` is the same on every rank, and each rank computes a part of the results that depend on it.
    """
    entered: Tensor = _Enter.apply(x, group)  # type: ignore[no-untyped-call]
    return entered


def leave_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum of all ranks' partial results."""
    left: Tensor = _Leave.apply(x, group)  # type: ignore[no-untyped-call]
    return left


def scatter_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """Exchange some tokens of all heads [B, H, S/n, E] for all tokens of some heads [B, H/n, S, E]."""
    exchanged: Tensor = _Exchange.apply(x, group, 1, 2)  # type: ignore[no-untyped-call]
    return exchanged


def gather_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """Exchange all tokens of some heads [B, H/n, S, E] for some tokens of all heads [B, H, S/n, E]."""
    exchanged: Tensor = _Exchange.apply(x, group, 2, 1)  # type: ignore[no-untyped-call]
    return exchanged


class TensorGroup(TensorRanks):
    """Ranks of a process group that divide every matrix among them."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)

    def enter_region(self, x: Tensor) -> Tensor:
        return enter_region(x, self.group)

    def leave_region(self, x: Tensor) -> Tensor:
        return leave_region(x, self.group)

    def total(self, x: Tensor) -> Tensor:
        return summed(x, self.group)

    def maximum(self, x: Tensor) -> Tensor:
        highest = x.clone()
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.group)
        return highest


class SequenceGroup(SequenceRanks):
    """Ranks of a process group that divide every sequence among them."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)

    def total(self, x: Tensor) -> Tensor:
        return summed(x, self.group)

    def scatter_heads(self, x: Tensor) -> Tensor:
        return scatter_heads(x, self.group)

    def gather_heads(self, x: Tensor) -> Tensor:
        return gather_heads(x, self.group)


class TensorExperts(ExpertRanks):
    """Tensor ranks, which have the same tokens, as ranks with some of the experts each."""

    def __init__(self, group: TensorGroup) -> None:
        self.size, self.index = group.size, group.index
        self.enter_region, self.leave_region = group.enter_region, group.leave_region  # type: ignore[method-assign]

    def spread(self, rows: Tensor, load: Tensor, products: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return the outputs of this rank's experts, and zeros for the rows of other ranks' experts."""
        sizes, (first, last) = load.view(self.size, -1).sum(1).tolist(), self.bounds(len(load))
        before, own = sum(sizes[: self.index]), sizes[self.index]
        outputs = products(rows.narrow(0, before, own), load[first:last])
        return functional.pad(outputs, (0, 0, before, len(rows) - before - own))


# Expert parallelism. DeepSpeed's AutoEP replaces modules of `transformers` within `deepspeed.initialize`, needs whole
# experts on every rank before, and saves them in checkpoints of its own. So the exchange of tokens is ours. DeepSpeed's
# reduction and ZeRO partition over ranks with the same experts need only marks on parameters, and are used.


class ExpertGroup(ExpertRanks):
    """Ranks of a process group with different tokens and some of the experts each. Tokens are sent to the experts
    (GShard, arXiv:2006.16668), without a limit."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)

    def spread(self, rows: Tensor, load: Tensor, products: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Send rows to the ranks of their experts, and return the outputs of these. The host reads the sizes."""
        sent = load.view(self.size, -1).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        there, here = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = exchanged_rows(rows, self.group, there, here)
        kinds = torch.arange(sent.shape[1], device=rows.device).repeat(self.size)
        order = kinds.repeat_interleave(received.flatten()).argsort(stable=True)
        inverse = inverse_of(order)
        outputs = products(permuted(arrived, order, inverse), received.sum(0))
        return exchanged_rows(permuted(outputs, inverse, order), self.group, here, there)


class _ExchangedRows(torch.autograd.Function):
    """All-to-all of rows: the first `sent[0]` go to the group's first rank, and so on."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup, sent: list[int], received: list[int]) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _sent(rows, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _sent(gradients[0], ctx.group, ctx.received, ctx.sent), None, None, None


def _sent(rows: Tensor, group: ProcessGroup, sent: list[int], received: list[int]) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived


def exchanged_rows(rows: Tensor, group: ProcessGroup, sent: list[int], received: list[int]) -> Tensor:
    """Send rows [R, …] to all ranks of a group, and return the received rows in rank order.

    Args:
        sent, received: number of rows for, and from, each rank.
    """
    arrived: Tensor = _ExchangedRows.apply(rows, group, sent, received)  # type: ignore[no-untyped-call]
    return arrived


def division_of(topology: Topology) -> Division:
    """Return the part of a decoder that a topology's rank has."""
    tensor = None if topology.tensor is None else TensorGroup(topology.tensor)
    return Division(
        stage=PipelineStage(topology.place.pipeline, topology.shape.pipeline),
        tensor=TensorRanks() if tensor is None else tensor,
        sequence=SequenceRanks() if topology.sequence is None else SequenceGroup(topology.sequence),
        experts=_experts_of(topology, tensor),
    )


def _experts_of(topology: Topology, tensor: TensorGroup | None) -> ExpertRanks:
    if topology.experts is not None:
        return ExpertGroup(topology.experts)
    return ExpertRanks() if tensor is None else TensorExperts(tensor)


# A rank's part of a decoder, in the form that DeepSpeed and checkpoints need, and assembly of whole parameters.
#
# Every rank gets whole sequences and returns its share of the loss, so that the mean over all ranks is the loss of the
# global batch, and the mean of gradients over data and sequence ranks is its gradient. The model is divided on the meta
# device: each rank creates its part of the initial weights, equal to those of one process, and never the whole model.


def divided_decoder(
    config: Model, vocab_size: int, topology: Topology, device: torch.device | str, dtype: torch.dtype
) -> Decoder:
    """Return this rank's part of the decoder, without its weights."""
    model = empty(config, vocab_size, division_of(topology), device, dtype)
    declared, ranks = declarations(model), model.division.tensor
    for name, parameter in model.named_parameters():
        if declared[name].experts and topology.experts is not None:
            parameter.allreduce, parameter.group_name = False, EXPERT_GROUP  # type: ignore[attr-defined]
        elif hasattr(parameter, "shard"):
            # DeepSpeed sums the norms of these parameters over tensor ranks, and counts others on the first tensor
            # rank only
            parameter.model_parallel = True  # type: ignore[attr-defined]
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        elif declared[name].partial and ranks.size > 1:
            parameter.register_hook(partial(_total, ranks=ranks))  # type: ignore[no-untyped-call]
    return model


def _total(gradient: Tensor, ranks: TensorRanks) -> Tensor:
    """Return the sum of a gradient over the tensor ranks. It is computed in FP32 and rounded once."""
    return ranks.total(gradient.float()).to(gradient.dtype)


def gathered(parameter: Tensor, topology: Topology) -> Tensor:
    """Assemble a parameter from all tensor or expert ranks, and return it without a gradient. All of these ranks must
    call this."""
    shard, value = getattr(parameter, "shard", None), parameter.detach()
    group = topology.experts if has_own_experts(parameter) else topology.tensor
    return value if shard is None or group is None else _gathered(value, shard[0], group)


def _gathered(part: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=part.device)
    sizes[dist.get_rank(group)] = part.shape[axis]
    dist.all_reduce(sizes, group=group)
    widest = int(sizes.max())
    padded = part.transpose(0, axis)
    padded = functional.pad(padded, (0, 0) * (padded.dim() - 1) + (0, widest - padded.shape[0])).contiguous()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    kept = [each[: int(size)] for each, size in zip(parts, sizes, strict=True)]
    return torch.cat(kept).transpose(0, axis).contiguous()


#: Graphs per method; a schedule of row lengths needs two per length.
SHAPES = 64


def wrap_blocks(blocks: Iterable[Block], parallel: Parallel) -> None:
    """Wrap the blocks' methods for compilation and recomputation. Names of modules and parameters do not change.

    `before` and, in dense layers, `after` are compiled as whole graphs that all blocks share. There is one graph per
    row length, in training and in validation, because shapes are constants in a graph. A block that cannot be compiled
    raises an error. A run with more shapes than `SHAPES` does too; PyTorch itself would continue without compiling.

    Recomputation uses PyTorch's non-reentrant checkpoint (Chen et al., arXiv:1604.06174). The same kernels run on the
    same inputs, so gradients are the same bit for bit. Blocks use no random numbers, so generator states are not saved.
    """
    every = parallel.activation_checkpointing
    for block in blocks:
        if parallel.compile:
            torch._dynamo.config.recompile_limit = SHAPES
            for name in block.graphs:
                setattr(block, name, torch.compile(getattr(block, name), fullgraph=True, dynamic=False))
        if every and (block.index + 1) % every == 0:
            run = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
            setattr(block, "forward", run)  # noqa: B010 - mypy forbids it as an assignment


# Initial weights under ZeRO-3: every rank computes or reads its own range of each parameter, without communication.
#
# DeepSpeed's `zero.Init` (0.19) would take whole parameters, send rank 0's to all and keep a range of each, so every
# rank would draw all 70B numbers. Here a whole parameter is only an address range. A rank writes the rows that it
# needs; DeepSpeed copies the rank's range out of them and frees the rest, which on CPUs was never touched. The values
# are the same as DeepSpeed's.


def partition_initialised(model: nn.Module, initial: WeightSource, settings: dict[str, Any], mpu: Any) -> None:
    """Divide an empty, undivided model over the ZeRO-3 ranks, and fill each range with its initial values.

    All ranks must call this.

    Args:
        model: model whose parameters DeepSpeed will manage.
        initial: source of the initial weights.
        settings: settings of `deepspeed.initialize`.
        mpu: `mpu` of `deepspeed.initialize`.
    """
    from deepspeed.runtime.zero.partition_parameters import Init

    declared = declarations(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    class OwnRange(Init):  # type: ignore[misc]
        def _zero_init_param(self, parameter: Any) -> None:
            parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.local_device)
            self._convert_to_deepspeed_param(parameter)
            each = -(-parameter.numel() // self._partition_world_size(parameter))
            name, start = names[id(parameter)], each * self._partition_rank(parameter)
            fill_range(parameter.data, initial, name, declared[name].role, start, each)
            parameter.partition()

    for name, buffer in buffers(model):
        initial.fill(buffer, name, declared[name].role, Placement(tuple(buffer.shape)))
    group = None if mpu is None else mpu.get_data_parallel_group()
    OwnRange(module=model, data_parallel_group=group, config_dict_or_path=settings, mpu=mpu)


def fill_range(whole: Tensor, initial: WeightSource, name: str, role: Role, start: int, count: int) -> None:
    """Initialize `count` elements of a flattened parameter, starting at `start`, and the other elements in their
    rows."""
    if whole.dim() < 2:
        initial.fill(whole, name, role, Placement(tuple(whole.shape)))
        return
    rows, columns = len(whole), whole[0].numel()  # experts, if stacked
    first, last = min(start // columns, rows), min(-(-(start + count) // columns), rows)
    fill(initial, whole[first:last], name, role, Placement(tuple(whole.shape), row=first))
