"""A model folder whose digests are known: the bytes that were compared are the bytes in use."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from plinth.errors import CheckpointError
from plinth.model import folder
from plinth.model.decoder import Decoder
from plinth.model.folder import SavedWeights, load_model
from plinth.model.hugging_face import CONFIG, WEIGHTS
from plinth.model.parameters import Model
from tests import model_folder


def made(folder: Path) -> Path:
    """A small model's folder."""
    config = Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48)
    tokenizer = model_folder.byte_level(["the fox jumps"], 300)
    model = Decoder(config, tokenizer.get_vocab_size())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    model_folder.save_folder(folder, model, config, tokenizer, 32)
    return folder


def digests_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "c": torch.tensor([1, 2, 3], dtype=torch.int8),
    "d": torch.arange(4, dtype=torch.int64).reshape(4, 1),
    "e": torch.zeros(0, 7),
    "f": torch.tensor(3.5, dtype=torch.float64),
}


def test_tensors_are_those_that_safetensors_reads(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / WEIGHTS)
    with SavedWeights(tmp_path) as mapped, SavedWeights(tmp_path, digests_of(tmp_path)) as checked:
        for name in TENSORS:
            assert torch.equal(mapped.tensor(name), checked.tensor(name))
            assert mapped.tensor(name).dtype == checked.tensor(name).dtype
            assert list(mapped.rows(name).get_shape()) == list(checked.rows(name).get_shape())
        assert torch.equal(mapped.rows("d")[1:3], checked.rows("d")[1:3])


def test_a_misaligned_file_is_read_too(tmp_path: Path) -> None:
    save_file({"a": TENSORS["a"]}, tmp_path / WEIGHTS)
    data = (tmp_path / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip() + b" " * 3
    shifted = np.frombuffer(len(header).to_bytes(8, "little") + header + data[8 + size :], np.uint8).copy()
    assert torch.equal(folder.CheckedTensors(shifted).get_tensor("a"), TENSORS["a"])


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_an_exchanged_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "model")
    digests = digests_of(folder)
    before = load_model(folder, digests).state_dict()
    path = folder / name
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{name} differs from the verified file"):
        load_model(folder, digests)
    with pytest.raises(CheckpointError, match="differs from the verified file"):
        load_model(folder, {CONFIG: digests[CONFIG]} if name == WEIGHTS else {WEIGHTS: digests[WEIGHTS]})
    assert before


def test_a_write_after_the_load_changes_nothing_in_use(tmp_path: Path) -> None:
    """A mapped file would show it."""
    folder = made(tmp_path / "model")
    model = load_model(folder, digests_of(folder))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = folder / WEIGHTS
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(-1000, 2)
        stream.write(b"\x41" * 1000)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
