"""Optimizer of a rank: learning rate, parameter groups, and Muon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plinth.model.parameters import Model
from plinth.training.parallel.topology import EXPERT_GROUP, has_own_experts
from plinth.training.parameters.optimizers import OPTIMIZERS, Groups, MuonOptions, Optimizer, options_of

# Learning rate as a function of tokens, and learning rate and weight decay by parameter.

# Learning rate as a function of tokens: no state to save or resume, independent of batch size.
#
#     lr       ____________             warm-up   linear from start_lr
#             /            \            cosine    half a cosine (Loshchilov and Hutter, arXiv:1608.03983)
#            /   stable     \           linear    a straight line
#     start /                \ min      wsd       stable, then decay (Hu et al., arXiv:2404.06395): linear, or
#           0              total                  1 - sqrt (both Hägele et al., arXiv:2405.18392)
#                                       constant  stable
#                                       inverse-sqrt  lr * sqrt(warm-up / tokens) (Vaswani et al., arXiv:1706.03762)
#
# WSD with horizons decays before each of them, over `decay_fraction` of the tokens until there, and returns to the peak
# with the next step (WSD-S, Wen et al., arXiv:2410.05192): one run gives the loss of every horizon.
#
# A run that continues from a trained checkpoint warms up again from `start_lr` (Ibrahim et al., arXiv:2403.08763).


def learning_rate(optimizer: Optimizer, tokens: int, total_tokens: int) -> float:
    """Return the base learning rate of the optimizer step that ends at `tokens` (1 … total_tokens).

    Each parameter group multiplies this rate by its own factor. `tokens` and `total_tokens` may be in any unit if both
    have the same unit.
    """
    warmup = math.ceil(optimizer.warmup(total_tokens))
    if tokens <= warmup:
        return optimizer.start_lr + (optimizer.lr - optimizer.start_lr) * tokens / warmup
    if optimizer.schedule == "inverse-sqrt":
        return max(optimizer.min_lr, optimizer.lr * math.sqrt(warmup / tokens))
    done = (tokens - warmup) / max(1, total_tokens - warmup)
    return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * _share(optimizer, tokens, total_tokens, done)


def _share(optimizer: Optimizer, tokens: int, total_tokens: int, done: float) -> float:
    """Return the position of the learning rate between its minimum (0) and its peak (1).

    The position falls from 1 after the warm-up to 0 at the end.
    """
    if optimizer.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if optimizer.schedule == "linear":
        return 1 - done
    ends = (round(share * total_tokens) for share in optimizer.horizons)
    end = next((end for end in ends if tokens <= end), total_tokens)
    decay = optimizer.decay(end) if optimizer.schedule.startswith("wsd") else 0.0
    left = min(1.0, (end - tokens) / decay) if decay else 1.0
    return 1 - math.sqrt(1 - left) if optimizer.schedule == "wsd-sqrt" else left


# Learning rate and weight decay by parameter.
#
#     matrices     of the blocks: weight decay; with muP, lr / m (Yang et al., arXiv:2203.03466, table 8, Adam)
#     embeddings   input and output: their own factor and decay; muP leaves their rate
#     gains        of norms: no decay; muP leaves their rate
#     hidden       matrices of the blocks, if the optimizer treats them separately: with muP, its own factor
#
# A group's rate is the schedule's times its `lr_factor`. Equal groups are merged.
#
# With muP the spectral norm of a hidden matrix's update should not change when both its sides grow by m (Yang, Simon
# and Bernstein, arXiv:2310.17813). Adam's update has low rank: at a fixed size of its elements its norm grows as m. An
# orthogonal update has full rank: with Muon's scale `rms` its norm grows as sqrt(m), with `spectral` it is constant.

_EMBEDDINGS = ("embed_tokens", "lm_head")


def parameter_groups(
    optimizer: Optimizer, model: Model, parameters: Iterable[tuple[str, nn.Parameter]]
) -> list[dict[str, Any]]:
    """Return the parameter groups of the optimizer in a fixed order. Parameters are named as in `Decoder`."""
    groups: dict[tuple[float, float, bool, bool], dict[str, Any]] = {}
    hidden_factor = _hidden_factor(optimizer, model)
    for name, parameter in parameters:
        hidden, factor = False, lr_factor(optimizer, model, name, parameter)
        if hidden_factor is not None and parameter.dim() >= 2 and not _is_embedding(name):
            hidden, factor = True, hidden_factor
        decay = weight_decay(optimizer, name, parameter)
        if optimizer.independent_weight_decay:
            decay /= optimizer.lr * factor
        experts = has_own_experts(parameter)  # in a group of their own, which DeepSpeed divides over fewer ranks
        made = _group(optimizer, factor, decay, hidden) | ({"moe": True, "name": EXPERT_GROUP} if experts else {})
        group = groups.setdefault((factor, decay, hidden, experts), made)
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def _hidden_factor(optimizer: Optimizer, model: Model) -> float | None:
    kind = OPTIMIZERS.find(optimizer.kind)
    return None if kind.hidden_factor is None else kind.hidden_factor(options_of(optimizer), model.width_multiplier)


def lr_factor(optimizer: Optimizer, model: Model, name: str, parameter: nn.Parameter) -> float:
    """Return the factor that multiplies the schedule's learning rate for a parameter."""
    if _is_embedding(name):
        return optimizer.embedding_lr_factor
    return 1 / model.width_multiplier if parameter.dim() >= 2 else 1.0


