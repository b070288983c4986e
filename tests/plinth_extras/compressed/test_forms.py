"""Quantized and pruned forms: the file is what the quantizer gave, and the libraries that read it compute our model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import prune

from plinth.errors import CheckpointError, IntegrityError
from plinth.model.export import export_model
from plinth.model.folder import SavedWeights, load_model, read_config
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model, MuP, RopeScaling, SlidingWindow
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.pipeline import pipeline
from plinth_extras.compressed import forms, gguf_file
from tests.model_folder import byte_level, save_folder, scrambled
from tests.peers import Peer

transformers = Peer("transformers")
gguf = Peer("gguf")
constants = Peer("gguf.constants")


LENGTH, BOUND = 40, 1e-4
BASE = Model(layers=2, dim=64, heads=4, kv_heads=2, ffn_dim=96, rope_theta=500.0)
LONG = RopeScaling(factor=4.0, original_tokens=16)
KINDS = {
    "llama, untied": BASE.model_copy(update={"tied_embeddings": False}),
    "muP": BASE.model_copy(update={"mup": MuP(base_dim=16, base_head_dim=4)}),
    "qwen2": BASE.model_copy(update={"qkv_bias": True}),
    "qwen3": BASE.model_copy(update={"qk_norm": True}),
    "olmo2": BASE.model_copy(update={"qk_norm": True, "architecture": "olmo2"}),
}
TEXT = "a small text, merged 123 times;  isn't it?\n\nÄöü"


class MadeForm:
    """A model, its folder in Hugging Face's layout, one form of it, and what was read back."""

    def __init__(self, at: Path, config: Model, form: str, restored: bool = True) -> None:
        tokenizer = byte_level(["a small text that is merged, a small text"] * 3, 320)
        self.model = scrambled(config, tokenizer.get_vocab_size())
        self.plain, self.folder, self.back = at / "plain", at / "form", at / "back"
        save_folder(at / "source", self.model, config, tokenizer, LENGTH)
        export_model(at / "source", at / "source" / "tokenizer.json", self.plain, forms.source_dtype(form))
        self.tokenizer, self.made = tokenizer, forms.write(form, self.plain, self.folder)
        if restored:
            forms.restore(form, self.plain, self.folder, self.back)

    @property
    def tokens(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7)
        return torch.randint(0, self.tokenizer.get_vocab_size(), (3, LENGTH), generator=generator)

    def peer(self, **options: Any) -> torch.Tensor:
        """Logits of transformers' model of the folder."""
        found = transformers.AutoModelForCausalLM.from_pretrained(self.folder, local_files_only=True, **options).eval()
        with torch.no_grad():
            logits: torch.Tensor = found(input_ids=self.tokens, use_cache=False).logits.float()
        return logits


PAIRS = [(kind, form) for kind in ("llama, untied", "qwen2", "qwen3") for form in forms.FORMS]
QUICK = PAIRS[:4] + PAIRS[6:7] + PAIRS[13:14] + PAIRS[-1:]


@pytest.mark.parametrize(
    ("kind", "form"), [pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in PAIRS]
)
def test_transformers_compute_what_was_read_back(tmp_path: Path, kind: str, form: str) -> None:
    made = MadeForm(tmp_path, KINDS[kind], form)
    with torch.no_grad():
        ours, exact = load_model(made.back)(made.tokens).float(), made.model(made.tokens).float()
    # transformers reads no head width of a Qwen 3 out of GGUF, so it is given the configuration
    config = transformers.AutoConfig.from_pretrained(made.plain, local_files_only=True)
    theirs = made.peer(gguf_file=gguf_file.FILE, config=config) if form.startswith("gguf") else made.peer()
    assert float((ours - theirs).abs().max()) <= BOUND
    assert float((ours - exact).abs().max()) > 100 * BOUND  # or nothing was quantized


