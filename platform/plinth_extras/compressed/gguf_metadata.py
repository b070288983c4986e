"""The keys of a GGUF file that llama.cpp reads, its names of tensors, and its order of rotary pairs.

Names come from `gguf`'s own maps. llama.cpp rotates neighbouring elements of a Llama head, where Hugging Face rotates
one half against the other, so rows of `q_proj` and `k_proj` change places (`LlamaModel.permute` of llama.cpp's
`convert_hf_to_gguf.py`); Qwen 2, Qwen 3 and OLMo 2 are rotated by halves there too and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from plinth.errors import CheckpointError
from plinth.extensions import require
from plinth.model.attention import scaled
from plinth.model.hugging_face import model_of

Floats = npt.NDArray[np.float32]

#: Architectures of GGUF by `model_type`, and whether their rotary pairs are neighbours.
ARCHITECTURES: Final = {"llama": True, "qwen2": False, "qwen3": False, "olmo2": False}

#: Factors by which llama.cpp divides the rotary frequencies of a Llama; it reads them of no other of ours.
FREQUENCY_FACTORS: Final = "rope_freqs.weight"


def tensor_names(config: Mapping[str, Any], published: list[str]) -> dict[str, str]:
    """llama.cpp's name of every tensor, by its published one.

    Raises:
        CheckpointError: GGUF does not know the architecture, or a tensor of it.
    """
    gguf = require("gguf", "quantised")
    kind = config["model_type"]
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}.get(kind) if kind in ARCHITECTURES else None
    if arch is None:
        raise CheckpointError(
            f"a model of type {kind} cannot be written as GGUF", expected=f"one of {', '.join(ARCHITECTURES)}"
        )
    known = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    found = {name: known.get_name(name, try_suffixes=(".weight", ".bias")) for name in published}
    unknown = [name for name, own in found.items() if own is None]
    if unknown:
        raise CheckpointError(f"GGUF has no name for tensors of {kind}", found=", ".join(unknown))
    return found


def describe(writer: Any, config: Mapping[str, Any], name: str, file_type: int) -> None:
    """Write the keys of the architecture."""
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
    """Divisors of the rotary frequencies [E / 2] of a model whose context was extended; None of any other.

    Raises:
        CheckpointError: llama.cpp computes no such extension for this architecture.
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
    """Heads whose rows llama.cpp has in another order; 0 for tensors that stay as they are."""
    if not ARCHITECTURES[config["model_type"]]:
        return 0
    if published.endswith("q_proj.weight"):
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if published.endswith("k_proj.weight") else 0


def neighbours(weight: Floats, heads: int) -> Floats:
    """Rows [heads * E, ...] of two halves per head, as pairs of neighbours."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def halves(weight: Floats, heads: int) -> Floats:
    """The inverse of `neighbours`."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
