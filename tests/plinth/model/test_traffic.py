"""Bytes of matrix products against the operands that PyTorch really takes, on the meta device: exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from plinth.model import architectures
from plinth.model.architectures import flops_exact
from plinth.model.decoder import Decoder
from plinth.model.parameters import Model

ROWS, TOKENS = 2, 16
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Operands(TorchDispatchMode):
    """Counts the bytes that products of weights read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            operands = [one for one in (*args, out) if isinstance(one, Tensor) and one.dim() == 2]
            self.bytes += sum(one.numel() * one.element_size() for one in operands)
        return out


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
@pytest.mark.parametrize("tied", [True, False])
def test_products_are_what_torch_reads_and_writes(architecture: str, tied: bool) -> None:
    config = Model.model_validate(
        {"architecture": architecture, "layers": 3, "dim": 24, "heads": 4, "kv_heads": 2, "head_dim": 10, "ffn_dim": 56,
         "tied_embeddings": tied}
    )  # fmt: skip
    with torch.device("meta"):
        model, tokens = Decoder(config, 101), torch.zeros(ROWS, TOKENS, dtype=torch.long)
    with Operands() as counted:
        model(tokens, targets=tokens).backward()
    assert counted.bytes == architectures.product_bytes(config, 101, ROWS * TOKENS, 4)


@pytest.mark.parametrize(
    "experts",
    [
        {"qk_norm": True, "experts": {"count": 4, "active": 2, "ffn_dim": 40, "dense_first": 1}},
        {"experts": {"count": 6, "active": 3, "ffn_dim": 32, "shared": 2, "score": "sigmoid"}},
    ],
    ids=["softmax", "sigmoid"],
)
def test_all_experts_are_read_by_many_tokens(experts: dict[str, Any]) -> None:
    shape = {"layers": 3, "dim": 24, "heads": 4, "kv_heads": 2, "ffn_dim": 56}
    config = Model.model_validate(shape | experts)
    with torch.device("meta"):
        model, tokens = Decoder(config, 101), torch.zeros(ROWS, TOKENS, dtype=torch.long)
    with Operands() as counted:
        model(tokens, targets=tokens).backward()
    assert architectures.product_bytes(config, 101, ROWS * TOKENS, 4) == pytest.approx(counted.bytes, rel=1e-6)
    alone = architectures.weights_read(config, 101, 1)
    assert alone == pytest.approx(architectures.parameters(config, 101).products + 101 * 24)


def test_a_division_and_wider_elements() -> None:
    config = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64)
    whole, half = (architectures.product_bytes(config, 64, 128, 2, tensor=ranks) for ranks in (1, 2))
    undivided = 3 * 2 * 128 * (2 * 7 * 32 + 32)
    assert half == (whole - undivided) / 2 + undivided
    assert architectures.product_bytes(config, 64, 128, 4) == 2 * whole
    assert architectures.attention_bytes(config, 128, 2) == 2 * 128 * 2 * 6 * (4 + 2) * 8
    assert architectures.update_bytes(config, 64, 2) == 14 * sum(p.numel() for p in Decoder(config, 64).parameters())


def test_intensity_rises_with_the_matrices() -> None:
    def intensity(dim: int) -> float:
        config = Model(layers=2, dim=dim, heads=4, kv_heads=4, ffn_dim=4 * dim)
        return 2048 * flops_exact(config, 1000, 1024) / architectures.product_bytes(config, 1000, 2048, 2)

    found = [intensity(dim) for dim in (32, 128, 512, 2048)]
    assert found == sorted(found)
    assert found[-1] > 10 * found[0]