@pytest.mark.parametrize("form", ["gguf-q8_0", "gguf-q4_0"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_gguf_holds_the_quantisers_bits_under_llama_cpps_names(tmp_path: Path, kind: str, form: str) -> None:
    made = MadeForm(tmp_path, KINDS[kind], form)
    config, reader = read_config(made.plain), gguf.GGUFReader(made.folder / gguf_file.FILE)
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[config["model_type"]]
    tensors = constants.MODEL_TENSORS[arch]
    known = {constants.TENSOR_NAMES[one].format(bid=block) for one in tensors for block in range(2)}
    stored = {one.name: one for one in reader.tensors}
    assert {name.rpartition(".")[0] for name in stored} <= known
    with SavedWeights(made.plain) as saved:
        names = gguf_file.tensor_names(config, [*saved])
        assert set(names.values()) == set(stored)
        for name, own in names.items():
            weight, found = saved.tensor(name).numpy(), stored[own]
            if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
                half = weight.shape[0] // heads // 2  # row 2 i + j of a head is row j E / 2 + i of ours
                order = [h * 2 * half + j * half + i for h in range(heads) for i in range(half) for j in range(2)]
                weight = weight[order]
            ends = name in ("model.embed_tokens.weight", "lm_head.weight")
            kind_of = "F32" if weight.ndim == 1 else "Q8_0" if ends else form.removeprefix("gguf-").upper()
            assert found.tensor_type.name == kind_of
            assert found.shape.tolist() == list(reversed(weight.shape))
            expected = gguf.quantize(weight, found.tensor_type)
            assert np.array_equal(found.data.view(np.uint8).ravel(), expected.view(np.uint8).ravel()), name
            step = np.abs(weight).max() / (127 if kind_of == "Q8_0" else 7)
            back = SavedWeightsOf(made.back)[name]
            assert np.abs(back - saved.tensor(name).numpy()).max() <= (0 if kind_of == "F32" else step)


class SavedWeightsOf(dict[str, Any]):
    def __init__(self, folder: Path) -> None:
        with SavedWeights(folder) as saved:
            super().__init__({name: saved.tensor(name).numpy() for name in saved})


def test_keys_and_vocabulary_that_llama_cpp_reads(tmp_path: Path) -> None:
    config = BASE.model_copy(update={"head_dim": 32, "rope_scaling": LONG})
    made = MadeForm(tmp_path, config, "gguf-q8_0")
    fields = {name: field.contents() for name, field in gguf.GGUFReader(made.folder / gguf_file.FILE).fields.items()}
    expected = {
        "general.architecture": "llama", "general.file_type": 7, "general.quantization_version": 2,
        "llama.block_count": 2, "llama.context_length": LENGTH, "llama.embedding_length": 64,
        "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 32, "llama.attention.value_length": 32, "llama.rope.dimension_count": 32,
        "llama.rope.freq_base": 500.0, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }  # fmt: skip
    assert {name: fields[name] for name in expected} == expected
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    vocabulary = made.tokenizer.get_vocab()
    assert fields["tokenizer.ggml.tokens"] == sorted(vocabulary, key=vocabulary.__getitem__)
    assert fields["tokenizer.ggml.token_type"][:2] == [3, 1]
    theirs = transformers.AutoTokenizer.from_pretrained(made.folder, gguf_file=gguf_file.FILE)
    assert theirs.decode(made.tokenizer.encode(TEXT).ids) == TEXT
    assert theirs(TEXT, add_special_tokens=False)["input_ids"] == made.tokenizer.encode(TEXT).ids


def test_factors_of_a_longer_context_are_those_that_transformers_divide_by(tmp_path: Path) -> None:
    longer = RopeScaling(factor=4.0, original_tokens=64)
    made = MadeForm(tmp_path, BASE.model_copy(update={"rope_scaling": longer}), "gguf-q8_0")
    (stored,) = (
        one.data for one in gguf.GGUFReader(made.folder / gguf_file.FILE).tensors if one.name == "rope_freqs.weight"
    )
    config = transformers.AutoConfig.from_pretrained(made.plain, local_files_only=True)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500.0 ** (-torch.arange(0, 16, 2) / 16)
    assert torch.allclose(plain / scaled, torch.tensor(stored), rtol=1e-5)
    assert stored.min() == 1.0
    assert stored.max() == 4.0
    described = {**json.loads((made.plain / "config.json").read_bytes()), "model_type": "olmo2"}
    with pytest.raises(CheckpointError, match="rope scaling llama3 of a model of type olmo2"):
        gguf_file.frequency_factors(described)


def test_a_model_with_packed_projections_is_not_compressed(tmp_path: Path) -> None:
    described = hf_config(BASE.model_copy(update={"rotary_fraction": 0.5}), 9, 8, "float32", 0, exported=True)
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match="a model of type phi3 cannot be written as int8"):
        forms.write("int8", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_with_sliding_windows_is_not_written_as_gguf() -> None:
    windowed = BASE.model_copy(update={"qk_norm": True, "window": SlidingWindow(tokens=4)})
    with pytest.raises(CheckpointError, match="type qwen3 with sliding windows cannot be written as GGUF"):
        gguf_file.tensor_names(hf_config(windowed, 9, 8, "float32", 0), [])


def test_a_changed_file_is_not_what_the_quantiser_gave(tmp_path: Path) -> None:
    made = MadeForm(tmp_path, BASE, "gguf-q8_0")
    path = made.folder / gguf_file.FILE
    digests = {"token_embd.weight": "0" * 64}
    with pytest.raises(IntegrityError, match="differs from the quantized tensors it was written from"):
        gguf_file.require_same(path, digests)
    (made.folder / "model.gguf").rename(tmp_path / "kept")
    again = MadeForm(tmp_path / "again", BASE, "gguf-q8_0")
    assert (again.folder / "model.gguf").read_bytes() == (tmp_path / "kept").read_bytes()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"digits": "single"}, "smollm"),
        ({"digits": "runs"}, "gpt-2"),
        ({"digits": "triples"}, None),
        ({"kind": "bpe-fallback"}, None),
        ({"kind": "unigram"}, None),
    ],
)
def test_a_tokenizer_that_llama_cpp_would_cut_otherwise_is_refused(params: dict[str, str], words: str | None) -> None:
    described = json.loads(pipeline(TokenizerParameters(**params)).to_str())  # type: ignore[arg-type]
    if words:
        assert gguf_file.words_of(described) == words
    else:
        with pytest.raises(CheckpointError, match="encode text differently"):
            gguf_file.words_of(described)


