"""Bytes per device by ZeRO stage (Rajbhandari et al. 2020, "ZeRO", section 3).

Adam keeps two moments in FP32. BF16 training adds an FP32 master copy, and holds parameters and gradients in
two bytes; FP32 training holds both in four and needs no copy. Either way: sixteen bytes per parameter.
"""

from __future__ import annotations

from typing import Literal

from plinth.recipe.training import Model
from plinth.records import Frozen


class Memory(Frozen):
    """Bytes on one device."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits


def per_device(
    model: Model,
    parameters: int,
    *,
    vocab_size: int,
    sequence_tokens: int,
    micro_batch: int,
    ranks: int,
    zero_stage: int,
    precision: Literal["fp32", "bf16"],
) -> Memory:
    """Peak bytes of one rank, without fragmentation, communication buffers and the runtime's own."""
    width = 2 if precision == "bf16" else 4
    optimizer = parameters * (12 if precision == "bf16" else 8)
    tokens = micro_batch * sequence_tokens
    return Memory(
        parameters=_share(parameters * width, ranks, zero_stage >= 3),
        gradients=_share(parameters * width, ranks, zero_stage >= 2),
        optimizer=_share(optimizer, ranks, zero_stage >= 1),
        activations=model.layers * tokens * _activation_values(model) * width,
        logits=tokens * vocab_size * (width + 2 * 4),  # logits, their FP32 copy for the loss, and its gradient
    )


def _share(size: int, ranks: int, divided: bool) -> int:
    return -(-size // ranks) if divided else size


def _activation_values(model: Model) -> int:
    """Values one layer keeps per token for its backward pass, attention scores recomputed (flash attention).

    Two norms' inputs and outputs, the queries, keys and values, the attention's output and its projection's
    input, and the three of SwiGLU (counted as in Korthikanti et al. 2022, for this architecture).
    """
    head = model.head_width
    keys_values = 2 * model.kv_heads * head
    return 4 * model.dim + (model.dim + keys_values) + model.dim + 3 * model.ffn_dim
