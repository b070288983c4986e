"""GGUF files for llama.cpp: matrices in blocks of 32 weights with one FP16 scale, quantized by the package `gguf`.

    Q8_0   8 bits per weight, 8.5 with the scale
    Q4_0   4 bits per weight, 4.5 with the scale; embeddings and output stay Q8_0

Norm gains stay FP32. A matrix is stored in FP16 if its row length is not a multiple of 32, as in llama.cpp's converter.
One tensor is in memory at a time. Every tensor of the file is compared with the quantizer's output by digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plinth.errors import CheckpointError, IntegrityError
from plinth.extensions import require
from plinth.model.attention import scaled
from plinth.model.folder import SavedWeights, read_config
from plinth.model.hugging_face import TOKENIZER, model_of

FILE: Final = "model.gguf"
BLOCK: Final = 32

#: Type of matrices, and the file's number for it (`LlamaFileType` of `gguf`).
_TYPES: Final = {"gguf-q8_0": ("Q8_0", "MOSTLY_Q8_0"), "gguf-q4_0": ("Q4_0", "MOSTLY_Q4_0")}
#: Read once per token, or decide every token: never below eight bits.
_ENDS: Final = ("model.embed_tokens.weight", "lm_head.weight")


def write(plain: Path, folder: Path, form: str) -> list[str]:
    """Write `model.gguf` from a Hugging Face folder; return the file name.

    Raises:
        CheckpointError: llama.cpp would compute a different model, or encode text into different tokens.
        IntegrityError: a tensor of the file differs from the quantizer's output.
    """
    gguf = require("gguf", "quantised")
    config, path = read_config(plain), folder / FILE
    writer = gguf.GGUFWriter(path, config["model_type"])
    factors = frequency_factors(config)
    with SavedWeights(plain) as saved:
        names = tensor_names(config, [*saved])
        _describe_model(writer, config, "plinth", int(gguf.LlamaFileType[_TYPES[form][1]]))
        _describe_tokenizer(writer, plain, config)
        kinds = {name: _kind(gguf, form, name, tuple(saved.rows(name).get_shape())) for name in names}
        for name, kind in kinds.items():
            shape = tuple(saved.rows(name).get_shape())
            stored = gguf.quants.quant_shape_to_byte_shape(shape, kind) if len(shape) > 1 else (shape[0] * 4,)
            plain_shape = kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
            writer.add_tensor_info(
                names[name],
                shape if plain_shape else stored,
                np.dtype(np.float32) if plain_shape else np.dtype(np.uint8),
                int(np.prod(stored)),
                raw_dtype=kind,
            )
        if factors is not None:
            writer.add_tensor_info(FREQUENCY_FACTORS, factors.shape, factors.dtype, factors.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        written = {}
        for name, kind in kinds.items():
            data = gguf.quantize(_stored(saved.tensor(name), config, name), kind)
            writer.write_tensor_data(data)
            written[names[name]] = hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()
        if factors is not None:
            writer.write_tensor_data(factors)
            written[FREQUENCY_FACTORS] = hashlib.sha256(factors.data).hexdigest()
    writer.close()
    require_same(path, written)
    return [FILE]


def require_same(path: Path, written: Mapping[str, str]) -> None:
    """Compare every tensor of a GGUF file with the SHA-256 of the quantizer's output.

    Raises:
        IntegrityError: tensors differ, are missing or were added; the error names them.
    """
    gguf = require("gguf", "quantised")
    found = {
        one.name: hashlib.sha256(np.ascontiguousarray(one.data).view(np.uint8).data).hexdigest()
        for one in gguf.GGUFReader(path).tensors
    }
    wrong = sorted(name for name in found.keys() | written.keys() if found.get(name) != written.get(name))
    if wrong:
        raise IntegrityError(
            f"{path} differs from the quantized tensors it was written from",
            found=", ".join(wrong),
            remedy="export again",
        )


def read(plain: Path, folder: Path, form: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of `model.gguf` in FP32, with Hugging Face's names and row order."""
    gguf = require("gguf", "quantised")
    config = read_config(plain)
    with SavedWeights(plain) as saved:
        published = {own: name for name, own in tensor_names(config, [*saved]).items()}
    for one in gguf.GGUFReader(folder / FILE).tensors:
        if one.name == FREQUENCY_FACTORS:
            continue
        name = published[one.name]
        values: Floats = gguf.dequantize(one.data, one.tensor_type)
        heads = heads_of(config, name)
        yield name, torch.from_numpy(np.array(halves(values, heads) if heads else values))


