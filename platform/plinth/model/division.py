"""Division of a decoder over ranks: declarations of parameters, a rank's part, loss over a divided vocabulary, and
initial weights, which do not depend on the division.

    Declaration      division of a parameter over tensor ranks, and its initialization
    PipelineStage    layers of a rank
    TensorRanks      ranks that share every matrix (Megatron-LM, arXiv:1909.08053)
    SequenceRanks    ranks that share every sequence (DeepSpeed-Ulysses, arXiv:2309.14509)
    ExpertRanks      ranks that share the experts of every sparse layer (GShard, arXiv:2006.16668)
    Division         stage, tensor, sequence and expert ranks of one rank; `UNDIVIDED` is the whole model

Every module class with parameters has a table `DECLARED`, which maps each parameter name within the module to its
`Declaration`. The classes here describe a single rank and do not communicate. The subclasses in
`plinth.training.parallel` have process groups and communicate.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.compute.engine import torch_threads
from plinth.model.loss import IGNORED
from plinth.model.parameters import Model
from plinth.model.sparsity import expert_name

#: Role of a parameter; it determines the initial values. `residual` marks projections into the residual stream.
Role = Literal["matrix", "residual", "embedding", "router", "gain", "bias"]


class Declaration(NamedTuple):
    """Role of a parameter, and its division over tensor ranks."""

    role: Role
    axis: int | None = None  # axis of the division: 0 rows, 1 columns; None: replicated
    partial: bool = False  # replicated, but used on each rank's own heads: gradients are summed
    experts: bool = False  # divided by whole experts over the ranks of `Division.experts`


ROWS = Declaration("matrix", axis=0)
COLUMNS = Declaration("residual", axis=1)
VOCABULARY = Declaration("embedding", axis=0)
GAIN = Declaration("gain")
HEAD_GAIN = Declaration("gain", partial=True)
DIVIDED_GAIN = Declaration("gain", axis=0)
DIVIDED_BIAS = Declaration("bias", axis=0)
EXPERTS_IN = Declaration("matrix", axis=0, experts=True)
EXPERTS_OUT = Declaration("residual", axis=0, experts=True)


def declarations(model: nn.Module) -> dict[str, Declaration]:
    """Return the declaration of every parameter and buffer by its full name. Raise KeyError if one is undeclared."""
    declared = {
        f"{prefix}.{name}" if prefix else name: declaration
        for prefix, module in model.named_modules()
        for name, declaration in getattr(module, "DECLARED", {}).items()
    }
    return {name: declared[name] for name, _ in state(model)}


def state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and then the buffers of a model, by name."""
    yield from model.named_parameters()
    yield from buffers(model)


def buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the declared buffers of a model, by name: state that no gradient changes."""
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name in getattr(module, "DECLARED", {}):
                yield f"{prefix}.{name}", buffer


def file_tensors(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield whole tensors as model files have them: the tensors of each expert on their own."""
    for name, tensor in named:
        if tensor.dim() < 3:
            yield name, tensor
        else:
            yield from ((expert_name(name, expert), part) for expert, part in enumerate(tensor.unbind()))


class Placement(NamedTuple):
    """Position of a rank's part within the whole parameter."""

    shape: tuple[int, ...]  # shape of the whole parameter
    row: int = 0  # first row of the part
    column: int = 0


def bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Return the half-open range of part `index` if `size` rows are divided into `parts` parts.

    The parts have the same sizes as those of `torch.chunk`: the last part may be smaller.
    """
    each = -(-size // parts)
    return min(index * each, size), min((index + 1) * each, size)


class SharingRanks:
    """Ranks that share parameters and have the same input. This base class is the case of a single rank."""

    size = 1
    index = 0

    def enter_region(self, x: Tensor) -> Tensor:
        """Return `x`, which is equal on every rank. The backward pass sums the gradients over the ranks."""
        return x

    def leave_region(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks. The backward pass leaves the gradient unchanged."""
        return x

    def bounds(self, size: int) -> tuple[int, int]:
        """Return the half-open range of this rank's rows, columns or experts, out of `size` in the whole model."""
        return bounds(size, self.size, self.index)


