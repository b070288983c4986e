"""Initial weights.

    gpt2          normal with `init_std`; projections into the residual stream divided by sqrt(2 x layers)
                  (Radford et al. 2019, section 2.3; OLMo and Llama-style trainings do alike)
    normal        normal with `init_std`, everywhere
    trunc-normal  as gpt2, drawn within three standard deviations
    megatron      as gpt2 with standard deviation sqrt(1 / (3 D)) (Smith et al., arXiv:2201.11990)

Gains of norms are 1. With muP, matrices within blocks are divided by sqrt(m), m = dim / base_dim (Yang et al.,
arXiv:2203.03466, table 8); embeddings are not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from plinth.recipe.decoder import Model

#: Where `trunc-normal` cuts, in standard deviations.
CUT = 3.0

_RESIDUAL = ("o_proj.weight", "down_proj.weight")
_EMBEDDINGS = ("embed_tokens", "lm_head")


def standard_deviation(config: Model, name: str) -> float:
    """Of the initial values of a matrix, by its name in `Decoder`."""
    std = math.sqrt(1 / (3 * config.dim)) if config.init == "megatron" else config.init_std
    if name in _EMBEDDINGS:
        return std
    if config.init != "normal" and name.endswith(_RESIDUAL):
        std /= math.sqrt(2 * config.layers)
    return std / math.sqrt(config.width_multiplier)


def initialise(model: nn.Module, config: Model, seed: int) -> None:
    """Fill every parameter, in order.

    Draws from a generator of its own, one parameter after the other by name: the same on every rank and device.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0)
            else:
                parameter.copy_(drawn(config, name, parameter.shape, generator))


def drawn(config: Model, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Initial values of one matrix, FP32 on the CPU."""
    std = standard_deviation(config, name)
    values = torch.empty(shape)
    if config.init == "trunc-normal":
        return nn.init.trunc_normal_(values, 0.0, std, -CUT * std, CUT * std, generator=generator)
    return values.normal_(0.0, std, generator=generator)
