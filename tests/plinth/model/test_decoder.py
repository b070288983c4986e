"""The decoder against a reference written from the published description, and its own properties."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.model.blocks import FeedForward
from plinth.model.decoder import Decoder, build
from plinth.model.folder import load_model
from plinth.model.hugging_face import hf_config
from plinth.model.layout import Layout
from plinth.model.parameters import Model
from tests.model_folder import save_model

LLAMA = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=48, tied_embeddings=False, rope_theta=500.0)
QWEN = LLAMA.model_copy(update={"qk_norm": True, "tied_embeddings": True})


def save(model: Decoder, directory: Path) -> None:
    config = hf_config(model.config, model.vocab_size, 64, "float32", 0)
    save_model(directory, dict(model.named_parameters()), config)


def scrambled(config: Model) -> Decoder:
    """A decoder whose gains are not 1 and whose weights are large enough to matter."""
    model = build(config, 50, 3)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.dim() == 1)
    return model.eval()


def reference(directory: Path, tokens: Tensor) -> Tensor:
    """Logits [S, V] of one sequence from the exported files, in FP64, head by head, position by position."""
    config = json.loads((directory / "config.json").read_text())
    weights = {name: tensor.double() for name, tensor in load_file(directory / "model.safetensors").items()}
    width, eps = config["head_dim"], config["rms_norm_eps"]
    shared = config["num_attention_heads"] // config["num_key_value_heads"]

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain

    def turn(x: Tensor, position: int) -> Tensor:
        out = x.clone()
        for i in range(width // 2):
            angle = position * config["rope_theta"] ** (-2 * i / width)
            a, b = x[i], x[i + width // 2]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + width // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    x = weights["model.embed_tokens.weight"][tokens]
    for n in range(config["num_hidden_layers"]):
        layer = {k.removeprefix(f"model.layers.{n}."): v for k, v in weights.items() if f"layers.{n}." in k}
        h = norm(x, layer["input_layernorm.weight"])
        q, k, v = (h @ layer[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        heads = []
        for head in range(config["num_attention_heads"]):
            group = head // shared
            qs, ks = q[:, head * width : (head + 1) * width], k[:, group * width : (group + 1) * width]
            if config["model_type"] == "qwen3":
                qs, ks = norm(qs, layer["self_attn.q_norm.weight"]), norm(ks, layer["self_attn.k_norm.weight"])
            qs = torch.stack([turn(row, i) for i, row in enumerate(qs)])
            ks = torch.stack([turn(row, i) for i, row in enumerate(ks)])
            scores = qs @ ks.T / math.sqrt(width)
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
            heads.append(scores.softmax(-1) @ v[:, group * width : (group + 1) * width])
        x = x + torch.cat(heads, -1) @ layer["self_attn.o_proj.weight"].T
        h = norm(x, layer["post_attention_layernorm.weight"])
        gate, up = (h @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + (-gate).exp()) * up) @ layer["mlp.down_proj.weight"].T
    output = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, weights["model.norm.weight"]) @ weights[output].T


@pytest.mark.parametrize("config", [LLAMA, QWEN], ids=["llama", "qwen3"])
def test_exported_files_mean_what_hugging_face_means(config: Model, tmp_path: Path) -> None:
    model = scrambled(config)
    save(model, tmp_path)
    tokens = torch.tensor([7, 3, 49, 0, 7, 7, 21, 12, 30])
    with torch.no_grad():
        ours = model(tokens[None])[0]
    assert torch.allclose(ours.double(), reference(tmp_path, tokens), atol=1e-3, rtol=1e-4)


def test_exported_names_and_shapes(tmp_path: Path) -> None:
    save(build(LLAMA, 50, 1), tmp_path)
    tensors = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    layer = {name.removeprefix("model.layers.1."): shape for name, shape in tensors.items() if ".1." in name}
    assert layer == {
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
        "self_attn.q_proj.weight": (32, 32),
        "self_attn.k_proj.weight": (16, 32),
        "self_attn.v_proj.weight": (16, 32),
        "self_attn.o_proj.weight": (32, 32),
        "mlp.gate_proj.weight": (48, 32),
        "mlp.up_proj.weight": (48, 32),
        "mlp.down_proj.weight": (32, 48),
    }
    rest = {name: shape for name, shape in tensors.items() if ".layers." not in name}
    assert rest == {"model.embed_tokens.weight": (50, 32), "lm_head.weight": (50, 32), "model.norm.weight": (32,)}


def test_export_round_trip(tmp_path: Path) -> None:
    model = scrambled(QWEN)
    save(model, tmp_path)
    again = load_model(tmp_path)
    assert again.config == QWEN
    assert not again.training
    assert {n: p.tolist() for n, p in again.named_parameters()} == {n: p.tolist() for n, p in model.named_parameters()}


def test_loading_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no model"):
        load_model(tmp_path)
    save(build(LLAMA, 50, 1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not those of its configuration") as error:
        load_model(tmp_path)
    assert error.value.found == "lm_head.weight missing; model.norm.weight has shape (31,), expected (32,)"


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_documents_do_not_see_each_other(lengths: list[int]) -> None:
    """Logits of packed documents are those of each document at its own place, alone."""
    model = scrambled(LLAMA)
    total = sum(lengths)
    tokens = torch.arange(total) * 7 % 50
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    with torch.no_grad():
        packed = model(tokens[None], segments[None])[0]
        for number in range(len(lengths)):
            own = segments == number
            alone = model(tokens[own][None])[0]  # rotary positions are relative, so the place does not matter
            assert torch.allclose(packed[own], alone, atol=2e-4)


def test_causal_without_segments() -> None:
    model = scrambled(LLAMA)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 33
    with torch.no_grad():
        before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_loss_is_mean_cross_entropy_over_scored_targets() -> None:
    model = scrambled(LLAMA)
    tokens, targets = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, -100, 4, 5]])
    with torch.no_grad():
        log_p = model(tokens)[0].double().log_softmax(-1)
        loss = model(tokens, None, targets)
    expected = -(log_p[0, 2] + log_p[2, 4] + log_p[3, 5]) / 3
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_initialisation_is_seeded_and_scaled() -> None:
    config = Model(layers=8, dim=64, heads=4, kv_heads=4, ffn_dim=128)
    one, same, other = build(config, 500, 1), build(config, 500, 1), build(config, 500, 2)
    weights = dict(one.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in same.named_parameters())
    assert not torch.equal(one.embed_tokens, other.embed_tokens)
    assert weights["embed_tokens"].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights["layers.3.mlp.down_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert torch.equal(weights["norm.weight"], torch.ones(64))
    assert "lm_head" not in weights


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
def test_the_last_layer_computes_only_the_outputs_that_are_asked_for(architecture: str) -> None:
    model = scrambled(LLAMA.model_copy(update={"architecture": architecture}))
    tokens, asked, shapes = torch.arange(24).reshape(2, 12), torch.tensor([3, 11, 20]), []
    with torch.no_grad():
        whole = model(tokens).flatten(0, 1)
        for part in [one for one in model.modules() if isinstance(one, FeedForward)]:
            part.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
        positions = torch.arange(12).expand(2, -1)
        found = model.arranged(tokens, Layout(positions, outputs=asked))
    assert shapes == [(2, 12, 32), (3, 32)]
    torch.testing.assert_close(found, whole[asked], rtol=1e-5, atol=1e-5)