def weight_decay(optimizer: Optimizer, name: str, parameter: nn.Parameter) -> float:
    """Return the recipe's weight decay for a parameter."""
    if parameter.dim() < 2:
        return 0.0
    if _is_embedding(name) and optimizer.embedding_weight_decay is not None:
        return optimizer.embedding_weight_decay
    return optimizer.weight_decay


def set_rates(groups: Iterable[dict[str, Any]], lr: float) -> None:
    """Set the learning rate of every group to the schedule's rate times the group's factor."""
    for group in groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def _is_embedding(name: str) -> bool:
    return name.split(".")[-1] in _EMBEDDINGS


def _group(optimizer: Optimizer, factor: float, decay: float, hidden: bool) -> dict[str, Any]:
    return {
        "params": [],
        "names": [],
        "lr": optimizer.lr * factor,
        "lr_factor": factor,
        "betas": (optimizer.beta1, optimizer.beta2),
        "eps": optimizer.eps,
        "weight_decay": decay,
        **({"hidden_matrices": True} if hidden else {}),
    }


# Muon for the hidden matrices, AdamW for embeddings and gains, for any division of matrices over ranks.
#
#     v  momentum of the gradient g:  v <- v + (1 - beta) (g - v)
#     u  Nesterov's look ahead:       g + beta (v - g)
#     O  u made orthogonal: five steps of Newton and Schulz in BF16
#     w  <- w (1 - lr decay) - lr scale O
#
# Jordan et al. 2024 (kellerjordan.github.io/posts/muon), Liu et al. 2025 ("Moonlight", arXiv:2502.16982); on whole
# matrices bit for bit equal to `torch.optim.Muon`. Momentum and weights are divided as by ZeRO; if a matrix is on
# several ranks, u is sent in BF16, which the iteration starts with in any case (`matrix_division`).
#
# If `found_inf` is 1, weights, momentum and moments do not change, without a host wait: the new values are computed and
# discarded.

#: Newton-Schulz iteration: coefficients, number of steps, and minimum norm to divide by (Jordan et al.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
LEAST_NORM = 1e-7

SCALES: dict[str, Callable[[int, int], float]] = {
    "rms": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral": lambda rows, columns: math.sqrt(max(1, rows / columns)),
}


