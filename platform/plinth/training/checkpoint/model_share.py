"""Division of the model's whole parameters among ranks, by bytes. Each rank writes, hashes and compares its own
parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from plinth.model.decoder import Decoder
from plinth.model.division import PipelineStage, file_tensors, state
from plinth.model.hugging_face import INDEX, WEIGHTS, config_text, hf_name
from plinth.model.parameters import Model
from plinth.training.checkpoint.digest_tree import Beat, silent
from plinth.training.checkpoint.universal import plain_name
from plinth.training.engine.engine import TrainingEngine
from plinth.training.parallel.topology import has_own_experts, ranks_of
from plinth.training.parameters.parallel import Parallel

# Assignment of whole parameters to writing ranks, by bytes.
#
# A parameter can be written by the ranks of its pipeline stage. Each stage assigns its parameters, largest first, to
# the rank with the fewest bytes (Graham's rule): so no rank writes more than the mean plus one parameter. Every rank
# computes the same assignment, without communication.

#: Minimum bytes per file: a small model is written by fewer ranks.
LEAST_FILE_BYTES = 1 << 20


class WholeParameter(NamedTuple):
    """Name of a whole parameter in `Decoder`, and its size in bytes."""

    name: str
    bytes: int


def divide(
    stages: Iterable[tuple[Sequence[WholeParameter], Sequence[int]]], least: int = LEAST_FILE_BYTES
) -> dict[str, int]:
    """Return the rank that writes each parameter, by parameter name.

    Args:
        stages: the parameters and the ranks of each pipeline stage.
        least: minimum bytes per file; a model is not divided into smaller files.
    """
    found = {}
    for parameters, ranks in stages:
        total = sum(one.bytes for one in parameters)
        writers = ranks[: max(1, min(len(ranks), total // max(least, 1)))]
        loads = [(0, place) for place in range(len(writers))]
        heapify(loads)
        for one in sorted(parameters, key=lambda one: (-one.bytes, one.name)):
            load, place = loads[0]
            heapreplace(loads, (load + one.bytes, place))
            found[one.name] = writers[place]
    return found


def file_names(division: Mapping[str, int]) -> dict[int, str]:
    """Return the name of the model file that each rank writes, without ranks that write no model file.

    Names are numbered in rank order as in `transformers`; a single file has no number.
    """
    writers = sorted(set(division.values()))
    if len(writers) == 1:
        return {writers[0]: WEIGHTS}
    count = len(writers)
    return {rank: f"model-{number:05d}-of-{count:05d}.safetensors" for number, rank in enumerate(writers, 1)}


def index_text(division: Mapping[str, int], total_bytes: int) -> dict[str, str]:
    """Return the name and text of the index that maps tensors to files. If one file contains all tensors, return an
    empty dict."""
    names = file_names(division)
    if len(names) == 1:
        return {}
    where = {hf_name(name): names[rank] for name, rank in sorted(division.items())}
    return {INDEX: config_text({"metadata": {"total_size": total_bytes}, "weight_map": where})}


# This rank's share of the model as whole parameters, which it writes, hashes and compares.
#
#     ZeRO 0 to 2        every rank holds the whole model, so nothing is copied or sent
#     ZeRO-3, tensor     a parameter is assembled at its writing rank; the others send their part
#     pipeline           a rank's share is part of its own stage
#
# A rank sends its own part of the model, and receives and stores its share: both fall with the number of ranks.


class ModelDivision(NamedTuple):
    """All parameters and buffers of the model, in order, and the rank that writes each."""

    writers: dict[str, int]
    tensors: dict[str, int]  # the same for the tensors of model files, in which every expert has its own
    bytes: int

    def share(self, rank: int) -> list[str]:
        """Return the names of the tensors that a rank writes."""
        return [name for name, writer in self.tensors.items() if writer == rank]


def division_of(engine: TrainingEngine) -> ModelDivision:
    """Return the division of the engine's model. Every rank computes the same division once, without communication."""
    config = engine.config
    size = next(engine.module.parameters()).element_size()
    return _division(config.model, config.vocab_size, config.parallel, config.ranks, size)


