"""Learning rate as a function of tokens (nothing to save, nothing to resume, whatever a step's size), and learning rate
and weight decay by parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import nn

from plinth.model.parameters import Model
from plinth.training.parameters.engine import Optimizer
from plinth.training.parameters.optimizers import OPTIMIZERS, options_of

# Learning rate as a function of tokens: nothing to save, nothing to resume, whatever a step's size.
#
#     lr       ____________             warm-up   linear from start_lr
#             /            \            cosine    half a cosine (Loshchilov and Hutter, arXiv:1608.03983)
#            /   stable     \           linear    a straight line
#     start /                \ min      wsd       stable, then decay (Hu et al., arXiv:2404.06395): linear, or
#           0              total                  1 - sqrt (both Hägele et al., arXiv:2405.18392)
#                                       constant  stable
#                                       inverse-sqrt  lr * sqrt(warm-up / tokens) (Vaswani et al., arXiv:1706.03762)
#
# WSD with horizons decays before each of them, over `decay_fraction` of the tokens until there, and is at the peak
# again with the next step (WSD-S, Wen et al., arXiv:2410.05192): one run gives the loss of every horizon.
#
# A run that goes on from a trained checkpoint warms up again from `start_lr` (Ibrahim et al., arXiv:2403.08763).


def learning_rate(optimizer: Optimizer, tokens: int, total_tokens: int) -> float:
    """Peak-group rate of the optimizer step that ends at `tokens` (1 … total_tokens); other groups are multiples.

    Tokens are of any unit, so long as both are of the same.
    """
    warmup = math.ceil(optimizer.warmup(total_tokens))
    if tokens <= warmup:
        return optimizer.start_lr + (optimizer.lr - optimizer.start_lr) * tokens / warmup
    if optimizer.schedule == "inverse-sqrt":
        return max(optimizer.min_lr, optimizer.lr * math.sqrt(warmup / tokens))
    done = (tokens - warmup) / max(1, total_tokens - warmup)
    return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * _share(optimizer, tokens, total_tokens, done)


def _share(optimizer: Optimizer, tokens: int, total_tokens: int, done: float) -> float:
    """The remaining share of the span between peak and minimum: 1 after warm-up, 0 at the end."""
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
#     hidden       matrices of the blocks, where the optimizer treats them apart: with muP, its own factor
#
# A group's rate is the schedule's times its `lr_factor`. Groups that would be alike are one.
#
# With muP the spectral norm of a hidden matrix's update is to stay as it is when both its sides grow by m (Yang, Simon
# and Bernstein, arXiv:2310.17813). Adam's update is of low rank: at a fixed size of its elements its norm grows as m.
# An orthogonal one is of full rank: with Muon's scale `rms` its norm grows as sqrt(m), with `spectral` it stays.

_EMBEDDINGS = ("embed_tokens", "lm_head")


def parameter_groups(
    optimizer: Optimizer, model: Model, parameters: Iterable[tuple[str, nn.Parameter]]
) -> list[dict[str, Any]]:
    """Groups for the optimizer, in a fixed order, of named parameters as `Decoder` names them."""
    groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
    hidden_factor = _hidden_factor(optimizer, model)
    for name, parameter in parameters:
        hidden, factor = False, lr_factor(optimizer, model, name, parameter)
        if hidden_factor is not None and parameter.dim() == 2 and not _is_embedding(name):
            hidden, factor = True, hidden_factor
        decay = weight_decay(optimizer, name, parameter)
        if optimizer.independent_weight_decay:
            decay /= optimizer.lr * factor
        group = groups.setdefault((factor, decay, hidden), _group(optimizer, factor, decay, hidden))
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def _hidden_factor(optimizer: Optimizer, model: Model) -> float | None:
    kind = OPTIMIZERS.find(optimizer.kind)
    return None if kind.hidden_factor is None else kind.hidden_factor(options_of(optimizer), model.width_multiplier)


def lr_factor(optimizer: Optimizer, model: Model, name: str, parameter: nn.Parameter) -> float:
    """The factor of the schedule's rate for a parameter."""
    if _is_embedding(name):
        return optimizer.embedding_lr_factor
    return 1 / model.width_multiplier if parameter.dim() >= 2 else 1.0


def weight_decay(optimizer: Optimizer, name: str, parameter: nn.Parameter) -> float:
    """The recipe's decay of a parameter."""
    if parameter.dim() < 2:
        return 0.0
    if _is_embedding(name) and optimizer.embedding_weight_decay is not None:
        return optimizer.embedding_weight_decay
    return optimizer.weight_decay


def set_rates(groups: Iterable[dict[str, Any]], lr: float) -> None:
    """Set every group to the schedule's rate times its factor."""
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
