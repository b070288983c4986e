"""FP8 products of linear layers, emulated on the CPU: which layers, what rounding, and what depends on the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plinth.errors import TrainingError
from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from plinth.training.config import RunConfig
from plinth.training.engine import ranks
from plinth.training.parameters.run import Training

KINDS = ["tensorwise", "rowwise", "rowwise_with_gw_hp"]
MODEL = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, tied_embeddings=False)
E4M3 = 448.0  # its greatest number


def emulated(kind: str, config: Model = MODEL) -> Decoder:
    model = build(config, 64, 1)
    ranks.convert(model, kind, emulate=True)
    return model


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor, axis: int | None) -> Tensor:
    """E4M3 with one scale, or with a power of two for each row along an axis."""
    most = x.abs().amax() if axis is None else x.abs().amax(axis, keepdim=True)
    scale = (E4M3 / most.double()).float()
    if axis is not None:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_of_blocks_and_no_others_with_their_parameters(kind: str) -> None:
    plain, model = build(MODEL, 64, 1), build(MODEL, 64, 1)
    held = dict(model.named_parameters())
    ranks.convert(model, kind, emulate=True)
    changed = {name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"}
    assert changed == {name for name, module in plain.named_modules() if isinstance(module, nn.Linear)}
    assert len(changed) == 2 * 7
    assert all(name.startswith("layers.") for name in changed)
    assert {name: id(one) for name, one in model.named_parameters()} == {name: id(one) for name, one in held.items()}


def test_a_side_that_the_kernels_do_not_take_stays() -> None:
    model = emulated("rowwise", Model(layers=1, dim=32, heads=4, kv_heads=1, ffn_dim=40))
    eighths = {name.rsplit(".", 1)[1] for name, one in model.named_modules() if type(one).__name__ == "Float8Linear"}
    assert eighths == {"q_proj", "o_proj"}  # 8 wide are k and v, 40 the feed-forward


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_of_rounded_matrices(kind: str) -> None:
    layer = emulated(kind).get_submodule("layers.0.mlp.up_proj")
    assert isinstance(layer, nn.Linear)
    x = (drawn(48, 32) * torch.arange(1, 49)[:, None]).requires_grad_()
    out = layer(x)
    axes = (None, None) if kind == "tensorwise" else (-1, -1)  # inputs: one row per token; weights: one row per output
    expected = rounded(x.detach(), axes[0]) @ rounded(layer.weight.detach(), axes[1]).T
    assert torch.allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(out, x @ layer.weight.T, rtol=1e-5, atol=1e-5)
    back = drawn(48, 64, seed=2)
    out.backward(back)
    exact = back.T @ x.detach()
    assert layer.weight.grad is not None
    if kind == "rowwise_with_gw_hp":
        assert torch.equal(layer.weight.grad, exact)
    else:
        assert not torch.equal(layer.weight.grad, exact)
        assert torch.allclose(layer.weight.grad, exact, atol=0.1 * float(exact.abs().max()))


@pytest.mark.parametrize(("kind", "same"), [("tensorwise", False), ("rowwise", True), ("rowwise_with_gw_hp", True)])
def test_a_token_stands_alone_where_scales_are_of_rows(kind: str, same: bool) -> None:
    layer = emulated(kind).get_submodule("layers.0.mlp.up_proj")
    x = drawn(16, 32)
    beside = torch.cat([x, 100 * drawn(16, 32, seed=3)])
    assert torch.equal(layer(x), layer(beside)[:16]) is same


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_near_those_of_bf16(kind: str) -> None:
    tokens = torch.randint(0, 64, (4, 33), generator=torch.Generator().manual_seed(1))
    found = []
    for model in (build(MODEL, 64, 1), emulated(kind)):
        loss = model(tokens[:, :-1], targets=tokens[:, 1:])
        loss.backward()
        gradients = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        found.append((loss.item(), torch.cat(gradients)))
    assert found[0][0] != found[1][0]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-2)
    assert torch.nn.functional.cosine_similarity(found[0][1], found[1][1], dim=0) > 0.99


@pytest.mark.exhaustive
def test_a_block_is_one_graph() -> None:
    model = emulated("rowwise_with_gw_hp")
    block = model.blocks[0]
    x, rotation = drawn(2, 16, 32), (torch.ones(16, 8), torch.zeros(16, 8))
    compiled = torch.compile(block.before, fullgraph=True, dynamic=False, backend="aot_eager")
    for one, other in zip(compiled(x, rotation), block.before(x, rotation), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def on(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    return torch.device("cuda", 0)


def test_what_cannot_be_computed_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run: RunConfig = make(float8="tensorwise", micro_batch_sequences=2, sequence_tokens=32)
    ranks.require_float8(run, "bf16", on((8, 9), monkeypatch))
    with pytest.raises(TrainingError, match=r"training\.float8 tensorwise cannot run on this cpu"):
        ranks.require_float8(run, "bf16", torch.device("cpu"))
    with pytest.raises(TrainingError, match=r"compute capability 8\.0"):
        ranks.require_float8(run, "bf16", on((8, 0), monkeypatch))
    with pytest.raises(TrainingError, match=r"9\.0 or more"):
        ranks.require_float8(make(float8="rowwise"), "bf16", on((8, 9), monkeypatch))
    with pytest.raises(TrainingError, match="with precision fp32"):
        ranks.require_float8(run, "fp32", on((9, 0), monkeypatch))
    odd = run.model_copy(update={"micro_batch_sequences": 1, "sequence_tokens": 40})
    with pytest.raises(TrainingError, match="micro batches of 40 tokens"):
        ranks.require_float8(odd, "bf16", on((9, 0), monkeypatch))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"parallel": {"tensor": 2}, "launch": {"ranks": 2}}, "with parallel.tensor 2"),
        ({"parallel": {"sequence": 2}, "launch": {"ranks": 2}}, "with parallel.sequence 2"),
        ({"parallel": {"zero_stage": 3}}, "with parallel.zero_stage 3"),
        ({"precision": "fp16"}, "with precision fp16"),
    ],
)
def test_what_does_not_compose_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Training.model_validate({"float8": "rowwise", **given})
