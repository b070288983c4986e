"""Operations against PyTorch's own counter, on the meta device: exact, for every preset.

The fused attention of CPUs is not registered with the counter, which would count none: the plain one is taken.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from plinth.model import architectures
from plinth.model.attention import document_mask
from plinth.model.decoder import Decoder
from plinth.model.parameters import PRESETS, Model, SlidingWindow
from plinth.training.parallel.divided_decoder import wrap_blocks
from plinth.training.parameters.parallel import Parallel

ROWS, TOKENS = 2, 16
DENSE = {"layers": 4, "dim": 24, "heads": 4, "kv_heads": 2, "ffn_dim": 56}


def _counted(config: Model, vocab_size: int, every: int) -> int:
    """FLOPs of one training step of ROWS x TOKENS tokens."""
    with torch.device("meta"):
        model, tokens = Decoder(config, vocab_size), torch.zeros(ROWS, TOKENS, dtype=torch.long)
    wrap_blocks(model.blocks, Parallel(activation_checkpointing=every))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, targets=tokens).backward()
    return int(counter.get_total_flops())


#: The smallest of both architectures; others take up to seconds.
QUICK = {"1m", "10m", "olmo2-1b"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in PRESETS]
)
def test_every_preset_is_what_torch_counts(name: str) -> None:
    config, vocabulary, tokens = Model(preset=name), PRESETS[name].vocab_size, ROWS * TOKENS
    assert _counted(config, vocabulary, 0) == tokens * architectures.flops_exact(config, vocabulary, TOKENS)


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_recomputation_is_what_torch_counts(architecture: str, every: int) -> None:
    """Models with odd shapes: head width independent of dim, a prime vocabulary size, a layer left over."""
    config = Model.model_validate(
        {"architecture": architecture, "layers": 4, "dim": 24, "heads": 4, "kv_heads": 2, "head_dim": 10, "ffn_dim": 56}
    )
    planned = architectures.flops_hardware(config, 101, [TOKENS] * 4, every=every, fused=False)
    assert _counted(config, 101, every) == ROWS * TOKENS * planned


def test_fused_attention_does_14_for_12() -> None:
    """The counter knows FlashAttention's kernel of GPUs, without its causal half."""
    config = Model(layers=1, dim=64, heads=4, kv_heads=4, ffn_dim=128)
    q, k, v = (torch.zeros(ROWS, 4, TOKENS, 16, device="meta", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    with FlopCounterMode(display=False) as counter:
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0].sum().backward()
    attention = architectures.flops_hardware(config, 101, [TOKENS]) - 6 * (4 * 64 * 64 + 3 * 64 * 128 + 101 * 64)
    assert counter.get_total_flops() == ROWS * TOKENS * attention == ROWS * TOKENS * 14 * 64 * TOKENS


def test_documents_need_the_keys_that_their_mask_leaves() -> None:
    lengths = [1, 5, 7, 3]
    segments = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    seen = int(document_mask(segments, torch.float32).isfinite().sum())
    assert architectures.keys_per_token(lengths) == seen / 16 == (1 + 15 + 28 + 6) / 16
    assert architectures.keys_per_token([16]) == 8.5
    tiny = Model(layers=2, dim=8, heads=2, kv_heads=1, ffn_dim=16)
    exact, causal = (architectures.flops_causal(tiny, 1000, [keys] * 2) for keys in (16, 8.5))
    assert exact == architectures.flops_exact(tiny, 1000, 16)
    assert exact - causal == 12 * 2 * 8 * 7.5


@pytest.mark.parametrize("form", [{"rotary_fraction": 1 / 3}, {"sinks": True}], ids=["partly rotated", "sinks"])
def test_forms_with_the_products_of_llama(form: dict[str, float]) -> None:
    config = Model.model_validate(DENSE | form)
    assert _counted(config, 101, 0) == ROWS * TOKENS * architectures.flops_exact(config, 101, TOKENS)


#: Model with softmax scores and dense layers, and one with sigmoid scores and shared experts.
MIXED = {
    "softmax": DENSE | {"qk_norm": True, "experts": {"count": 5, "active": 2, "ffn_dim": 40, "every": 2}},
    "sigmoid": DENSE
    | {"experts": {"count": 5, "active": 3, "ffn_dim": 32, "score": "sigmoid", "shared": 2, "dense_first": 1}},
}


@pytest.mark.parametrize("form", list(MIXED))
@pytest.mark.parametrize("every", [0, 1, 3])
def test_experts_cost_what_a_token_uses(form: str, every: int) -> None:
    config = Model.model_validate(MIXED[form])
    planned = architectures.flops_hardware(config, 101, [TOKENS] * 4, every=every, fused=False)
    assert _counted(config, 101, every) == ROWS * TOKENS * planned
    if not every:
        assert planned == architectures.flops_exact(config, 101, TOKENS)


@pytest.mark.parametrize("window", [1, 4, 6, 40])
def test_a_window_needs_the_keys_that_its_mask_leaves(window: int) -> None:
    lengths = [1, 5, 7, 3]
    segments = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    seen = int(document_mask(segments, torch.float32, window).isfinite().sum())
    assert architectures.keys_per_token(lengths, window) == seen / 16
    tiny = Model(layers=5, dim=8, heads=2, kv_heads=1, ffn_dim=16, window=SlidingWindow(tokens=window))
    sliding, full = seen / 16, (1 + 15 + 28 + 6) / 16
    assert architectures.layer_keys(tiny, lengths) == [sliding, sliding, sliding, full, sliding]


@pytest.mark.parametrize("every", [0, 2, 4])
def test_torch_also_counts_the_scores_that_a_window_masks(every: int) -> None:
    """A dense mask hides scores after they are computed; the model needs those within the window only."""
    window = SlidingWindow(tokens=5, layers=("sliding", "full"))
    config = Model.model_validate(DENSE | {"window": window})
    masked = architectures.flops_hardware(config, 101, [TOKENS] * 4, every=every, fused=False)
    counted = _counted(config, 101, every)
    assert counted == ROWS * TOKENS * masked
    keys = [5, TOKENS, 5, TOKENS]
    skipped = architectures.flops_hardware(config, 101, keys, every=every, fused=False)
    assert masked - skipped == 12 * 2 * 24 * (TOKENS - 5)  # the blocks that are recomputed here have no window
    if every == 0:
        assert skipped == architectures.flops_exact(config, 101, TOKENS)
    assert architectures.flops_exact(config, 101, 4) == architectures.flops_exact(Model.model_validate(DENSE), 101, 4)