class TensorRanks(SharingRanks):
    """Ranks that share every matrix."""

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks, without gradient."""
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """Return the element-wise maximum of `x` over the ranks, without gradient."""
        return x


class ExpertRanks(SharingRanks):
    """Ranks that share the experts of every sparse layer."""

    def spread(self, rows: Tensor, load: Tensor, products: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return the outputs [R, D] of all experts for this rank's rows [R, D].

        Args:
            rows: rows sorted by expert.
            load: number of rows of each expert [N].
            products: outputs of this rank's experts, for rows that are sorted by expert and the number for each [n].
        """
        return products(rows, load)


class SequenceRanks:
    """Ranks that share every sequence; each rank has one slice. This base class is the case of a single rank.

    B  sequences    S  tokens per sequence    n  ranks    H  heads    E  head width
    """

    size = 1
    index = 0

    def slice(self, x: Tensor) -> Tensor:
        """Return this rank's slice [B, S/n, …] of x [B, S, …]."""
        length = x.shape[1] // self.size
        return x.narrow(1, self.index * length, length)

    def positions(self, x: Tensor) -> Tensor:
        """Return the positions [S/n] of this rank's slice x [B, S/n, …] within the whole sequence."""
        length = x.shape[1]
        return torch.arange(self.index * length, (self.index + 1) * length, device=x.device)

    def loss_weight(self, targets: Tensor) -> Tensor | int:
        """Return the weight of this rank's mean loss.

        With these weights, the mean over the ranks of the weighted losses equals the mean loss of all scored targets
        [B, S].
        """
        if self.size == 1:
            return 1
        return self.size * (self.slice(targets) != IGNORED).sum() / (targets != IGNORED).sum().clamp(min=1)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks, without gradient."""
        return x

    def scatter_heads(self, x: Tensor) -> Tensor:
        """Convert a slice of the tokens with all heads [B, H, S/n, E] to all tokens with some heads [B, H/n, S, E]."""
        return x

    def gather_heads(self, x: Tensor) -> Tensor:
        """Convert all tokens with some heads [B, H/n, S, E] to a slice of the tokens with all heads [B, H, S/n, E]."""
        return x


@dataclass(frozen=True)
class PipelineStage:
    """Pipeline stage of a rank: stage `index` of `count`."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True if the stage has the embedding."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """True if the stage has the last norm and the head, and computes the loss."""
        return self.index == self.count - 1

    def layers(self, total: int) -> range:
        """Return the indices of the stage's blocks, out of `total` blocks.

        If the blocks do not divide evenly, the first stages have one more block each, because the last stage has the
        head.
        """
        each, more = divmod(total, self.count)
        start = self.index * each + min(self.index, more)
        return range(start, start + each + (self.index < more))

    def owner(self, name: str, total: int) -> int:
        """Return the index of the stage that trains the parameter `name` (its name in `Decoder`)."""
        parts = name.split(".")
        if parts[0] == "layers":
            return next(n for n in range(self.count) if int(parts[1]) in replace(self, index=n).layers(total))
        return 0 if name == "embed_tokens" else self.count - 1


@dataclass(frozen=True)
class Division:
    """Part of a decoder on one rank, and the groups of ranks that have the other parts."""

    stage: PipelineStage = PipelineStage()
    tensor: TensorRanks = field(default_factory=TensorRanks)
    sequence: SequenceRanks = field(default_factory=SequenceRanks)
    experts: ExpertRanks = field(default_factory=ExpertRanks)


UNDIVIDED = Division()


# Embedding and loss over a vocabulary divided by rows over tensor ranks (Megatron-LM, section 3).
#
#     B  sequences    S  tokens of a sequence    N  tokens    D  model width
#
# The loss never stores whole logits. The vocabulary need not divide evenly.


