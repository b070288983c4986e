"""Compare planned activations with those that autograd saves of real models, on a rank of a group without
communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from plinth.model.attention import rotary
from plinth.model.parameters import Model
from plinth.operation import memory
from plinth.training.parallel.divided_decoder import divided_decoder, wrap_blocks
from plinth.training.parallel.topology import Topology
from plinth.training.parameters.parallel import Parallel

ROWS, TOKENS = 2, 64
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_norm": True, "head_dim": 24},
    "olmo2": {"architecture": "olmo2", "kv_heads": 4},
    "phi3": {"rotary_fraction": 0.25},
    "granite": {"sinks": True, "kv_heads": 4},
}


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """This process as the first of four, whose collectives do nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def _measured(model: Model, parallel: Parallel, dtype: torch.dtype) -> int:
    """Bytes that autograd saves of a forward pass, up to the last norm, parameters and token ids apart."""
    topology = Topology(parallel, 4, 0)
    part = divided_decoder(model, 101, topology, "cpu", dtype)
    for module in part.modules():
        for name, empty in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.full_like(empty, 0.02, memory_format=torch.contiguous_format)))
    own = {parameter.untyped_storage().data_ptr() for parameter in part.parameters()}
    wrap_blocks(part.blocks, parallel)
    found: dict[int, tuple[int, Tensor]] = {}

    def pack(saved: Tensor) -> Tensor:
        key = saved.untyped_storage().data_ptr()
        if key not in own and saved.is_floating_point():
            found[key] = (saved.untyped_storage().nbytes(), saved)
        return saved

    tokens = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    segments = (torch.arange(TOKENS) // 20).expand(ROWS, TOKENS) if model.document_mask else None
    with saved_tensors_hooks(pack, lambda saved: saved):
        out = part.states(tokens, segments)
    if parallel.activation_checkpointing == 1:  # a checkpoint holds these, in a tuple that no hook sees
        cosine_and_sine = rotary(model, part.division.sequence.positions(out), dtype)
        found |= {n: (one.nbytes, one) for n, one in enumerate(cosine_and_sine)}
    if topology.shape.pipeline == 1:  # the loss keeps it
        found[out.untyped_storage().data_ptr()] = (out.untyped_storage().nbytes(), out)
    return sum(size for size, _ in found.values())


def _off(name: str, parallel: Parallel, dtype: torch.dtype, *, gpu: bool = False, **given: Any) -> float:
    shape = {"layers": 4, "dim": 64, "heads": 4, "kv_heads": 2, "ffn_dim": 160, "document_mask": False}
    model = Model.model_validate(shape | SHAPES[name] | given)
    width = torch.empty(0, dtype=dtype).element_size()
    said = memory.kept(model, parallel, micro_batch=ROWS, sequence_tokens=TOKENS, width=width, gpu=gpu)
    return said / _measured(model, parallel, dtype) - 1


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.exhaustive)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize(
    "block",
    [
        {"activation_checkpointing": 0},
        {"activation_checkpointing": 2},
        {"tensor": 2, "sequence": 2},
        {"pipeline": 2, "activation_checkpointing": 1},
        *(
            pytest.param(block, marks=pytest.mark.exhaustive)
            for block in (
                {"activation_checkpointing": 1},
                {"activation_checkpointing": 3},
                {"tensor": 2},
                {"sequence": 2},
                {"sequence": 4},
                {"tensor": 2, "activation_checkpointing": 2},
                {"pipeline": 2},
            )
        ),
    ],
    ids=lambda block: ", ".join(f"{key} {value}" for key, value in block.items()),
)
def test_within_two_percent_of_the_hooks(
    name: str, dtype: torch.dtype, block: dict[str, Any], four_ranks: None
) -> None:
    assert abs(_off(name, Parallel(**block), dtype)) <= 0.02


def test_documents_bring_a_dense_mask(four_ranks: None) -> None:
    for name in SHAPES:
        assert abs(_off(name, Parallel(), torch.bfloat16, document_mask=True)) <= 0.02


@pytest.mark.parametrize("layers", [("sliding",), ("sliding", "full")])
@pytest.mark.parametrize("documents", [True, False])
def test_windows_bring_a_dense_mask_of_their_own(layers: tuple[str], documents: bool, four_ranks: None) -> None:
    window = {"tokens": 8, "layers": layers}
    assert abs(_off("llama", Parallel(), torch.bfloat16, document_mask=documents, window=window)) <= 0.02


@pytest.mark.parametrize("block", [{}, {"activation_checkpointing": 2}, {"sequence": 2}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "experts",
    [
        {"count": 8, "active": 2, "ffn_dim": 96, "z_loss_coefficient": 0.0},
        {"count": 4, "active": 3, "ffn_dim": 40, "shared": 2, "score": "sigmoid", "z_loss_coefficient": 0.0},
    ],
    ids=["softmax", "sigmoid"],
)
def test_experts_keep_the_rows_that_they_get(
    experts: dict[str, Any], dtype: torch.dtype, block: dict[str, int], four_ranks: None
) -> None:
    """The losses of a training pass keep one more number per expert and token, which no hook here sees."""
    assert abs(_off("llama", Parallel(**block), dtype, qk_norm=True, experts=experts)) <= 0.05


class _Fused(torch.autograd.Function):
    """RMSNorm as GPUs compute it: `_fused_rms_norm_backward` takes the input and the statistic, and no more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: list[int], weight: Tensor, eps: float) -> Tensor:
        made, statistic = torch.ops.aten._fused_rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, statistic)
        return made  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return None, None, None, None


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "granite"])  # sinks need FlexAttention there
@pytest.mark.parametrize("block", [{}, {"activation_checkpointing": 2}, {"tensor": 2, "sequence": 2}], ids=str)
def test_fused_norms_of_gpus(
    name: str, block: dict[str, Any], four_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [argument.name for argument in torch.ops.aten._fused_rms_norm_backward.default._schema.arguments]
    assert wanted == ["grad_out", "input", "normalized_shape", "rstd", "weight", "output_mask"]
    fused = lambda x, shape, weight, eps: _Fused.apply(x, list(shape), weight, eps)  # noqa: E731
    monkeypatch.setattr(functional, "rms_norm", fused)
    assert abs(_off(name, Parallel(**block), torch.bfloat16, gpu=True)) <= 0.02