def orthogonal(matrix: Tensor) -> Tensor:
    """Return an approximation of the nearest orthogonal matrix in BF16. Its singular values are between about 0.7 and
    1.2.

    Args:
        matrix: [rows, columns] in BF16; overwritten.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x.div_(x.norm().clamp(min=LEAST_NORM))
    for _ in range(STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def make(groups: Groups, optimizer: Optimizer, options: MuonOptions) -> Muon:
    """Create the Muon optimizer from the recipe's options."""
    return Muon(groups, options)


class Muon(torch.optim.Optimizer):
    """Optimizer that uses Muon for groups with `hidden_matrices` and PyTorch's fused AdamW for all other groups."""

    def __init__(self, groups: Groups, options: MuonOptions) -> None:
        super().__init__(groups, {"fused": True})  # `found_inf` is honored
        self._momentum, self._scale = options.momentum, SCALES[options.scale]
        others = [group for group in groups if not group.get("hidden_matrices")]
        for group in groups:
            group["counts_steps"] = not group.get("hidden_matrices")
        self._adamw = torch.optim.AdamW(others, fused=True) if others else None
        #: Parts of matrices in each flat tensor, for runs in which ZeRO replaces matrices with flat tensors.
        self.division = MatrixDivision()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient. If matrices are divided over ranks, all ranks must call this."""
        bad = getattr(self, "found_inf", None)
        self._step_others(bad)
        for group in self.param_groups:
            if group.get("hidden_matrices"):
                for flat in group["params"]:
                    if flat.grad is not None:
                        self._step_matrices(flat, group, bad)

    def _step_others(self, bad: Tensor | None) -> None:
        groups = [group for group in self.param_groups if not group.get("hidden_matrices")]
        if self._adamw is not None and groups:
            self._adamw.param_groups, self._adamw.state = groups, self.state
            self._adamw.found_inf = bad  # type: ignore[attr-defined]
            self._adamw.step()

    def _step_matrices(self, flat: Tensor, group: dict[str, Any], bad: Tensor | None) -> None:
        state = self.state[flat]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(flat, memory_format=torch.preserve_format)
        assert flat.grad is not None
        tensors = (flat.detach().view(-1), flat.grad.view(-1), state["momentum_buffer"].view(-1))
        for wave in self.division.waves(flat):
            self._step_wave(wave, tensors, group, bad)

    def _step_wave(self, wave: Wave, flat: tuple[Tensor, ...], group: dict[str, Any], bad: Tensor | None) -> None:
        """Update the matrices of one wave. The parts of each matrix are sent to the rank that orthogonalizes it, and
        back."""
        weights, gradient, momentum = ([all_[one.held] for one in wave.matrices] for all_ in flat)
        ahead = [self._look_ahead(v, g, bad) for v, g in zip(momentum, gradient, strict=True)]
        whole = wave.gather(ahead)
        made = {index: orthogonal(matrix).reshape(-1) for index, matrix in whole.items()}
        for one, w, update in zip(wave.matrices, weights, wave.scatter(made, ahead), strict=True):
            self._apply(one, w, update, group, bad)

    def _look_ahead(self, v: Tensor, g: Tensor, bad: Tensor | None) -> Tensor:
        """Add a gradient to the momentum, and return the matrix to orthogonalize, in BF16."""
        new = v.lerp(g, 1 - self._momentum)
        v.copy_(_unless(bad, new, v))
        return g.lerp(new, self._momentum).bfloat16()

    def _apply(self, one: HeldMatrix, w: Tensor, update: Tensor, group: dict[str, Any], bad: Tensor | None) -> None:
        lr = group["lr"]
        new = w.mul(1 - lr * group["weight_decay"]).add_(update, alpha=-lr * self._scale(*one.shape))
        w.copy_(_unless(bad, new, w))


def _unless(bad: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if bad is None else torch.where(bad == 0, new, old)


# Location of the parts of a matrix on ranks, and their exchange.
#
#     ZeRO-0       every rank holds every matrix: nothing is sent
#     ZeRO-1, -2   concatenated parameters of a group, divided evenly: most matrices are on one rank; a matrix across a
#                  border goes to the rank with the largest part
#     ZeRO-3       every matrix divided evenly over all ranks: as many matrices as ranks at once, each to one
#
# A rank computes only the matrices that it owns, so the work is divided like the memory. Parts are copied, never
# summed: the result does not depend on the number of ranks.
#
# Based on DeepSpeed 0.19: `stage_1_and_2.py` (`round_robin_bit16_offsets`), `stage3.py` (`grad_position`). Its own Muon
# is unsuitable: it updates the momentum before the guard's verdict, gathers momentum and gradient in FP32, and computes
# in FP32 or FP16 depending on the device.


class HeldRange(NamedTuple):
    """Range of elements of a flattened matrix on one rank."""

    rank: int  # in the group
    first: int
    size: int


class HeldMatrix(NamedTuple):
    """A matrix, and the range of its elements that each rank has."""

    shape: tuple[int, int]
    held: slice  # of this rank's flat tensor; empty if this rank has no part
    ranges: tuple[HeldRange, ...]  # ascending

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


class Wave(NamedTuple):
    """Matrices whose parts are sent between ranks together."""

    matrices: tuple[HeldMatrix, ...]
    owners: tuple[int, ...]  # rank in the group that assembles each matrix
    rank: int
    group: Any  # None: nothing is sent

    def gather(self, parts: Sequence[Tensor]) -> dict[int, Tensor]:
        """Assemble the matrices that this rank orthogonalizes from their parts [elements] on all ranks. Return them by
        index.

        All ranks must call this.
        """
        whole, transfers = dict[int, Tensor](), list[dist.P2POp]()
        for index, (one, owner) in enumerate(zip(self.matrices, self.owners, strict=True)):
            if owner == self.rank:
                whole[index] = torch.empty(one.size, dtype=parts[index].dtype, device=parts[index].device)
            for span in one.ranges:
                if owner == self.rank:
                    target = whole[index][span.first : span.first + span.size]
                    if span.rank == self.rank:
                        target.copy_(parts[index])
                    else:
                        transfers.append(self._transfer(dist.irecv, target, span.rank))
                elif span.rank == self.rank:
                    transfers.append(self._transfer(dist.isend, parts[index], owner))
        _complete(transfers)
        return {index: flat.view(self.matrices[index].shape) for index, flat in whole.items()}

    def scatter(self, whole: dict[int, Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """Send each whole matrix [elements] from the rank that orthogonalized it, and return this rank's part of every
        matrix.

        All ranks must call this.
        """
        parts, transfers = [torch.empty_like(part) for part in like], list[dist.P2POp]()
        for index, (one, owner) in enumerate(zip(self.matrices, self.owners, strict=True)):
            for span in one.ranges:
                if owner == self.rank:
                    source = whole[index][span.first : span.first + span.size]
                    if span.rank == self.rank:
                        parts[index] = source
                    else:
                        transfers.append(self._transfer(dist.isend, source, span.rank))
                elif span.rank == self.rank:
                    transfers.append(self._transfer(dist.irecv, parts[index], owner))
        _complete(transfers)
        return parts

    def _transfer(self, act: Any, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(act, tensor.contiguous(), dist.get_global_rank(self.group, peer), self.group)


class MatrixDivision:
    """Division of matrices over ranks, as waves per flat tensor. A tensor that is not flat is one undivided matrix."""

    def __init__(self) -> None:
        self._waves: dict[Tensor, list[Wave]] = {}

    def waves(self, flat: Tensor) -> list[Wave]:
        """Return the waves of matrices in a tensor that the optimizer updates. The order is the same on every rank."""
        if flat not in self._waves:
            self._waves[flat] = [  # without ZeRO
                _alone(HeldMatrix(shape, slice(at, at + size), (HeldRange(0, 0, size),)), 0)
                for shape, at, size in matrices_in(flat.shape)
            ]
        return self._waves[flat]

    def follow(self, outer: Any, groups: Sequence[dict[str, Any]]) -> None:
        """Find the tensors in which DeepSpeed's optimizer keeps the groups with `hidden_matrices`."""
        hidden = [index for index, group in enumerate(groups) if group.get("hidden_matrices")]
        if hasattr(outer, "fp32_partitioned_groups_flat"):
            self._waves = dict(_divided_each(outer, hidden))
        elif hasattr(outer, "round_robin_bit16_offsets"):
            for index in hidden:
                flat, group = outer.single_partition_of_fp32_groups[index], outer.real_dp_process_group[index]
                members, offsets = outer.round_robin_bit16_groups[index], outer.round_robin_bit16_offsets[index]
                self._waves[flat] = _end_to_end(members, offsets, flat.numel(), group)


