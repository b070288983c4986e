"""Our decoder and Hugging Face's, on the same weights, both ways: logits and loss in FP32."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.model.decoder import Decoder
from plinth.model.division import state
from plinth.model.export import export_model
from plinth.model.folder import load_model
from plinth.model.hugging_face import hf_config, model_of
from plinth.model.parameters import Model, MuP, RopeScaling, SlidingWindow
from plinth.model.sparsity import Experts
from tests.model_folder import byte_level, save_model, scrambled
from tests.peers import Peer

transformers = Peer("transformers")


VOCABULARY, LENGTH = 97, 48
BOUND = 1e-5

BASE = Model(layers=3, dim=64, heads=8, kv_heads=2, ffn_dim=96, rope_theta=500.0)
OLMO2 = BASE.model_copy(update={"architecture": "olmo2", "qk_norm": True})
QWEN2 = BASE.model_copy(update={"qkv_bias": True})
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
LAST: tuple[Literal["sliding", "full"], ...] = ("full", "sliding", "sliding")
WINDOW = SlidingWindow(tokens=7)
LOCAL = SlidingWindow(tokens=5, layers=("sliding", "sliding", "full"), rope_theta=90.0)
YARN = RopeScaling(kind="yarn", factor=4.0, original_tokens=16, beta_fast=4.0)
QWEN3 = BASE.model_copy(update={"qk_norm": True})
OLMOE = BASE.model_copy(update={"architecture": "olmoe", "qk_norm": True})
SIGMOID = Experts(count=6, active=2, ffn_dim=24, shared=1, score="sigmoid", balancing="loss_free")
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
    "mistral": BASE.model_copy(update={"window": SlidingWindow(tokens=9, layers=("sliding",)), "head_dim": 16}),
    "ministral": BASE.model_copy(update={"window": SlidingWindow(tokens=1, layers=("sliding", "full"))}),
    "qwen2, last layers slide": QWEN2.model_copy(update={"window": SlidingWindow(tokens=9, layers=LAST)}),
    "qwen3, every layer slides, yarn": BASE.model_copy(
        update={"qk_norm": True, "window": SlidingWindow(tokens=9, layers=("sliding",)), "rope_scaling": YARN}
    ),
    "phi3": BASE.model_copy(update={"rotary_fraction": 0.75, "tied_embeddings": False}),
    "phi3, wide heads, window": BASE.model_copy(
        update={"rotary_fraction": 0.25, "head_dim": 16, "window": SlidingWindow(tokens=9, layers=("sliding",))}
    ),
    "granite, no window": BASE.model_copy(update={"sinks": True}),
    "granite, wide heads, yarn": BASE.model_copy(
        update={"sinks": True, "head_dim": 16, "window": WINDOW, "rope_scaling": YARN, "kv_heads": 8, "layers": 4}
    ),
    "granite, local positions": BASE.model_copy(
        update={"sinks": True, "window": SlidingWindow(tokens=9, layers=("full", "sliding"), rope_theta=90.0)}
    ),
    "olmo3": OLMO2.model_copy(update={"layers": 5, "window": WINDOW, "tied_embeddings": False}),
    "olmo3, yarn in full layers": OLMO2.model_copy(
        update={"window": LOCAL.model_copy(update={"rope_theta": 500.0}), "rope_scaling": YARN}
    ),
    "olmo3, yarn everywhere": OLMO2.model_copy(update={"layers": 4, "window": WINDOW, "rope_scaling": YARN}),
    "olmo3, local positions": OLMO2.model_copy(update={"window": LOCAL, "kv_heads": 8}),
    "qwen3 moe": QWEN3.model_copy(update={"experts": Experts(count=6, active=2, ffn_dim=24, normalize_top_k=True)}),
    "qwen3 moe, wide heads, first and every second layer dense": QWEN3.model_copy(
        update={
            "layers": 5,
            "head_dim": 16,
            "rope_scaling": YARN,
            "tied_embeddings": False,
            "experts": Experts(count=5, active=5, ffn_dim=40, every=2, dense_first=2, auxiliary_coefficient=0.001),
        }
    ),
    "olmoe": OLMOE.model_copy(update={"experts": Experts(count=8, active=3, ffn_dim=96)}),
    "olmoe, every head its own keys, top 1": OLMOE.model_copy(
        update={"kv_heads": 8, "tied_embeddings": False, "experts": Experts(count=8, active=1, ffn_dim=96)}
    ),
    "glm4 moe": BASE.model_copy(update={"experts": SIGMOID}),
    "glm4 moe, qk norm, dense layer, two shared": QWEN3.model_copy(
        update={
            "head_dim": 16,
            "kv_heads": 1,
            "experts": SIGMOID.model_copy(
                update={"shared": 2, "dense_first": 1, "scale": 2.5, "normalize_top_k": True, "active": 3}
            ),
        }
    ),
    "olmo3, window of a whole row": OLMO2.model_copy(
        update={"window": SlidingWindow(tokens=LENGTH, layers=("full", "sliding", "sliding"))}
    ),
}


def class_of(config: Model) -> str:
    if config.experts:
        softmax = "Olmoe" if config.architecture == "olmoe" else "Qwen3Moe"
        return "Glm4Moe" if config.experts.score == "sigmoid" else softmax
    if config.architecture == "olmo2":
        return "Olmo3" if config.window else "Olmo2"
    if config.rotary_fraction < 1 or config.sinks:
        return "GraniteSWA" if config.sinks else "Phi3"
    if config.window and not config.qk_norm and not config.qkv_bias:
        return "Ministral" if "full" in config.window.layers else "Mistral"
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


def published(model: Decoder, directory: Path) -> Path:
    """Write a checkpoint, and export it if other programs read other tensors."""
    export(dict(state(model)), model.config, directory / "saved")
    if model.config.rotary_fraction == 1:
        return directory / "saved"
    byte_level(["text"], VOCABULARY).save(str(directory / "saved" / "tokenizer.json"))
    export_model(directory / "saved", directory / "saved" / "tokenizer.json", directory / "ours", file_bytes=50_000)
    assert load_model(directory / "saved").config == model.config
    return directory / "ours"


@pytest.mark.parametrize("kind", list(KINDS))
def test_both_ways(kind: str, tmp_path: Path) -> None:
    model, tokens = scrambled(KINDS[kind], VOCABULARY), some_tokens()
    ours_in = published(model, tmp_path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(ours_in, dtype=torch.float32).eval()
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
    window = SlidingWindow(tokens=3, layers=("sliding", "full"))
    scaled = BASE.model_copy(update={"mup": MuP(base_dim=16, base_head_dim=4), "window": window})
    model = scrambled(scaled, VOCABULARY)
    export(dict(model.named_parameters()), model.config, tmp_path)
    with pytest.raises(ValueError, match="plinth-mup"):  # rather than other logits than ours
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load_model(tmp_path).config == model.config


def test_what_our_decoder_does_not_compute_is_refused(tmp_path: Path) -> None:
    shape = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32}
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    yarn = rope | {"rope_type": "yarn", "original_max_position_embeddings": 16, "truncate": False}
    known = "glm4_moe, granite_swa, llama, ministral, mistral, olmo2, olmo3, olmoe, phi3, qwen2, qwen3, qwen3_moe"
    for name, kind, extra, found in (
        ("biased", "Llama", {"attention_bias": True}, "attention_bias True"),
        ("linear", "Llama", {"rope_parameters": rope}, "rope_type 'linear'"),
        ("uncut", "Llama", {"rope_parameters": yarn}, "yarn with truncate False"),
        ("partial", "Llama", {"rope_parameters": PARTIAL}, "partial_rotary_factor 0.5, expected 1.0"),
        ("longrope", "Phi3", {"rope_parameters": LONGROPE, "pad_token_id": 0}, "rope_type 'longrope'"),
        ("scaled", "GraniteSWA", {"attention_multiplier": 0.3}, "attention_multiplier 0.3, expected 0.35"),
        ("residuals", "GraniteSWA", {"residual_multiplier": 0.2}, "residual_multiplier 0.2, expected 1.0"),
        ("olmo", "Olmo", {}, f"model_type 'olmo', expected one of {known}"),
        ("gemma", "Gemma", {"head_dim": 8}, f"model_type 'gemma', expected one of {known}"),
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


@pytest.mark.parametrize(
    ("family", "fields", "kinds"),
    [("Mistral", {"sliding_window": 4}, "sss"), ("Mistral", {"sliding_window": None}, "fff"), ("Mistral", {}, "sss"),
     ("Ministral", {"sliding_window": 4}, "sss"), ("Olmo3", {"sliding_window": 4}, "sssfss"),
     ("GraniteSWA", {"sliding_window": 4, "attention_multiplier": 128**-0.5}, "fsssfs"),
     ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1}, "fss"),
     ("Qwen3", {"use_sliding_window": True, "max_window_layers": 0}, "sss"), ("Qwen2", {"sliding_window": 4}, "fff")],
)  # fmt: skip
def test_layers_of_files_that_do_not_list_them(family: str, fields: dict[str, Any], kinds: str) -> None:
    """Published configurations leave `layer_types` to the class of the family."""
    config = getattr(transformers, f"{family}Config")(num_hidden_layers=len(kinds), **fields)
    if family != "Mistral":
        assert [kind[0] for kind in config.layer_types] == list(kinds)
    written = config.to_dict()
    written.pop("layer_types", None)
    model = model_of({name: value for name, value in written.items() if name not in fields} | fields)
    assert ["f" if window is None else "s" for window in model.windows] == list(kinds)
    assert set(model.windows) - {None} <= {fields.get("sliding_window", 4096)}


def test_olmo_3_as_published_scales_the_positions_of_full_layers_only() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "beta_fast": 32}
    flat = {"rope_theta": 500000.0, "rope_scaling": yarn | {"beta_slow": 1, "attention_factor": 1.2079441541679836}}
    shape = transformers.Olmo3Config(num_hidden_layers=4, rope_theta=500000.0).to_dict()
    del shape["rope_parameters"], shape["layer_types"]
    model = model_of(shape | flat)
    assert model.window == SlidingWindow(rope_theta=500000.0)
    assert model.with_positions_of(4096).rope_scaling is None
    assert model.with_positions_of(None).rope_scaling == RopeScaling(kind="yarn", factor=8.0)


@pytest.mark.parametrize(
    ("kind", "fields", "found"),
    [("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types chunked_attention, expected full_attention or"),
     ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "in a model of type qwen3 without windows"),
     ("llama", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 8}, "model of type llama without windows"),
     ("mistral", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "type mistral without"),
     ("qwen3", {"layer_types": ["full_attention"] * 2}, "2 layer_types for 3 layers"),
     ("granite_swa", {"layer_rope_theta": [1e4, 1e4, 0], "attention_multiplier": 8**-0.5}, "layer_rope_theta"),
     ("olmo3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}},
      "rope_type 'linear' in sliding layers only")],
)  # fmt: skip
def test_layers_that_our_decoder_does_not_compute_are_refused(kind: str, fields: dict[str, Any], found: str) -> None:
    written = hf_config(BASE, 9, 8, "float32", 0)
    with pytest.raises(ValueError, match=found):
        model_of(written | {"model_type": kind} | fields)


def test_frequencies_among_the_weights_are_left_alone(tmp_path: Path) -> None:
    model = scrambled(BASE, VOCABULARY)
    stored = {**dict(model.named_parameters()), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    export(stored, model.config, tmp_path)
    assert torch.equal(load_model(tmp_path)(some_tokens()), model(some_tokens()))