@lru_cache(maxsize=8)
def _division(model: Model, vocab_size: int, parallel: Parallel, ranks: int, element_bytes: int) -> ModelDivision:
    with torch.device("meta"):
        decoder = Decoder(model, vocab_size)
    every = [WholeParameter(name, tensor.numel() * element_bytes) for name, tensor in state(decoder)]
    groups = ranks_of(parallel, ranks, ("data", "sequence", "tensor"))
    first = PipelineStage(0, len(groups))
    stages: list[list[WholeParameter]] = [[] for _ in groups]
    for one in every:
        stages[first.owner(one.name, model.layers)].append(one)
    found = divide(zip(stages, groups, strict=True))
    writers = {one.name: found[one.name] for one in every}
    tensors = {part: writers[whole[0]] for whole in state(decoder) for part, _ in file_tensors([whole])}
    return ModelDivision(writers, tensors, sum(one.bytes for one in every))


def share(engine: TrainingEngine, division: ModelDivision, beat: Beat = silent) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of model files that this rank writes, one at a time. All ranks must iterate together.

    A parameter that this rank already has in full is yielded without a copy; others are assembled on the CPU.
    """
    for name, parameter in state(engine.module):
        plain = plain_name(name)
        writer = division.writers[plain]
        value = _at(engine, parameter, writer)
        if writer == engine.rank.index:
            assert value is not None
            yield from file_tensors([(plain, value)])
        beat()


def _at(engine: TrainingEngine, parameter: Any, writer: int) -> Tensor | None:
    """Assemble a whole parameter on the rank that writes it. All other ranks get None."""
    topology, here = engine.topology, engine.rank.index == writer
    if hasattr(parameter, "ds_tensor"):
        return _ranges_at(parameter, topology.replicas, topology.replica_ranks, writer, engine.rank.device)
    shard, value = getattr(parameter, "shard", None), parameter.detach()
    if shard is not None and has_own_experts(parameter):
        return _shards_at(value, shard[0], topology.experts, topology.expert_members, writer)
    if shard is None or topology.tensor is None:
        return value if here else None
    return _shards_at(value, shard[0], topology.tensor, topology.members(("tensor",)), writer)


def _ranges_at(
    parameter: Any, group: ProcessGroup | None, members: list[int], writer: int, device: torch.device
) -> Tensor | None:
    """Assemble a parameter that ZeRO-3 has flattened, padded and divided into equal ranges."""
    own = parameter.ds_tensor.data.view(-1).to(device)
    here = dist.get_rank() == writer
    if group is None:
        whole = own
    else:
        ranges = [torch.empty_like(own) for _ in members] if here else None
        dist.gather(own, ranges, dst=writer, group=group)
        if ranges is None:
            return None
        whole = torch.cat([one.cpu() for one in ranges])
    return whole[: parameter.ds_numel].view(parameter.ds_shape).cpu() if here else None


def _shards_at(part: Tensor, axis: int, group: ProcessGroup | None, members: list[int], writer: int) -> Tensor | None:
    """Assemble a parameter that tensor or expert ranks divide along an axis, unevenly if the size is not divisible."""
    if writer not in members:
        return None
    sizes = torch.zeros(len(members), dtype=torch.int64, device=part.device)
    sizes[dist.get_rank(group)] = part.shape[axis]
    dist.all_reduce(sizes, group=group)
    widest, here = int(sizes.max()), dist.get_rank() == writer
    padded = part.transpose(0, axis)
    padded = functional.pad(padded, (0, 0) * (padded.dim() - 1) + (0, widest - padded.shape[0])).contiguous()
    parts = [torch.empty_like(padded) for _ in members] if here else None
    dist.gather(padded, parts, dst=writer, group=group)
    if parts is None:
        return None
    kept = [each[: int(size)].cpu() for each, size in zip(parts, sizes, strict=True)]
    return torch.cat(kept).transpose(0, axis).contiguous()