def _kind(gguf: Any, form: str, name: str, shape: tuple[int, ...]) -> Any:
    """Return the GGUF storage type of a tensor."""
    types = gguf.GGMLQuantizationType
    if len(shape) == 1:
        return types.F32
    if shape[-1] % BLOCK:
        return types.F16
    return types.Q8_0 if name in _ENDS else types[_TYPES[form][0]]


def _stored(tensor: Tensor, config: Mapping[str, Any], name: str) -> Floats:
    values: Floats = tensor.float().numpy()
    heads = heads_of(config, name)
    return np.ascontiguousarray(neighbours(values, heads) if heads else values)


# The keys of a GGUF file that llama.cpp reads, its names of tensors, and its order of rotary pairs.
#
# Names come from `gguf`'s own maps. llama.cpp rotates neighboring elements of a Llama head, where Hugging Face rotates
# one half against the other, so rows of `q_proj` and `k_proj` change places (`LlamaModel.permute` of llama.cpp's
# `convert_hf_to_gguf.py`); Qwen 2, Qwen 3 and OLMo 2 are rotated by halves there too and stay as they are.

Floats = npt.NDArray[np.float32]

#: Architectures of GGUF by `model_type`, and whether their rotary pairs are neighbors.
ARCHITECTURES: Final = {"llama": True, "qwen2": False, "qwen3": False, "olmo2": False}

#: Factors by which llama.cpp divides the rotary frequencies of a Llama. Of Plinth's architectures, llama.cpp reads them
#: only for Llama.
FREQUENCY_FACTORS: Final = "rope_freqs.weight"


def tensor_names(config: Mapping[str, Any], published: list[str]) -> dict[str, str]:
    """Return llama.cpp's name of every tensor, by the tensor's Hugging Face name.

    Raises:
        CheckpointError: GGUF does not support the architecture or one of its tensors.
    """
    gguf = require("gguf", "quantised")
    kind = config["model_type"]
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}.get(kind) if kind in ARCHITECTURES else None
    if arch is None:
        raise CheckpointError(
            f"a model of type {kind} cannot be written as GGUF", expected=f"one of {', '.join(ARCHITECTURES)}"
        )
    if sliding_window := model_of(config).window:
        raise CheckpointError(
            f"a model of type {kind} with sliding windows cannot be written as GGUF",
            found=f"windows of {sliding_window.tokens:,} tokens",
            expected="full attention in every layer, which is what llama.cpp computes for this type",
        )
    known = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    found = {name: known.get_name(name, try_suffixes=(".weight", ".bias")) for name in published}
    unknown = [name for name, own in found.items() if own is None]
    if unknown:
        raise CheckpointError(f"the GGUF format has no name for tensors of {kind}", found=", ".join(unknown))
    return found


def _describe_model(writer: Any, config: Mapping[str, Any], name: str, file_type: int) -> None:
    """Write the GGUF keys that describe the model architecture."""
    gguf = require("gguf", "quantised")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))


def frequency_factors(config: Mapping[str, Any]) -> Floats | None:
    """Return the divisors of the rotary frequencies [E / 2] if the model has an extended context, otherwise None.

    Raises:
        CheckpointError: llama.cpp does not support the extension for this architecture.
    """
    scaling = config.get("rope_scaling")
    if not scaling:
        return None
    kind = scaling.get("rope_type")
    if kind != "llama3" or config["model_type"] != "llama":
        raise CheckpointError(
            f"rope scaling {kind} of a model of type {config['model_type']} cannot be written as GGUF",
            expected="rope scaling llama3 of a model of type llama, or none",
        )
    width = config["head_dim"]
    plain = float(config["rope_theta"]) ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    factors: Floats = (plain / scaled(plain, model_of(config))).float().numpy()
    return factors


