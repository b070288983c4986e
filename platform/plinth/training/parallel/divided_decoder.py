"""The part of a decoder that a rank trains, as DeepSpeed and checkpoints need it; whole parameters.

Every rank is given whole sequences and returns its share of the loss, so that the mean over all ranks is the loss of
the global batch, and the mean of gradients over data and sequence ranks is its gradient. The model is divided while it
is on the meta device: each rank makes the part of the initial weights that it holds, so that they are those of one
process and no rank ever holds them whole.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from plinth.model.decoder import Decoder, empty
from plinth.model.division import TensorRanks, declarations
from plinth.model.parameters import Model
from plinth.training.parallel.groups import division_of
from plinth.training.parallel.topology import Topology


def divided_decoder(
    config: Model, vocab_size: int, topology: Topology, device: torch.device | str, dtype: torch.dtype
) -> Decoder:
    """The part of the decoder that this rank holds, without its weights."""
    model = empty(config, vocab_size, division_of(topology), device, dtype)
    declared, ranks = declarations(model), model.division.tensor
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "shard"):
            # these mark norms that DeepSpeed adds up over tensor ranks; it counts others on the first tensor rank only
            parameter.model_parallel = True  # type: ignore[attr-defined]
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        elif declared[name].partial and ranks.size > 1:
            parameter.register_hook(partial(_total, ranks=ranks))  # type: ignore[no-untyped-call]
    return model


def _total(gradient: Tensor, ranks: TensorRanks) -> Tensor:
    """The sum over tensor ranks, in FP32: rounded once."""
    return ranks.total(gradient.float()).to(gradient.dtype)


def gathered(parameter: Tensor, topology: Topology) -> Tensor:
    """The undivided parameter, detached; a collective over the tensor ranks."""
    shard, value = getattr(parameter, "shard", None), parameter.detach()
    return value if shard is None or topology.tensor is None else _gathered(value, shard[0], topology.tensor)


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
