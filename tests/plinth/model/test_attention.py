"""Document masks in both forms, initial weights, and published frequencies for long contexts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from plinth.model.attention import CoreAttention, attention_mask, document_mask, flex_mask, repeats, rotary, scaled
from plinth.model.decoder import build
from plinth.model.parameters import AttentionPath, Model, RopeScaling

SEGMENTS = torch.tensor([[0] * 40 + [1] * 90 + [2] * 70, [0] * 199 + [1], [0] * 200])


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_and_the_dense_mask_agree() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(3, 4, 200, 16, generator=generator)
    k, v = torch.randn(2, 3, 2, 200, 16, generator=generator)
    core = CoreAttention(0.2)
    dense = core(q, k, v, document_mask(SEGMENTS, q.dtype))
    with pytest.MonkeyPatch.context() as patch:  # eager: compiled, FlexAttention wants a GPU for gradients
        from torch.nn.attention.flex_attention import flex_attention

        patch.setattr("plinth.model.attention._flex", lambda: flex_attention)
        flex = core(q, k, v, flex_mask(SEGMENTS))
    assert torch.allclose(dense, flex, atol=1e-5)
    assert torch.allclose(dense[2], core(q, k, v)[2], atol=1e-5)  # a sequence of one document is plainly causal
    assert not torch.allclose(dense[1], core(q, k, v)[1], atol=1e-3)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("segments", [SEGMENTS, None], ids=["documents", "whole rows"])
@pytest.mark.parametrize("window", [1, 50, 199])
def test_a_window_hides_keys_that_are_too_far_or_in_other_documents(segments: torch.Tensor | None, window: int) -> None:
    at = torch.arange(200)
    seen = (at[:, None] >= at) & (at[:, None] - at < window)
    if segments is not None:
        seen = seen & (segments[:, :, None] == segments[:, None])
    dense = attention_mask(SEGMENTS, segments, torch.float32, window=window)
    assert isinstance(dense, torch.Tensor)
    assert torch.equal(dense.isfinite().squeeze(1).squeeze(0), seen)
    q, k, v = torch.randn(3, 3, 2, 200, 16, generator=torch.Generator().manual_seed(1))
    blocks = attention_mask(SEGMENTS, segments, torch.float32, window=window, path="flex")
    core = CoreAttention(0.2)
    assert torch.allclose(core(q, k, v, dense), core(q, k, v, blocks), atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("segments", [SEGMENTS, None], ids=["documents", "whole rows"])
def test_sinks_are_those_of_gpt_oss(segments: torch.Tensor | None) -> None:
    """Outputs and gradients of `transformers`' function for gpt-oss; FlexAttention's outputs."""
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(3, heads, 200, 16, generator=generator, requires_grad=True) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=generator).mul_(3).requires_grad_()
    mask = attention_mask(SEGMENTS, segments, torch.float32, window=50)
    module = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    theirs = gpt_oss.eager_attention_forward(module, q, k, v, mask, 0.2)[0].transpose(1, 2)
    core, given = CoreAttention(0.2), (q, k, v, sinks)
    ours = core(q, k, v, mask, sinks)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(ours, core(q, k, v, mask), atol=1e-2)
    weights = torch.randn(ours.shape, generator=generator)
    for own, other in zip(*(torch.autograd.grad((x * weights).sum(), given) for x in (ours, theirs)), strict=True):
        assert torch.allclose(own, other, atol=1e-4)
    with torch.no_grad():
        blocks = attention_mask(SEGMENTS, segments, torch.float32, window=50, path="flex")
        assert torch.allclose(core(*(x.detach() for x in (q, k, v)), blocks, sinks.detach()), ours, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("documents", [True, False])
def test_every_path_gives_the_same_loss(documents: bool) -> None:
    """FP32 on the CPU, grouped queries: what differs is the order of sums. Gradients, of paths that have one there."""
    model = build(Model(layers=2, dim=64, heads=4, kv_heads=2, ffn_dim=64), 50, 1)
    tokens = torch.randint(50, (3, 201), generator=torch.Generator().manual_seed(1))
    segments = SEGMENTS if documents else None
    losses, gradients = {}, {}
    paths: tuple[AttentionPath, ...] = ("auto", "sdpa", "flex") if documents else ("auto", "sdpa", "flex", "flash")
    for path in paths:
        model.attend_by(path)
        model.zero_grad()
        with torch.set_grad_enabled(path != "flex"):
            loss = model(tokens[:, :-1], segments, tokens[:, 1:])
        losses[path] = float(loss.detach())
        if path != "flex":
            loss.backward()
            gradients[path] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    for path in paths:
        assert losses[path] == pytest.approx(losses["auto"], rel=1e-6), path
    for gradient in gradients.values():
        assert float((gradient - gradients["auto"]).norm() / gradient.norm()) < 1e-5


def test_flash_is_one_kernel_or_an_error() -> None:
    core = CoreAttention(0.2)
    core.flash = True
    q = torch.randn(1, 2, 8, 16, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match=r"No available kernel|not implemented|No viable backend"):
        core(q, q, q)


@pytest.mark.exhaustive
def test_block_masks_are_compiled_once_per_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the compiler's back end: other documents of the same shape must not compile again."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(create_block_mask, dynamic=False, backend=counter)
    monkeypatch.setattr("plinth.model.attention.create_block_mask", compiled)
    counts = []
    for cut in (10, 100, 150):
        flex_mask((torch.arange(256) > cut).int()[None])
        counts.append(counter.frame_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * 3
    flex_mask(torch.zeros(2, 256, dtype=torch.int32))
    assert counter.frame_count == 2 * counts[0]


def test_no_mask_is_built_where_no_document_ends() -> None:
    whole = SEGMENTS[2:]
    assert attention_mask(whole, None, torch.float32) is None
    assert attention_mask(whole, whole, torch.float32) is None
    assert attention_mask(SEGMENTS, SEGMENTS, torch.float32, whole=True) is None
    assert attention_mask(whole, whole, torch.float32, window=200) is None
    mask = attention_mask(SEGMENTS, SEGMENTS, torch.bfloat16)
    assert isinstance(mask, torch.Tensor)
    assert (mask.shape, mask.dtype) == ((3, 1, 200, 200), torch.bfloat16)


def test_scaled_frequencies_by_hand() -> None:
    """Wavelengths above 8192 / 1 are stretched, below 8192 / 4 kept, 4096 is a third of the way between."""
    frequency = 2 * math.pi / torch.tensor([100_000.0, 8192.0, 4096.0, 2048.0, 10.0])
    kept = torch.tensor([0.0, 0.0, 1 / 3, 1.0, 1.0])
    found = scaled(frequency, Model(rope_scaling=RopeScaling(factor=8.0))) / frequency
    assert torch.allclose(found, kept + (1 - kept) / 8)
    with pytest.raises(ValueError, match="not above"):
        RopeScaling(low_frequency_factor=4.0)


def test_yarn_by_hand() -> None:
    """E = 16, theta 10^4, 256 tokens: pair d turns 256 / (2 pi 10^(d / 2)) times. 32 turns lie at d = 0.21 and 1 turn
    at 3.22, so the ramp runs from 0 to 4; factor 4 then leaves 1, 13/16, 10/16, 7/16 and 1/4 of the frequencies."""
    config = Model(dim=64, heads=4, rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_tokens=256))
    frequency = 10000.0 ** (-torch.arange(8) / 8)
    left = torch.tensor([1, 13 / 16, 10 / 16, 7 / 16, 1 / 4, 1 / 4, 1 / 4, 1 / 4])
    assert torch.allclose(scaled(frequency, config) / frequency, left)
    cos, sin = rotary(config, torch.arange(3), torch.float32)
    assert torch.allclose((cos**2 + sin**2).sqrt(), torch.full((3, 16), 0.1 * math.log(4) + 1))
    with pytest.raises(ValueError, match="beta_fast 1 is not above beta_slow 1"):
        RopeScaling(kind="yarn", beta_fast=1.0)


def test_positions_may_begin_anywhere() -> None:
    config = Model(rope_scaling=RopeScaling(original_tokens=16))
    cos, sin = rotary(config, torch.arange(32), torch.float32)
    later = rotary(config, torch.arange(20, 32), torch.float32)
    assert torch.equal(cos[20:], later[0])
    assert torch.equal(sin[20:], later[1])


@pytest.mark.parametrize(
    ("init", "inner", "residual"),
    [("normal", 0.02, 0.02), ("gpt2", 0.02, 0.01), ("trunc-normal", 0.02, 0.01), ("megatron", 0.05103, 0.02552)],
)
def test_initial_weights(init: str, inner: float, residual: float) -> None:
    """Two layers: sqrt(2 x 2) = 2. Megatron: sqrt(1 / (3 x 128))."""
    model = build(Model.model_validate({"layers": 2, "dim": 128, "init": init, "ffn_dim": 256}), 500, 1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    cut = 0.9866 if init == "trunc-normal" else 1.0  # standard deviation of a normal cut at three
    for name, std in (
        ("embed_tokens", inner),
        ("layers.0.mlp.up_proj.weight", inner),
        ("layers.1.mlp.down_proj.weight", residual),
        ("layers.1.self_attn.o_proj.weight", residual),
    ):
        assert float(weights[name].std()) == pytest.approx(std * cut, rel=0.03), name
        assert (float(weights[name].abs().max()) <= 3 * std) == (init == "trunc-normal")
    assert torch.equal(weights["norm.weight"], torch.ones(128))
    again = build(model.config, 500, 1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
def test_repeated_heads_divide_and_keep_company(kv_heads: int, shared: int, size: int) -> None:
    """Each rank's queries must find their own key/value head on it, whichever way heads are numbered."""
    heads = kv_heads * shared
    if heads % size:
        return
    times = repeats(heads, kv_heads, size)
    owners = [k for k in range(kv_heads) for _ in range(times)]  # of the repeated heads
    wanted = [q // shared for q in range(heads)]  # of each query
    for rank in range(size):
        keys = owners[rank * len(owners) // size : (rank + 1) * len(owners) // size]
        queries = wanted[rank * heads // size : (rank + 1) * heads // size]
        assert queries == [keys[q * len(keys) // len(queries)] for q in range(len(queries))]
