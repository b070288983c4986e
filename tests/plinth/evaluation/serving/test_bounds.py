"""Serving worked out: by hand on a small model, and published figures of a known one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.evaluation import serving
from plinth.launch.devices import DEVICES, Device
from plinth.model.parameters import Model, SlidingWindow
from plinth.model.sparsity import Experts
from plinth.records import Manifest

SMALL = Model(layers=2, dim=32, heads=2, kv_heads=1, ffn_dim=48)
VOCABULARY, CONTEXT = 100, 32
#: q and o, k and v, feed-forward, of two layers; the output projection
MATRICES = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 100 * 32
KV = 2 * 2 * 2 * 1 * 16  # bytes, keys and values, layers, heads, width


def _device(memory_bytes: int, flops: float, bytes_per_s: float) -> Device:
    figures = {"memory_bytes": memory_bytes, "bf16_flops": flops, "memory_bytes_per_s": bytes_per_s}
    return DEVICES["h100"].model_copy(update=figures)


def test_by_hand_where_reading_decides_and_where_computing_does() -> None:
    reads, computes = _device(10**6, 1e30, 1000.0), _device(10**6, 1000.0, 1e30)
    assert serving.kv_bytes(SMALL, CONTEXT) == CONTEXT * KV
    assert serving.token_s(reads, SMALL, VOCABULARY, CONTEXT, 3) == (2 * MATRICES + 3 * CONTEXT * KV) / 1000
    work = 2 * MATRICES + 4 * 2 * 2 * 16 * CONTEXT
    assert serving.token_s(computes, SMALL, VOCABULARY, CONTEXT, 3) == 3 * work / 1000
    assert serving.prompt_s(reads, SMALL, VOCABULARY, 5) == (2 * MATRICES + 5 * KV) / 1000
    body, output = MATRICES - 3200, 3200
    assert serving.prompt_s(computes, SMALL, VOCABULARY, 5) == (10 * body + 2 * output + 2 * 2 * 2 * 16 * 25) / 1000


def test_a_sliding_layer_keeps_and_reads_its_window_only() -> None:
    windowed = SMALL.model_copy(update={"window": SlidingWindow(tokens=8, layers=("sliding", "full"))})
    assert serving.kv_bytes(windowed, CONTEXT) == (8 + CONTEXT) * KV // 2
    assert serving.kv_bytes(windowed, 8) == serving.kv_bytes(SMALL, 8)
    computes = _device(10**6, 1000.0, 1e30)
    saved = serving.prompt_s(computes, SMALL, VOCABULARY, 9) - serving.prompt_s(computes, windowed, VOCABULARY, 9)
    assert saved == pytest.approx(4 * 2 * 16 * 0.5 / 1000)  # of 9 x 9 / 2 pairs, the window leaves out 1 / 2


def test_a_batch_reads_the_experts_that_its_tokens_use() -> None:
    """A token uses one of four experts: alone it reads one, two tokens read 4 (1 - (3/4)^2) on average."""
    experts = Experts(count=4, active=1, ffn_dim=24)
    mixed = SMALL.model_copy(update={"qk_norm": True, "experts": experts})
    reads, expert = _device(10**6, 1e30, 1000.0), 3 * 32 * 24
    alone = MATRICES + 2 * (32 * 4 + expert - 3 * 32 * 48)
    assert serving.token_s(reads, mixed, VOCABULARY, CONTEXT, 1) == (2 * alone + CONTEXT * KV) / 1000
    both = alone + 2 * expert * (4 * (1 - 0.75**2) - 1)
    found = serving.token_s(reads, mixed, VOCABULARY, CONTEXT, 2)
    assert found == pytest.approx((2 * both + 2 * CONTEXT * KV) / 1000)


def test_as_many_sequences_as_fit_and_none_where_the_weights_do_not() -> None:
    weights = 2 * serving.bounds(SMALL, VOCABULARY, CONTEXT)["parameters"]
    room = _device(int((weights + 3.5 * CONTEXT * KV) / 0.9), 1e12, 1e9)
    found = serving.on(room, SMALL, VOCABULARY, CONTEXT)
    assert found["sequences"] == 3
    assert found["tokens_per_s_full"] == 3 / serving.token_s(room, SMALL, VOCABULARY, CONTEXT, 3)
    none = serving.on(_device(weights, 1e12, 1e9), SMALL, VOCABULARY, CONTEXT)
    assert none == {"sequences": 0, "first_token_s": None, "tokens_per_s": None, "tokens_per_s_full": None}


def test_llama_3_8b_leaves_128_kib_a_token_and_writes_some_200_tokens_a_second_on_an_h100() -> None:
    """128 KiB of keys and values per token in BF16; 16 GB of weights at 3.35 TB/s: 209 passes per second."""
    found = serving.bounds(Model(preset="8b"), 128_256, 8192)
    assert found["kv_bytes_per_token"] == 128 * 1024
    assert found["parameters"] == 8_030_261_248  # as published
    assert found["devices"]["h100"]["tokens_per_s"] == pytest.approx(208, abs=5)
    assert serving.bounds(Model(preset="70b"), 128_256, 8192)["devices"]["h100"]["sequences"] == 0


def test_the_asset_is_a_function_of_the_configuration(
    ctx: Context, model_directory: Callable[..., Path], checkpoint: Callable[[Path], Manifest]
) -> None:
    folder = model_directory()
    made = serving.run(ctx, checkpoint(folder))
    config = json.loads((folder / "config.json").read_text())
    assert made.stats == serving.bounds(SMALL, config["vocab_size"], 32)
    assert made == serving.run(ctx, checkpoint(folder))
