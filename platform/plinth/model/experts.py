"""Mixture of experts: router, experts and balancing losses. No token is dropped.

    T  tokens    k  experts per token    N  experts    n  experts on this rank    D  model width    F  inner width

A token's rows are sorted by expert, multiplied expert by expert, and put back: permutations in both directions, without
sums whose order varies, so that the result is deterministic on every device.

    auxiliary loss   N sum_i f_i P_i; f_i share of the T k assignments to expert i, P_i mean probability of expert i
                     (Fedus et al., arXiv:2101.03961, equations 4 to 6; with k experts as in OLMoE, arXiv:2409.02060,
                     and in Megatron-LM: 1 if balanced; `transformers` omits the division by k)
    z-loss           mean of log(sum_i exp x_i)^2 over tokens (Zoph et al., arXiv:2202.08906, equation 5; the code that
                     trained OLMoE also divides by k, contrary to its paper)
    loss-free        a bias per expert in the selection only, moved by a constant against the sign of the load's error
                     (Wang et al., arXiv:2408.15664; DeepSeek-V3, arXiv:2412.19437, section 2.1.2)

Both losses are means over the sparse layers, and cover a rank's micro batch (Qwen3's: the global batch). Sigmoid
scores are divided by their sum to give P.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.model.division import EXPERTS_IN, EXPERTS_OUT, Declaration, Division, SequenceRanks
from plinth.model.parameters import Model
from plinth.model.sparsity import Experts

#: Balancing state in Hugging Face's name.
BIAS = "e_score_correction_bias"

#: Added to the sum of a token's weights before a division, as DeepSeek-V3 does.
LEAST_SUM = 1e-20


class Routes(NamedTuple):
    """Experts of each token."""

    weights: Tensor  # of the chosen experts [T, k]
    scores: Tensor  # of all experts [T, N], FP32, as the logits
    logits: Tensor
    order: Tensor  # assignments sorted by expert [T x k]; assignment i belongs to token i // k
    load: Tensor  # assignments of each expert [N]
    normalized: bool  # True if the scores of a token sum to 1

    @property
    def probabilities(self) -> Tensor:
        """Scores divided by their sum [T, N]."""
        return self.scores if self.normalized else self.scores / (self.scores.sum(-1, keepdim=True) + LEAST_SUM)


class Router(nn.Module):
    """Scores of all experts for each token, and the selection of some. `e_score_correction_bias` affects the selection
    only."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {"weight": Declaration("router"), BIAS: Declaration("bias")}

    def __init__(self, dim: int, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, dim))
        if experts.score == "sigmoid":
            self.register_buffer(BIAS, torch.zeros(experts.count, dtype=torch.float32))

    def forward(self, x: Tensor) -> Routes:
        """Select the experts of tokens [T, D]. The product is in FP32 for sigmoid scores, as in DeepSeek-V3."""
        if self.experts.score == "sigmoid":
            logits = functional.linear(x.float(), self.weight.float())
            scores = logits.sigmoid()
            chosen = (scores.detach() + getattr(self, BIAS)).topk(self.experts.active, dim=-1).indices
        else:
            logits = functional.linear(x, self.weight).float()
            scores = logits.softmax(dim=-1)
            chosen = scores.detach().topk(self.experts.active, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self.experts.normalize_top_k:
            weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
        weights = weights if self.experts.scale == 1.0 else weights * self.experts.scale
        kinds, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(kinds, torch.arange(self.experts.count, device=x.device), right=True)
        return Routes(
            weights, scores, logits, order, ends.diff(prepend=ends.new_zeros(1)), self.experts.score == "softmax"
        )


class _Rows(torch.autograd.Function):
    """Rows `order // copies` of x, where `order` is a permutation of all copies and `inverse` its inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return x[order if copies == 1 else order // copies]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        gradient = gradients[0][inverse]
        return (
            gradient if ctx.copies == 1 else gradient.view(-1, ctx.copies, *gradient.shape[1:]).sum(1),
            None,
            None,
            None,
        )


def permuted(x: Tensor, order: Tensor, inverse: Tensor, copies: int = 1) -> Tensor:
    """Return the rows of x [R, …], each `copies` times, in an order [R x copies] whose inverse is known."""
    rows: Tensor = _Rows.apply(x, order, inverse, copies)  # type: ignore[no-untyped-call]
    return rows


def inverse_of(order: Tensor) -> Tensor:
    """Return the inverse of a permutation."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


class StackedExperts(nn.Module):
    """SwiGLU of every expert on this rank; each parameter is [n, rows, columns]."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "gate_proj": EXPERTS_IN,
        "up_proj": EXPERTS_IN,
        "down_proj": EXPERTS_OUT,
    }

    def __init__(self, dim: int, experts: Experts, division: Division) -> None:
        super().__init__()
        self.ranks = division.experts
        self.gate_proj = nn.Parameter(torch.empty(experts.count, experts.ffn_dim, dim))
        self.up_proj = nn.Parameter(torch.empty(experts.count, experts.ffn_dim, dim))
        self.down_proj = nn.Parameter(torch.empty(experts.count, dim, experts.ffn_dim))

    def forward(self, x: Tensor, routes: Routes) -> Tensor:
        """Return the weighted sum [T, D] of the experts of each token of x [T, D]."""
        x, weights = self.ranks.enter_region(x), self.ranks.enter_region(routes.weights)
        inverse = inverse_of(routes.order)
        rows = permuted(x, routes.order, inverse, weights.shape[1])
        rows = self.ranks.spread(rows, routes.load, self.products)
        each = permuted(rows, inverse, routes.order).view(*weights.shape, -1)
        return self.ranks.leave_region((each * weights.to(x.dtype).unsqueeze(-1)).sum(1))

    def products(self, rows: Tensor, load: Tensor) -> Tensor:
        """Return the outputs of this rank's experts for rows [R, D] that are sorted by expert, `load` [n] for each.

        On GPUs one grouped product per matrix computes BF16; elsewhere a loop over the experts does. Grouped products
        need rows of whole 16 bytes.
        """
        aligned = all(width % 8 == 0 for width in self.up_proj.shape[1:])
        if rows.is_cuda and rows.dtype == torch.bfloat16 and len(rows) and aligned:
            return grouped(rows, load, self.gate_proj, self.up_proj, self.down_proj)
        matrices = zip(self.gate_proj.unbind(), self.up_proj.unbind(), self.down_proj.unbind(), strict=True)
        parts = torch.split(rows, _sizes(rows, load))
        return torch.cat([_swiglu(part, *three) for part, three in zip(parts, matrices, strict=True)])


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)


def grouped(rows: Tensor, load: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the outputs of experts by grouped products. The host does not read the load."""
    ends = load.cumsum(0).to(torch.int32)

    def product(x: Tensor, matrices: Tensor) -> Tensor:
        return functional.grouped_mm(x, matrices.transpose(1, 2), offs=ends)

    return product(functional.silu(product(rows, gate)) * product(rows, up), down)


def _sizes(rows: Tensor, load: Tensor) -> list[int]:
    """Return the load on the host. The meta device has no numbers; there the load is even."""
    if rows.is_meta:
        each, more = divmod(len(rows), len(load))
        return [each + (expert < more) for expert in range(len(load))]
    return [int(size) for size in load.tolist()]


class LayerRouting(NamedTuple):
    """Routing of one forward pass through a sparse layer."""

    load: Tensor  # assignments of each expert [N]
    loss: Tensor  # weighted balancing losses, FP32, with gradient
    entropy: Tensor | None = None  # mean entropy of the router's probabilities in nats, if measured
    rows: Tensor | None = None  # load by sequence [B, N], if measured


class RoutingRecord:
    """Reports of sparse layers during one forward pass, in the order of the layers. A recomputation in the backward
    pass computes the same numbers and reports nothing, because the record is closed by then."""

    def __init__(self, *, measures: bool = False) -> None:
        self.measures, self.open = measures, True
        self.layers: list[LayerRouting] = []

    def loss(self) -> Tensor:
        """Return the sum of the layers' balancing losses."""
        return torch.stack([layer.loss for layer in self.layers]).sum()

    def loads(self) -> Tensor:
        """Return the load [layers, N]."""
        return torch.stack([layer.load for layer in self.layers])


class SparseFeedForward(nn.Module):
    """Feed-forward of a sparse layer over [B, S, D] or [U, D]. The decoder sets `record` for a training pass."""

    def __init__(self, config: Model, division: Division, shared: nn.Module | None) -> None:
        super().__init__()
        assert config.experts is not None
        self.config, self.sequence = config.experts, division.sequence
        self.share = 1 / config.experts.sparse_layers(config.layers)
        self.gate = Router(config.dim, config.experts)
        self.experts = StackedExperts(config.dim, config.experts, division)
        self.record: RoutingRecord | None = None
        if shared is not None:
            self.shared_experts = shared

    def forward(self, x: Tensor) -> Tensor:
        """Map activations to the feed-forward's output of the same shape."""
        flat = x.flatten(0, -2)
        routes = self.gate(flat)
        if self.record is not None and self.training:
            routing = self._routing(routes)
            if self.record.measures:
                routing = measured(routing, routes, x.shape[0])
            if self.record.open:
                self.record.layers.append(routing)
        out: Tensor = self.experts(flat, routes)
        if self.config.shared:
            out = out + self.shared_experts(flat)
        return out.view_as(x)

    def _routing(self, routes: Routes) -> LayerRouting:
        probabilities = routes.probabilities
        loss = probabilities.new_zeros(())
        if self.config.balancing == "auxiliary" and self.config.auxiliary_coefficient:
            auxiliary = auxiliary_loss(probabilities, routes.load, self.config.active, self.sequence)
            loss = loss + self.config.auxiliary_coefficient * auxiliary
        if self.config.z_loss_coefficient:
            loss = loss + self.config.z_loss_coefficient * routes.logits.logsumexp(-1).square().mean()
        return LayerRouting(routes.load, loss * self.share)


@torch.no_grad()
def measured(routing: LayerRouting, routes: Routes, sequences: int) -> LayerRouting:
    """Add the measurements for health to the routing of a layer."""
    experts, assignments = len(routes.load), len(routes.order)
    kinds = torch.arange(experts, device=routes.order.device).repeat_interleave(routes.load, output_size=assignments)
    places = routes.order // (assignments // sequences) * experts + kinds
    rows = torch.zeros(sequences * experts, dtype=torch.int64, device=places.device)
    rows.index_add_(0, places, torch.ones_like(places))
    entropy = torch.special.entr(routes.probabilities).sum(-1).mean()
    return routing._replace(entropy=entropy, rows=rows.view(sequences, experts))


def auxiliary_loss(probabilities: Tensor, load: Tensor, active: int, sequence: SequenceRanks) -> Tensor:
    """Return the auxiliary loss of one layer: 1 if all experts have the same load.

    Over sequence ranks, the load is that of whole sequences, so that the mean over the ranks is the undivided loss.

    Args:
        probabilities: of each expert for this rank's tokens [T, N].
        load: this rank's assignments of each expert [N].
        active: experts per token.
    """
    tokens, experts = probabilities.shape
    shares = sequence.total(load).float() / (tokens * active * sequence.size)
    return experts * (shares * probabilities.mean(0)).sum()


def sparse_layers(module: nn.Module) -> Sequence[SparseFeedForward]:
    """Return the sparse feed-forwards within a module, in order, through any wrappers."""
    return [one for one in module.modules() if isinstance(one, SparseFeedForward)]
