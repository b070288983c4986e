"""Document masks in both forms, initial weights, and published frequencies for long contexts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plinth.model.attention import CoreAttention, attention_mask, document_mask, flex_mask, repeats, rotary, scaled
from plinth.model.decoder import build
from plinth.model.parameters import Model, RopeScaling

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


def test_no_mask_is_built_where_no_document_ends() -> None:
    whole = SEGMENTS[2:]
    assert attention_mask(None, torch.float32) is None
    assert attention_mask(whole, torch.float32) is None
    assert attention_mask(SEGMENTS, torch.float32, whole=True) is None
    mask = attention_mask(SEGMENTS, torch.bfloat16)
    assert isinstance(mask, torch.Tensor)
    assert (mask.shape, mask.dtype) == ((3, 1, 200, 200), torch.bfloat16)


def test_scaled_frequencies_by_hand() -> None:
    """Wavelengths above 8192 / 1 are stretched, below 8192 / 4 kept, 4096 is a third of the way between."""
    frequency = 2 * math.pi / torch.tensor([100_000.0, 8192.0, 4096.0, 2048.0, 10.0])
    kept = torch.tensor([0.0, 0.0, 1 / 3, 1.0, 1.0])
    found = scaled(frequency, RopeScaling(factor=8.0)) / frequency
    assert torch.allclose(found, kept + (1 - kept) / 8)
    with pytest.raises(ValueError, match="not above"):
        RopeScaling(low_frequency_factor=4.0)


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
