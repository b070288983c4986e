"""The model in Hugging Face's layout: `config.json` and `model.safetensors`.

Names and shapes are those of `LlamaForCausalLM`, or of `Qwen3ForCausalLM` where queries and keys are
normalised, so that the files load there as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.recipe.training import Model
from plinth.training.model import Decoder

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def hf_name(name: str) -> str:
    """The published name of a parameter of `Decoder`."""
    if name == "lm_head":
        return "lm_head.weight"
    return "model.embed_tokens.weight" if name == "embed_tokens" else f"model.{name}"


def hf_config(model: Model, vocab_size: int, sequence_tokens: int, dtype: str, end_of_text: int) -> dict[str, Any]:
    """Fields of `LlamaConfig`, or `Qwen3Config` with `qk_norm`."""
    kind = ("qwen3", "Qwen3ForCausalLM") if model.qk_norm else ("llama", "LlamaForCausalLM")
    return {
        "model_type": kind[0],
        "architectures": [kind[1]],
        "vocab_size": vocab_size,
        "hidden_size": model.dim,
        "intermediate_size": model.ffn_dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.dim // model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": sequence_tokens,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": model.tied_embeddings,
        "initializer_range": model.init_std,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
        "use_cache": True,
    }


def save_model(directory: Path, parameters: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write whole parameters, by their name in `Decoder`, and the configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {hf_name(name): tensor.detach().contiguous() for name, tensor in parameters.items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / CONFIG).write_text(json.dumps(dict(config), indent=2, sort_keys=True) + "\n")


def load_model(directory: Path | str) -> Decoder:
    """The decoder in a directory that `save_model` wrote, on the CPU, in the saved dtype, ready to evaluate.

    Raises:
        CheckpointError: a file is missing or broken, or tensors and configuration disagree.
    """
    folder = Path(directory)
    try:
        config = json.loads((folder / CONFIG).read_text())
        tensors = load_file(folder / WEIGHTS)
        model = Decoder(_architecture(config), int(config["vocab_size"]))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} holds no model that can be loaded", found=error, expected=f"{CONFIG} and {WEIGHTS}"
        ) from error
    wanted = {hf_name(name): parameter for name, parameter in model.named_parameters()}
    _same_tensors(folder, wanted, tensors)
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.data = tensors[name]
    return model.eval()


def _architecture(config: Mapping[str, Any]) -> Model:
    return Model(
        layers=config["num_hidden_layers"],
        dim=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        ffn_dim=config["intermediate_size"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
        qk_norm=config["model_type"] == "qwen3",
        tied_embeddings=config["tie_word_embeddings"],
        init_std=config["initializer_range"],
    )


def _same_tensors(folder: Path, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    differences = [f"{name} missing" for name in sorted(wanted.keys() - found.keys())]
    differences += [f"{name} unknown" for name in sorted(found.keys() - wanted.keys())]
    differences += [
        f"{name} has shape {tuple(found[name].shape)}, expected {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name].shape != found[name].shape
    ]
    if differences:
        raise CheckpointError(
            f"the tensors in {folder / WEIGHTS} are not those of its configuration", found="; ".join(differences)
        )