def divided_embedding(tokens: Tensor, weight: Tensor, start: int, ranks: TensorRanks) -> Tensor:
    """Return the embeddings [B, S, D] of ids [B, S]. This rank's part of the matrix starts at id `start`."""
    local = tokens - start
    foreign = (local < 0) | (local >= weight.shape[0])
    found = functional.embedding(local.masked_fill(foreign, 0), weight)
    return ranks.leave_region(found.masked_fill(foreign.unsqueeze(-1), 0))


def divided_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, start: int, ranks: TensorRanks, *, scale: float, z_loss: float
) -> Tensor:
    """Return the mean cross-entropy over a divided vocabulary, as an FP32 scalar that is equal on every rank.

    The result equals that of `plinth.model.loss.cross_entropy`.

    Args:
        hidden: [N, D], the same on every rank.
        weight: this rank's rows of the output embeddings, beginning with id `start`.
        targets: ids of the whole vocabulary [N]; targets equal to `IGNORED` are not scored.
        scale, z_loss: as for `cross_entropy`.
    """
    logits = functional.linear(ranks.enter_region(hidden), weight)
    losses: Tensor = _CrossEntropy.apply(logits, targets, start, ranks, scale, z_loss)  # type: ignore[no-untyped-call]
    return losses.sum() / (targets != IGNORED).sum().clamp(min=1)


