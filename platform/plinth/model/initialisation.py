"""Initial weights of any part of any parameter: the same values however the model is divided.

    gpt2          normal with `init_std`; projections into the residual stream divided by sqrt(2 x layers)
                  (Radford et al. 2019, section 2.3; OLMo and Llama-style trainings do alike)
    normal        normal with `init_std`, everywhere
    trunc-normal  as gpt2, drawn within three standard deviations
    megatron      as gpt2 with standard deviation sqrt(1 / (3 D)) (Smith et al., arXiv:2201.11990)

Gains of norms are 1, biases 0. With muP, matrices within blocks are divided by sqrt(m), m = dim / base_dim (Yang et
al., arXiv:2203.03466, table 8); embeddings are not.

Every matrix is cut into tiles of 256 x 1,024. A tile's values come from a generator of its own (PCG64DXSM: O'Neill,
"PCG", HMC-CS-2014-0905, as in NumPy), keyed by seed, parameter name and the tile's place, so that a rank draws the
tiles that its part touches and no others: weights do not depend on how a model is divided, and no rank needs memory
for more than its part and one tile. Uniform numbers become normal ones by the inverse of the normal distribution.
PyTorch's own generator takes 32 bits of a seed: among the 270,000 tiles of a 70B model eight pairs would be alike.
"""

from __future__ import annotations

import hashlib
import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plinth.compute.threads import torch_threads
from plinth.model.division import Placement, Role, declarations
from plinth.model.parameters import Model

#: Where `trunc-normal` cuts, in standard deviations.
CUT = 3.0

#: Rows and columns of a tile: 1 MiB of FP32, which stays in a core's cache. Part of what the values are.
TILE = (256, 1024)


def standard_deviation(config: Model, role: Role) -> float:
    """Of the initial values of a matrix."""
    std = math.sqrt(1 / (3 * config.dim)) if config.init == "megatron" else config.init_std
    if role == "embedding":
        return std
    if config.init != "normal" and role == "residual":
        std /= math.sqrt(2 * config.layers)
    return std / math.sqrt(config.width_multiplier)


class WeightSource(Protocol):
    """Gives any part of any parameter its first values."""

    def fill(self, target: Tensor, name: str, role: Role, placement: Placement) -> None:
        """Write the values of a part into `target`, in its precision and on its device."""


class Initial:
    """The initial weights of a model: a function of seed, parameter name and place in the parameter."""

    def __init__(self, config: Model, seed: int) -> None:
        self.config, self.seed = config, seed

    @torch.no_grad()
    @torch_threads()
    def fill(self, target: Tensor, name: str, role: Role, placement: Placement) -> None:
        """Write the values of a part into `target`, in its precision and on its device.

        Args:
            target: [rows, columns] of the part, or [width] of a norm or bias.
            name: of the parameter in `Decoder`.
            role: as the parameter is declared.
            placement: where the first element of `target` lies in the whole.
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
        """The values of a tile, FP32 on the CPU, in the memory of `scratch`; narrower at the matrix's end."""
        rows, columns = (min(size, whole - at * size) for size, whole, at in zip(TILE, shape, place, strict=True))
        key = hashlib.sha256(f"{self.seed} {name} {place[0]} {place[1]}".encode()).digest()
        uniform = scratch[: rows * columns]
        np.random.Generator(np.random.PCG64DXSM(int.from_bytes(key, "little"))).random(dtype=np.float32, out=uniform)
        values = torch.from_numpy(uniform)
        # 24 bits in [0, 1) to the middles of as many steps of (-1, 1), exactly; at an end the inverse would be infinite
        values.mul_(2.0).sub_(1.0 - 2.0**-24)
        if self.config.init == "trunc-normal":
            values.mul_(math.erf(CUT / math.sqrt(2.0)))
        return values.erfinv_().mul_(std * math.sqrt(2.0)).view(rows, columns)


def initialise(model: nn.Module, initial: WeightSource) -> None:
    """Give every parameter of an empty model its memory and its values, one after the other."""
    declared = declarations(model)
    for name, parameter in model.named_parameters():
        placement = getattr(parameter, "placement", Placement(tuple(parameter.shape)))
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        initial.fill(parameter.data, name, declared[name].role, placement)
