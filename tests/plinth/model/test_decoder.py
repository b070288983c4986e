"""Properties of the decoder; `test_parity` compares it with Hugging Face's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from plinth.errors import CheckpointError
from plinth.model.attention import Layout, branch_mask
from plinth.model.blocks import FeedForward
from plinth.model.decoder import Decoder, build
from plinth.model.folder import load_model
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model, SlidingWindow
from tests.model_folder import save_model, scrambled

LLAMA = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=48, tied_embeddings=False, rope_theta=500.0)


def save(model: Decoder, directory: Path) -> None:
    config = hf_config(model.config, model.vocab_size, 64, "float32", 0)
    save_model(directory, dict(model.named_parameters()), config)


def test_loading_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a loadable model"):
        load_model(tmp_path)
    save(build(LLAMA, 50, 1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="do not match its configuration") as error:
        load_model(tmp_path)
    assert error.value.found == "lm_head.weight missing; model.norm.weight has shape (31,), expected (32,)"


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_documents_do_not_see_each_other(lengths: list[int]) -> None:
    """Logits of packed documents are those of each document at its own place, alone."""
    model = scrambled(LLAMA, 50)
    total = sum(lengths)
    tokens = torch.arange(total) * 7 % 50
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    with torch.no_grad():
        packed = model(tokens[None], segments[None])[0]
        for number in range(len(lengths)):
            own = segments == number
            alone = model(tokens[own][None])[0]  # rotary positions are relative, so the place does not matter
            assert torch.allclose(packed[own], alone, atol=2e-4)


@pytest.mark.parametrize("window", [1, 3, 6, 20])
def test_windows_keep_to_documents_and_to_branches(window: int) -> None:
    """A packed document, and two continuations of one prefix, have the logits of texts of their own."""
    model = scrambled(LLAMA.model_copy(update={"window": SlidingWindow(tokens=window, layers=("sliding", "full"))}), 50)
    tokens = torch.arange(13) * 7 % 50
    segments = torch.tensor([0] * 5 + [1] * 8)
    positions = torch.tensor([*range(9), 5, 6, 7, 8])
    branches = torch.tensor([0] * 5 + [1] * 4 + [2] * 4)
    with torch.no_grad():
        packed = model(tokens[None], segments[None])[0]
        for own in (segments == 0, segments == 1):
            assert torch.allclose(packed[own], model(tokens[own][None])[0], atol=2e-4)
        layout = Layout(positions[None], branch_mask(branches[None], torch.float32))
        branched = model(tokens[None], layout=layout)
        for own in (branches < 2, branches % 2 == 0):
            assert torch.allclose(branched[own], model(tokens[own][None])[0], atol=2e-4)


def test_causal_without_segments() -> None:
    model = scrambled(LLAMA, 50)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 33
    with torch.no_grad():
        before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_loss_is_mean_cross_entropy_over_scored_targets() -> None:
    model = scrambled(LLAMA, 50)
    tokens, targets = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, -100, 4, 5]])
    with torch.no_grad():
        log_p = model(tokens)[0].double().log_softmax(-1)
        loss = model(tokens, None, targets)
    expected = -(log_p[0, 2] + log_p[2, 4] + log_p[3, 5]) / 3
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
def test_the_last_layer_computes_only_the_outputs_that_are_asked_for(architecture: str) -> None:
    model = scrambled(LLAMA.model_copy(update={"architecture": architecture}), 50)
    tokens, asked, shapes = torch.arange(24).reshape(2, 12), torch.tensor([3, 11, 20]), []
    with torch.no_grad():
        whole = model(tokens).flatten(0, 1)
        for part in [one for one in model.modules() if isinstance(one, FeedForward)]:
            part.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
        positions = torch.arange(12).expand(2, -1)
        found = model.arranged(tokens, Layout(positions, outputs=asked))
    assert shapes == [(2, 12, 32), (3, 32)]
    torch.testing.assert_close(found, whole[asked], rtol=1e-5, atol=1e-5)