def heads_of(config: Mapping[str, Any], published: str) -> int:
    """Return the number of heads of a tensor whose rows llama.cpp reorders, or 0 for other tensors."""
    if not ARCHITECTURES[config["model_type"]]:
        return 0
    if published.endswith("q_proj.weight"):
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if published.endswith("k_proj.weight") else 0


def neighbours(weight: Floats, heads: int) -> Floats:
    """Reorder the rows [heads * E, ...] of a rotary projection from two halves per head to adjacent pairs."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def halves(weight: Floats, heads: int) -> Floats:
    """Reorder the rows of a rotary projection from adjacent pairs to two halves per head. This inverts `neighbours`."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


# The tokenizer as GGUF has it: tokens by id, kinds, merges, and the name of the pattern that cuts words.
#
# llama.cpp knows patterns by name only, so a tokenizer that it would split differently is rejected: the file would
# load, but encode other tokens than the model was trained on.

#: Patterns of Llama 3 and Qwen 2 as their `tokenizer.json` has them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

#: llama.cpp's name of each way to cut words (`llm_tokenizer_bpe` of its `llama-vocab.cpp`). `smollm`: each digit alone,
#: then GPT-2's pattern.
_WORDS: Final[Mapping[tuple[str, ...], str]] = {
    ("bytes",): "gpt-2",
    ("digits", "bytes"): "smollm",
    (_LLAMA3, "plain bytes"): "llama-bpe",
    (_QWEN2, "plain bytes"): "qwen2",
}


def _describe_tokenizer(writer: Any, plain: Path, config: Mapping[str, Any]) -> None:
    """Write the GGUF keys that describe the tokenizer of a model folder.

    Raises:
        CheckpointError: llama.cpp would encode text differently.
    """
    gguf = require("gguf", "quantised")
    described = json.loads((plain / TOKENIZER).read_bytes())
    model, size = described["model"], int(config["vocab_size"])
    words = words_of(described)
    added = {one["id"]: one for one in described["added_tokens"]}
    names = {index: token for token, index in model["vocab"].items()}
    names |= {index: one["content"] for index, one in added.items()}
    if max(names) >= size:
        raise CheckpointError("the tokenizer has more tokens than the model", found=max(names) + 1, expected=size)
    kinds = gguf.TokenType
    tokens = [names.get(index, f"[PAD{index}]") for index in range(size)]
    types = [
        (kinds.CONTROL if added[index]["special"] else kinds.USER_DEFINED)
        if index in added
        else kinds.NORMAL
        if index in names
        else kinds.UNUSED
        for index in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in model["merges"]])
    end = int(config["eos_token_id"])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    if "pad_token_id" in config:
        writer.add_pad_token_id(int(config["pad_token_id"]))
    writer.add_add_bos_token(True)  # as the template of `tokenizer.json`
    writer.add_add_eos_token(False)


def words_of(tokenizer: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the pre-tokenizer of a tokenizer.

    Raises:
        CheckpointError: llama.cpp has no name for this pre-tokenizer.
    """
    model, normalizer = tokenizer["model"], tokenizer.get("normalizer")
    cut = tokenizer.get("pre_tokenizer") or {}
    steps = cut.get("pretokenizers", [cut])
    found = _WORDS.get(tuple(_step(one) for one in steps))
    known = normalizer is None or (found == "qwen2" and normalizer == {"type": "NFC"})
    if model["type"] != "BPE" or model.get("byte_fallback") or found is None or not known:
        raise CheckpointError(
            "llama.cpp would encode text differently from this tokenizer",
            found=f"{model['type']}, words cut by {', '.join(str(one.get('type')) for one in steps)}",
            expected="`tokenizer: {kind: bpe-bytes, digits: single}` or `digits: runs`, or Llama 3, or Qwen 2",
            remedy="export int8 or int4, which keep tokenizer.json",
        )
    return found


def _step(described: Mapping[str, Any]) -> str:
    kind = described.get("type")
    if kind == "Digits" and described.get("individual_digits"):
        return "digits"
    if kind == "ByteLevel" and not described.get("add_prefix_space"):
        return "bytes" if described.get("use_regex", True) else "plain bytes"
    if kind == "Split" and described.get("behavior") == "Isolated" and not described.get("invert"):
        return str(described["pattern"].get("Regex"))
    return f"unknown {kind}"
