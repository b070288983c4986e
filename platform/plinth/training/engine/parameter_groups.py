"""Learning rate and weight decay by parameter.

    matrices     of the blocks: weight decay; with muP, lr / m (Yang et al., arXiv:2203.03466, table 8, Adam)
    embeddings   input and output: their own factor and decay; muP leaves their rate
    gains        of norms: no decay; muP leaves their rate

A group's rate is the schedule's times its `lr_factor`. Groups that would be alike are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from plinth.model.parameters import Model
from plinth.training.engine.parameters import Optimizer

_EMBEDDINGS = ("embed_tokens", "lm_head")


def parameter_groups(
    optimizer: Optimizer, model: Model, parameters: Iterable[tuple[str, nn.Parameter]]
) -> list[dict[str, Any]]:
    """Groups for AdamW, in a fixed order, of named parameters as `Decoder` names them."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in parameters:
        factor, decay = lr_factor(optimizer, model, name, parameter), weight_decay(optimizer, name, parameter)
        if optimizer.independent_weight_decay:
            decay /= optimizer.lr * factor
        groups.setdefault((factor, decay), _group(optimizer, factor, decay))["params"].append(parameter)
    return list(groups.values())


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


def _group(optimizer: Optimizer, factor: float, decay: float) -> dict[str, Any]:
    return {
        "params": [],
        "lr": optimizer.lr * factor,
        "lr_factor": factor,
        "betas": (optimizer.beta1, optimizer.beta2),
        "eps": optimizer.eps,
        "weight_decay": decay,
    }