def test_integers_lie_within_half_a_step(tmp_path: Path) -> None:
    for form, groups in (("int8", 1), ("int4", 2)):
        made = MadeForm(tmp_path / form, BASE, form)
        exact, found = SavedWeightsOf(made.plain), SavedWeightsOf(made.back)
        for name, weight in exact.items():
            if weight.ndim == 2 and ".layers." in name:
                parts = weight.reshape(weight.shape[0], -1 if form == "int8" else weight.shape[1] // 32, groups and 32)
                parts = parts if form == "int4" else weight[:, None, :]
                step = np.abs(parts).max(-1, keepdims=True) / (127 if form == "int8" else 7)
                error = np.abs(found[name] - weight).reshape(parts.shape)
                assert (error <= step * 0.51).all(), name
                assert error.max() > 0
            else:
                assert np.array_equal(found[name], weight), name
    narrow = BASE.model_copy(update={"ffn_dim": 40})
    with pytest.raises(CheckpointError, match="cannot be int4"):
        MadeForm(tmp_path / "narrow", narrow, "int4")


def test_pruning_is_that_of_torch_and_of_the_papers() -> None:
    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(1))
    linear = torch.nn.Linear(32, 24, bias=False)
    linear.weight.data = weight.clone()
    prune.l1_unstructured(linear, "weight", amount=0.5)
    assert torch.equal(forms.unstructured(weight), linear.weight.detach())
    fours = torch.tensor([[1.0, -4.0, 2.0, 3.0, 0.5, 0.5, -0.5, 0.1]])
    assert forms.structured(fours).tolist() == [[0.0, -4.0, 0.0, 3.0, 0.0, 0.5, -0.5, 0.0]]


def test_rows_that_are_no_multiple_of_a_block_are_half_precision(tmp_path: Path) -> None:
    made = MadeForm(tmp_path, BASE.model_copy(update={"ffn_dim": 40}), "gguf-q4_0")
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(made.folder / gguf_file.FILE).tensors}
    assert kinds["blk.0.ffn_down.weight"] == "F16"
    assert kinds["blk.0.ffn_up.weight"] == "Q4_0"
    with torch.no_grad():
        assert torch.isfinite(load_model(made.back)(made.tokens)).all()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_torchao_is_silent_about_kernels_of_other_devices() -> None:
    """In a process of its own, since it speaks when it is first imported."""
    quiet = "from plinth_extras.compressed.forms import _scheme; _scheme('int8')"
    done = subprocess.run([sys.executable, "-c", quiet], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
