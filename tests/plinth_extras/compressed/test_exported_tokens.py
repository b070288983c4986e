"""Special tokens of an export, as the libraries that read it see them: one prompt, one set of ids, one end of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, processors

from plinth.model.decoder import build
from plinth.model.export import export_model
from plinth.model.parameters import Model
from plinth_extras.compressed import gguf_file
from tests.model_folder import END, byte_level, save_folder
from tests.peers import Peer

transformers = Peer("transformers")

MODEL, LENGTH = Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48), 64
PAD, TEXT = "<|pad|>", "a small text,  that\nwas never merged: äöü"


def tokenizer(pad: str | None = PAD) -> Tokenizer:
    made = byte_level(["a small text that is merged"] * 3, 300)
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in [pad] if name])
    return made


def exported(folder: Path, cutter: Tokenizer) -> Path:
    save_folder(folder / "source", build(MODEL, cutter.get_vocab_size(), 3), MODEL, cutter, LENGTH)
    export_model(folder / "source", folder / "source" / "tokenizer.json", folder / "out")
    return folder / "out"


def gguf_fields(plain: Path, folder: Path) -> dict[str, Any]:
    import gguf

    folder.mkdir()
    gguf_file.write(plain, folder, "gguf-q8_0")
    return {name: one.contents() for name, one in gguf.GGUFReader(folder / gguf_file.FILE).fields.items()}


def test_a_collator_keeps_every_end_of_text(tmp_path: Path) -> None:
    """It masks what the pad token is: with the end of text as pad token, a tuned model never learns to stop."""
    out = exported(tmp_path, tokenizer())
    theirs = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    texts = [theirs(text + END)["input_ids"] for text in ("a small", "a text that is longer")]
    batch = transformers.DataCollatorForLanguageModeling(theirs, mlm=False)([{"input_ids": one} for one in texts])
    assert batch["labels"].tolist() == [[*one, *[-100] * (max(map(len, texts)) - len(one))] for one in texts]
    assert [one[-1] for one in texts] == [theirs.eos_token_id] * 2  # 2 of 2 end of texts are labels


def test_one_prompt_has_one_set_of_ids(tmp_path: Path) -> None:
    """llama.cpp adds its first token before a prompt if the file requests it; transformers if the template does."""
    cutter = tokenizer()
    out = exported(tmp_path, cutter)
    fields = gguf_fields(out, tmp_path / "gguf")
    plain = cutter.encode(TEXT).ids
    theirs = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    first = [fields["tokenizer.ggml.bos_token_id"]] if fields["tokenizer.ggml.add_bos_token"] else []
    last = [fields["tokenizer.ggml.eos_token_id"]] if fields["tokenizer.ggml.add_eos_token"] else []
    assert theirs(TEXT)["input_ids"] == [*first, *plain, *last] == [0, *plain]
    assert Tokenizer.from_file(str(out / "tokenizer.json")).encode(TEXT).ids == [0, *plain]
    assert theirs.decode(theirs(TEXT)["input_ids"], skip_special_tokens=True) == TEXT


@pytest.mark.parametrize("pad", [PAD, "[PAD]", "<|finetune_right_pad_id|>", None, "<|padding_of_nothing|>"])
def test_every_field_names_what_the_vocabulary_has(tmp_path: Path, pad: str | None) -> None:
    cutter = tokenizer(pad)
    out = exported(tmp_path, cutter)
    vocabulary = cutter.get_vocab()
    index = None if pad in (None, "<|padding_of_nothing|>") else vocabulary[str(pad)]
    config, generation, described = (
        json.loads((out / f"{name}.json").read_bytes()) for name in ("config", "generation_config", "tokenizer_config")
    )
    ids = {"bos_token_id": 0, "eos_token_id": 0} | ({} if index is None else {"pad_token_id": index})
    assert generation == ids
    assert {name: value for name, value in config.items() if name.endswith("_token_id")} == ids
    named = {name: vocabulary[value] for name, value in described.items() if name.endswith("_token")}
    assert {f"{name}_id": value for name, value in named.items()} == ids
    read = transformers.AutoConfig.from_pretrained(out, local_files_only=True).to_dict()
    assert {name: read.get(name) for name in ids} == ids
    assert (read["vocab_size"], read["max_position_embeddings"]) == (len(vocabulary), LENGTH)
    theirs = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 0, index)
    assert (len(theirs), theirs.model_max_length) == (len(vocabulary), LENGTH)
    fields = gguf_fields(out, tmp_path / "gguf")
    assert fields.get("tokenizer.ggml.padding_token_id") == index
    assert len(fields["tokenizer.ggml.tokens"]) == config["vocab_size"]


def test_what_a_tokenizer_put_around_texts_before_is_replaced(tmp_path: Path) -> None:
    """As Llama 3's, which puts its own token before a text; a template that is there already stays one."""
    cutter = tokenizer()
    plain = cutter.encode(TEXT).ids
    other = processors.TemplateProcessing(single=f"{PAD} $A {PAD}", special_tokens=[(PAD, cutter.token_to_id(PAD))])
    cutter.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), other])
    out = exported(tmp_path, cutter)
    made = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert made.encode(TEXT).ids == [0, *plain]
    assert made.encode("a", "small").ids == [0, *cutter.encode("a", add_special_tokens=False).ids, 0,
                                             *cutter.encode("small", add_special_tokens=False).ids]  # fmt: skip
    assert made.encode("a", "small").type_ids[:3] == [0, 0, 1]
    again = export_model(out, out / "tokenizer.json", tmp_path / "again")
    assert again.files == ["model.safetensors"]
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (out / "tokenizer.json").read_bytes()