def matrices_in(shape: Sequence[int]) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Yield the shape, first element and size of each matrix of a parameter: one per expert if it is stacked."""
    *stack, rows, columns = shape
    size = rows * columns
    yield from (((rows, columns), number * size, size) for number in range(math.prod(stack)))


def _alone(one: HeldMatrix, rank: int) -> Wave:
    return Wave((one,), (rank,), rank, None)


def _end_to_end(members: Sequence[Tensor], offsets: Sequence[int], share: int, group: Any) -> list[Wave]:
    """Divide matrices as ZeRO-1 and ZeRO-2 do: rank r has `share` elements of the concatenated group, starting at r x
    share."""
    rank = dist.get_rank(group)
    waves, across = list[Wave](), list[HeldMatrix]()
    placed = (
        (shape, offset + at, size)
        for member, offset in zip(members, offsets, strict=True)
        for shape, at, size in matrices_in(member.shape)
    )
    for shape, begin, size in placed:
        ranges = _ranges(begin, size, share)
        mine = next((span for span in ranges if span.rank == rank), None)
        if mine is None:
            continue
        start = begin + mine.first - rank * share
        one = HeldMatrix(shape, slice(start, start + mine.size), ranges)
        if len(ranges) == 1:
            waves.append(_alone(one, rank))
        else:
            across.append(one)
    owners = tuple(max(one.ranges, key=lambda span: (span.size, -span.rank)).rank for one in across)
    return [Wave(tuple(across), owners, rank, group), *waves] if across else waves


def _ranges(begin: int, size: int, share: int) -> tuple[HeldRange, ...]:
    """Return the ranges of a matrix that starts at element `begin`; rank r has `share` elements from r x share on."""
    holders = range(begin // share, (begin + size - 1) // share + 1)
    bounds = ((holder, max(begin, holder * share), min(begin + size, (holder + 1) * share)) for holder in holders)
    return tuple(HeldRange(holder, first - begin, last - first) for holder, first, last in bounds)


def _divided_each(outer: Any, hidden: Sequence[int]) -> Iterator[tuple[Tensor, list[Wave]]]:
    """Divide matrices as ZeRO-3 does: each is divided evenly over all ranks, in rank order. The last part is padded."""
    group = outer.dp_process_group
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for sub_group, members in enumerate(outer.fp16_groups):
        if outer.sub_group_to_group_id[sub_group] not in hidden:
            continue
        matrices = []
        for member in members:
            _, offset, share = outer.grad_position[outer.get_param_id(member)]
            for shape, at, size in matrices_in(member.ds_shape):
                ranges = _ranges(at, size, share)
                mine = next((span for span in ranges if span.rank == rank), HeldRange(rank, 0, 0))
                start = offset + (at + mine.first - rank * share if mine.size else 0)
                matrices.append(HeldMatrix(shape, slice(start, start + mine.size), ranges))
        waves = []
        for begin in range(0, len(matrices), world):
            some = tuple(matrices[begin : begin + world])
            owners = tuple(one.ranges[index % len(one.ranges)].rank for index, one in enumerate(some))
            waves.append(Wave(some, owners, rank, group))
        yield outer.fp32_partitioned_groups_flat[sub_group], waves


def _complete(transfers: list[dist.P2POp]) -> None:
    if transfers:
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
