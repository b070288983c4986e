"""Our decoder and Hugging Face's, on the same weights, both ways: logits and loss in FP32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.model.decoder import Decoder
from plinth.model.folder import load_model
from plinth.model.hugging_face import hf_config, model_of
from plinth.model.parameters import Model, MuP, RopeScaling
from tests.model_folder import save_model, scrambled
from tests.peers import Peer

transformers = Peer("transformers")


VOCABULARY, LENGTH = 97, 48
BOUND = 1e-5

BASE = Model(layers=3, dim=64, heads=8, kv_heads=2, ffn_dim=96, rope_theta=500.0)
OLMO2 = BASE.model_copy(update={"architecture": "olmo2", "qk_norm": True})
QWEN2 = BASE.model_copy(update={"qkv_bias": True})
YARN = RopeScaling(kind="yarn", factor=4.0, original_tokens=16, beta_fast=4.0)
KINDS = {
    "tied": BASE,
    "untied": BASE.model_copy(update={"tied_embeddings": False}),
    "every head its own keys": BASE.model_copy(update={"kv_heads": 8}),
    "one key head": BASE.model_copy(update={"kv_heads": 1, "norm_eps": 1e-3}),
    "long context": BASE.model_copy(update={"rope_scaling": RopeScaling(factor=4.0, original_tokens=16)}),
    "qk norm": BASE.model_copy(update={"qk_norm": True, "tied_embeddings": False}),
    "olmo2, tied": OLMO2,
    "olmo2, untied": OLMO2.model_copy(update={"tied_embeddings": False, "norm_eps": 1e-6}),
    "olmo2, every head its own keys": OLMO2.model_copy(update={"kv_heads": 8}),
    "olmo2, wide heads, long context": OLMO2.model_copy(
        update={"head_dim": 16, "rope_scaling": RopeScaling(factor=4.0, original_tokens=16)}
    ),
    "qwen2, tied": QWEN2,
    "qwen2, untied, yarn": QWEN2.model_copy(update={"tied_embeddings": False, "rope_scaling": YARN}),
    "yarn": BASE.model_copy(update={"rope_scaling": YARN.model_copy(update={"temperature": 1.3})}),
    "olmo2, yarn": OLMO2.model_copy(update={"rope_scaling": YARN}),
    "wide heads, yarn": BASE.model_copy(update={"qk_norm": True, "head_dim": 16, "rope_scaling": YARN}),
    "wide heads": BASE.model_copy(update={"qk_norm": True, "head_dim": 16}),
}


def class_of(config: Model) -> str:
    if config.architecture == "olmo2":
        return "Olmo2"
    return "Qwen3" if config.qk_norm else "Qwen2" if config.qkv_bias else "Llama"


def some_tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def theirs(model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    found = model(input_ids=tokens, labels=tokens, use_cache=False)
    return found.logits, found.loss


@torch.no_grad()
def ours(model: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return model(tokens), model(tokens[:, :-1], targets=tokens[:, 1:])


def assert_same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> None:
    assert left[0].std() > 0.1  # or the bound would say nothing
    assert (left[0] - right[0]).abs().max() <= BOUND
    assert abs(float(left[1]) - float(right[1])) <= BOUND


def export(parameters: dict[str, Tensor], config: Model, directory: Path) -> None:
    save_model(directory, parameters, hf_config(config, VOCABULARY, LENGTH, "float32", 0))


@pytest.mark.parametrize("kind", list(KINDS))
def test_both_ways(kind: str, tmp_path: Path) -> None:
    model, tokens = scrambled(KINDS[kind], VOCABULARY), some_tokens()
    export(dict(model.named_parameters()), model.config, tmp_path / "ours")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert type(peer).__name__ == f"{class_of(KINDS[kind])}ForCausalLM"
    assert_same(ours(model, tokens), theirs(peer, tokens))
    with torch.no_grad():  # others than ours, and written by them, in several files
        for parameter in peer.parameters():
            parameter.mul_(1.01)
    peer.save_pretrained(tmp_path / "theirs", max_shard_size="50KB")
    assert not (tmp_path / "theirs" / "model.safetensors").exists()
    back = load_model(tmp_path / "theirs")
    assert back.config == model.config
    assert_same(theirs(peer, tokens), ours(back, tokens))


def test_mup_is_not_loaded_as_what_it_is_not(tmp_path: Path) -> None:
    model = scrambled(BASE.model_copy(update={"mup": MuP(base_dim=16, base_head_dim=4)}), VOCABULARY)
    export(dict(model.named_parameters()), model.config, tmp_path)
    with pytest.raises(ValueError, match="plinth-mup"):  # rather than other logits than ours
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load_model(tmp_path).config == model.config


def test_what_our_decoder_does_not_compute_is_refused(tmp_path: Path) -> None:
    shape = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32}
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    yarn = rope | {"rope_type": "yarn", "original_max_position_embeddings": 16, "truncate": False}
    sliding = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    for name, kind, extra, found in (
        ("biased", "Llama", {"attention_bias": True}, "attention_bias True"),
        ("linear", "Llama", {"rope_parameters": rope}, "rope_type 'linear'"),
        ("uncut", "Llama", {"rope_parameters": yarn}, "yarn with truncate False"),
        ("sliding", "Qwen2", sliding, "use_sliding_window True"),
        ("olmo", "Olmo", {}, "model_type 'olmo', expected one of llama, olmo2, qwen2, qwen3"),
        ("olmo3", "Olmo3", {}, "model_type 'olmo3', expected one of llama, olmo2, qwen2, qwen3"),
        ("gemma", "Gemma", {"head_dim": 8}, "model_type 'gemma', expected one of llama, olmo2, qwen2, qwen3"),
    ):
        config = getattr(transformers, f"{kind}Config")(**shape, **extra)
        getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path / name)
        with pytest.raises(CheckpointError, match=found):
            load_model(tmp_path / name)


def test_fields_that_old_configurations_leave_out() -> None:
    """Llama 2's file has no `rope_theta`; its weights have the frequencies, which follow from the configuration."""
    written = hf_config(BASE.model_copy(update={"rope_theta": 10000.0, "tied_embeddings": False}), 9, 8, "float32", 0)
    old = {name: value for name, value in written.items() if name not in ("rope_theta", "tie_word_embeddings")}
    assert model_of(old) == model_of(written)
    with pytest.raises(ValueError, match="layer_types sliding_attention, expected full_attention"):
        model_of(written | {"layer_types": ["full_attention", "sliding_attention"]})


def test_frequencies_among_the_weights_are_left_alone(tmp_path: Path) -> None:
    model = scrambled(BASE, VOCABULARY)
    stored = {**dict(model.named_parameters()), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    export(stored, model.config, tmp_path)
    assert torch.equal(load_model(tmp_path)(some_tokens()), model(some_tokens()))
