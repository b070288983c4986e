"""An export is compared with the checkpoint that it was made from, before anyone states that it is that model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.errors import CheckpointError, IntegrityError
from plinth.model.decoder import build
from plinth.model.export import export_model, require_same
from plinth.model.parameters import Model, MuP
from plinth.trust.standalone_verify import digest_of
from tests.model_folder import byte_level, save_folder

MODEL = Model(layers=2, dim=32, heads=2, kv_heads=1, ffn_dim=48)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: digest_of(path) for path in folder.iterdir()}


def saved(folder: Path, config: Model = MODEL, seed: int = 3) -> Path:
    tokenizer = byte_level(["a small text that is merged"] * 3, 300)
    save_folder(folder, build(config, tokenizer.get_vocab_size(), seed), config, tokenizer, 16)
    return folder


@pytest.mark.parametrize("form", [{}, {"rotary_fraction": 0.5}], ids=["", "packed"])
@pytest.mark.parametrize("config", [MODEL, MODEL.model_copy(update={"mup": MuP(base_dim=16)})], ids=["plain", "muP"])
@pytest.mark.parametrize(("dtype", "file_bytes"), [("saved", 1 << 20), ("bfloat16", 20_000)])
def test_an_export_is_the_model_that_it_was_made_from(
    tmp_path: Path, config: Model, form: dict[str, float], dtype: str, file_bytes: int
) -> None:
    source = saved(tmp_path / "source", config.model_copy(update=form))
    made = export_model(source, source / "tokenizer.json", tmp_path / "out", dtype, file_bytes)
    assert (len(made.files) > 1) == (dtype == "bfloat16")
    require_same(source, digests(source), tmp_path / "out", digests(tmp_path / "out"))
    packed = "model.layers.0.self_attn.qkv_proj.weight"
    assert any(packed in path.read_bytes().decode("latin-1") for path in (tmp_path / "out").iterdir()) == bool(form)


def _one_bit(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def _renamed_token(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"Ġtext"', '"Ġtexts"'))


def _more(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text("{}")


def _set(name: str, **fields: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps(found | fields, indent=2, sort_keys=True) + "\n")

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [(_one_bit, "model.norm.weight"), (_renamed_token, "tokenizer.json"), (_more("modeling.py"), "modeling.py"),
     (_more("pytorch_model.bin.index.json"), "pytorch_model.bin.index.json"),
     (_set("config.json", rope_theta=1.0), "config.json"), (_set("config.json", auto_map={"a": "b"}), "config.json"),
     (_set("generation_config.json", eos_token_id=9), "generation_config.json"),
     (_set("tokenizer_config.json", eos_token="a"), "tokenizer_config.json")],
)  # fmt: skip
def test_every_difference_is_named(tmp_path: Path, change: Callable[[Path], object], found: str) -> None:
    source, out = saved(tmp_path / "source"), tmp_path / "out"
    export_model(source, source / "tokenizer.json", out)
    change(out)
    with pytest.raises(IntegrityError) as caught:
        require_same(source, digests(source), out, digests(out))
    assert caught.value.found == found


def test_the_source_is_the_one_that_was_signed(tmp_path: Path) -> None:
    source, other = saved(tmp_path / "source"), saved(tmp_path / "other", seed=4)
    export_model(other, other / "tokenizer.json", tmp_path / "out")
    with pytest.raises(CheckpointError, match="differs from the verified file"):
        require_same(other, digests(source), tmp_path / "out", digests(tmp_path / "out"))
    with pytest.raises(IntegrityError, match="differs from"):
        require_same(source, digests(source), tmp_path / "out", digests(tmp_path / "out"))