class _CrossEntropy(torch.autograd.Function):
    """Loss of each token [N] over a divided vocabulary: log Z - logits[target] + z_loss (log Z)^2.

    For each token, ranks exchange three numbers. Logits are scaled in FP32, as in `plinth.model.loss`.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, start: int, ranks: TensorRanks, scale: float, z_loss: float
    ) -> Tensor:
        values = logits.float() if scale == 1.0 else logits.float() * scale
        highest = ranks.maximum(values.max(dim=-1).values)
        exponents = (values - highest.unsqueeze(-1)).exp()
        local = targets - start
        ours = (local >= 0) & (local < logits.shape[-1])
        index = local.masked_fill(~ours, 0).unsqueeze(-1)
        picked = (values.gather(-1, index).squeeze(-1) - highest).masked_fill(~ours, 0)
        sums = ranks.total(torch.stack((exponents.sum(-1), picked)))
        scored, normaliser = targets != IGNORED, sums[0].log() + highest
        ctx.save_for_backward(exponents.div_(sums[0].unsqueeze(-1)), index, ours, scored, normaliser)
        ctx.dtype, ctx.scale, ctx.z_loss = logits.dtype, scale, z_loss
        return (sums[0].log() - sums[1] + z_loss * normaliser.square()).masked_fill(~scored, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        chances, index, ours, scored, normaliser = ctx.saved_tensors
        slope = chances * (1 + 2 * ctx.z_loss * normaliser).unsqueeze(-1) if ctx.z_loss else chances.clone()
        slope.scatter_add_(-1, index, -ours.to(slope.dtype).unsqueeze(-1))
        slope *= (gradients[0] * scored * ctx.scale).unsqueeze(-1)
        return slope.to(ctx.dtype), None, None, None, None, None


# Loss of each target, and whether greedy decoding would choose the target; used for scoring.
#
#     U  outputs    N  targets    D  model width    V  vocabulary
#
# Several targets may use one output (the answers to one question). Logits are in memory for some outputs at a time; the
# vocabulary may be divided over tensor ranks.

#: Logits in memory per thread; 64 MiB in FP32.
CHUNK_ELEMENTS = 2**24


def token_losses(
    hidden: Tensor, weight: Tensor, which: Tensor, targets: Tensor, start: int, ranks: TensorRanks, scale: float
) -> Tensor:
    """Return two FP32 columns [N, 2]: the loss -ln p of each target, and 1 if greedy decoding chooses the target, else
    0.

    If several tokens are equally probable, greedy decoding chooses the lowest id.

    Args:
        hidden: outputs after the last norm [U, D], the same on every tensor rank.
        weight: this rank's rows of the output embeddings, beginning with id `start`.
        which: index of the output that predicts each target, ascending [N].
        targets: ids of the whole vocabulary [N].
        start: first token id of this rank's part of the vocabulary.
        ranks: ranks that divide the vocabulary.
        scale: factor of the logits.
    """
    hidden, rows = ranks.enter_region(hidden), max(1, CHUNK_ELEMENTS // weight.shape[0])
    edges = torch.searchsorted(which, torch.arange(0, len(hidden) + rows, rows, device=which.device)).tolist()
    found = [torch.empty(0, 2, device=hidden.device)]
    for number, (first, last) in enumerate(pairwise(edges)):
        logits = functional.linear(hidden[number * rows : (number + 1) * rows], weight).float()
        logits = logits if scale == 1.0 else logits * scale
        found.append(_of(logits, which[first:last] - number * rows, targets[first:last], start, ranks))
    return torch.cat(found)


def _of(logits: Tensor, which: Tensor, targets: Tensor, start: int, ranks: TensorRanks) -> Tensor:
    """Return the two columns of `token_losses` for one chunk of targets, from this rank's part [u, V / ranks] of the
    logits."""
    local, best = logits.max(dim=-1)
    highest = ranks.maximum(local)
    mass = ranks.total((logits - highest.unsqueeze(-1)).exp().sum(-1)).log()
    chosen = -ranks.maximum(torch.where(local == highest, -(best + start), torch.iinfo(best.dtype).min))
    column = targets - start
    held = (column >= 0) & (column < logits.shape[-1])
    picked = logits[which, column.masked_fill(~held, 0)] - highest[which]
    picked = ranks.total(picked.masked_fill(~held, 0))
    return torch.stack((mass[which] - picked, (chosen[which] == targets).float()), dim=-1)


# Initial weights of any part of any parameter, independent of the division of the model.
#
#     gpt2          normal with `init_std`; projections into the residual stream divided by sqrt(2 x layers)
#                   (Radford et al. 2019, section 2.3; OLMo and Llama-style trainings do the same)
#     normal        normal with `init_std`, everywhere
#     trunc-normal  as gpt2, drawn within three standard deviations
#     trunc-normal-all  as normal, drawn within three standard deviations (OLMoE, arXiv:2409.02060, appendix B)
#     megatron      as gpt2 with standard deviation sqrt(1 / (3 D)) (Smith et al., arXiv:2201.11990)
#
# Gains of norms are 1, biases 0. With muP, matrices within blocks are divided by sqrt(m), m = dim / base_dim (Yang et
# al., arXiv:2203.03466, table 8); embeddings are not. A router is a matrix with an output that does not grow with the
# width, so it is divided by m (table 3), and each expert is a matrix like those of a dense block.
#
# Every matrix is divided into tiles of 256 x 1,024. A tile's values come from a generator of its own (PCG64DXSM:
# O'Neill, "PCG", HMC-CS-2014-0905, as in NumPy), keyed by seed, parameter name and the tile's place, so a rank draws
# only the tiles that its part touches: weights do not depend on the division, and a rank's memory is its part plus one
# tile. Uniform numbers become normal ones by the inverse of the normal distribution. PyTorch's own generator takes 32
# bits of a seed: among the 270,000 tiles of a 70B model eight pairs would be equal.

#: Truncation of `trunc-normal`, in standard deviations.
CUT = 3.0

#: Rows and columns of a tile: 1 MiB of FP32, which stays in a core's cache. Initial values depend on the tile size.
TILE = (256, 1024)


def standard_deviation(config: Model, role: Role) -> float:
    """Return the standard deviation of a matrix's initial values, by the role of the matrix."""
    std = math.sqrt(1 / (3 * config.dim)) if config.init == "megatron" else config.init_std
    if role == "embedding":
        return std
    if config.init not in ("normal", "trunc-normal-all") and role == "residual":
        std /= math.sqrt(2 * config.layers)
    return std / (config.width_multiplier if role == "router" else math.sqrt(config.width_multiplier))


class WeightSource(Protocol):
    """Source of initial values for any part of any parameter."""

    def fill(self, target: Tensor, name: str, role: Role, placement: Placement) -> None:
        """Write initial values into `target`, which is a part of a parameter and keeps its precision and device."""


class Initial:
    """Initial weights of a model. A value depends only on seed, parameter name and position in the parameter."""

    def __init__(self, config: Model, seed: int) -> None:
        self.config, self.seed = config, seed

    @torch.no_grad()
    @torch_threads()
    def fill(self, target: Tensor, name: str, role: Role, placement: Placement) -> None:
        """Write initial values into `target`, which is a part of a parameter and keeps its precision and device.

        Args:
            target: [rows, columns] of the part, or [width] of a norm or bias.
            name: name of the parameter in `Decoder`.
            role: declared role of the parameter.
            placement: position of the first element of `target` in the whole parameter.
        """
        if role in ("gain", "bias"):
            target.fill_(1.0 if role == "gain" else 0.0)
            return
        scratch = np.empty(TILE[0] * TILE[1], dtype=np.float32)
        std = standard_deviation(self.config, role)
        first = (placement.row, placement.column)
        end = (first[0] + target.shape[0], first[1] + target.shape[1])
        for i in range(first[0] // TILE[0], -(-end[0] // TILE[0])):
            for j in range(first[1] // TILE[1], -(-end[1] // TILE[1])):
                tile = self._tile(scratch, name, placement.shape, (i, j), std)
                top, left = i * TILE[0], j * TILE[1]
                rows = slice(max(first[0], top), min(end[0], top + TILE[0]))
                columns = slice(max(first[1], left), min(end[1], left + TILE[1]))
                held = tile[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
                there = target[rows.start - first[0] : rows.stop - first[0]]
                there[:, columns.start - first[1] : columns.stop - first[1]].copy_(held)

    def _tile(
        self, scratch: npt.NDArray[np.float32], name: str, shape: tuple[int, ...], place: tuple[int, int], std: float
    ) -> Tensor:
        """Return the initial values of a matrix tile as a view of `scratch`, in FP32 on the CPU.

        Tiles at the edges of the matrix may be smaller than `TILE`.
        """
        rows, columns = (min(size, whole - at * size) for size, whole, at in zip(TILE, shape, place, strict=True))
        key = hashlib.sha256(f"{self.seed} {name} {place[0]} {place[1]}".encode()).digest()
        uniform = scratch[: rows * columns]
        np.random.Generator(np.random.PCG64DXSM(int.from_bytes(key, "little"))).random(dtype=np.float32, out=uniform)
        values = torch.from_numpy(uniform)
        # 24 bits in [0, 1) to midpoints of (-1, 1), exactly; the inverse is infinite at the ends
        values.mul_(2.0).sub_(1.0 - 2.0**-24)
        if self.config.init.startswith("trunc-normal"):
            values.mul_(math.erf(CUT / math.sqrt(2.0)))
        return values.erfinv_().mul_(std * math.sqrt(2.0)).view(rows, columns)


def initialise(model: nn.Module, initial: WeightSource) -> None:
    """Allocate and initialize all parameters of an empty model, one at a time."""
    declared = declarations(model)
    for name, tensor in state(model):
        placement = getattr(tensor, "placement", Placement(tuple(tensor.shape)))
        tensor.data = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        fill(initial, tensor.data, name, declared[name].role, placement)


def fill(initial: WeightSource, target: Tensor, name: str, role: Role, placement: Placement) -> None:
    """Write initial values into a part of a parameter, expert by expert if it is stacked."""
    if target.dim() < 3:
        initial.fill(target, name, role, placement)
        return
    for number, part in enumerate(target.unbind()):
        initial.fill(part, expert_name(name, placement.row + number), role, Placement(placement.shape[1:]))
