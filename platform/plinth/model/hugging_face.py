"""Conversion of parameter names and configurations to and from Hugging Face's layout, and export formats.

This module does not import torch. Names and shapes are those of `transformers`' class for the architecture, so files
load unchanged in both directions. Hugging Face has no equivalent for muP's multipliers. The files of a run with muP
therefore have a `model_type` that `transformers` does not load; an export folds the multipliers into the weights
(`plain_factor`).

Put code for reading files into `folder`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from plinth.extensions import Catalogue
from plinth.model import layer_types, sparsity
from plinth.model.architectures import architecture, published
from plinth.model.parameters import Model, MuP, Published, RopeScaling

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"

#: Files required for evaluation and registration of a model.
REQUIRED_FILES = (WEIGHTS, CONFIG, TOKENIZER)

#: Index of a model in several files: file of each tensor.
INDEX = "model.safetensors.index.json"


def required_files(names: Collection[str]) -> tuple[str, ...]:
    """Return the required files of a model folder, given the names of all its files.

    Weights are in one file, or in several files with an index.
    """
    if INDEX not in names:
        return REQUIRED_FILES
    weights = sorted(name for name in names if name.endswith(".safetensors"))
    return (INDEX, CONFIG, TOKENIZER, *(weights or [WEIGHTS]))


#: `model_type` of files that only we read, and the fields of `Model` that these files have under our names. A
#: checkpoint of a model that is published with packed projections (`packed`) has separate ones.
MUP_TYPE = "plinth-mup"
SEPARATE_TYPE = "plinth-separate"
OWN_TYPES = (MUP_TYPE, SEPARATE_TYPE)
OWN_FIELDS = ("architecture", "qk_norm", "qkv_bias", "window", "rotary_fraction", "sinks", "experts")

#: `model_type` that has attention sinks, and factors of its own for scores, embeddings, logits and residuals.
GRANITE = "granite_swa"

#: `model_type` whose configuration has a switch for the norm of queries and keys, and whose heads are half rotated by
#: default.
GLM = "glm4_moe"

#: Fields of Hugging Face's configurations for which only one value is supported.
_ONLY = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0),
    "clip_qkv": None,
    "quantization_config": None,
}

#: Optional fields of the families' configurations, and the default of `transformers`.
_DEFAULTS = {"rope_theta": 10000.0, "tie_word_embeddings": False, "initializer_range": 0.02}


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a `Decoder` parameter."""
    if name == "lm_head":
        return "lm_head.weight"
    return "model.embed_tokens.weight" if name == "embed_tokens" else f"model.{name}"


def hf_config(
    model: Model, vocab_size: int, sequence_tokens: int, dtype: str, end_of_text: int, *, exported: bool = False
) -> dict[str, Any]:
    """Return the fields of `config.json` for the architecture's `transformers` class.

    With muP, and for checkpoints of models that are exported with packed projections, the `model_type` and some fields
    are Plinth's own.

    Args:
        exported: True if the weights are written as other programs read them.
    """
    kind = architecture(model.architecture).published_as(model)
    if model.mup is not None:
        kind = Published(MUP_TYPE, "PlinthMuPForCausalLM", {})
    elif kind.partly_rotated and not exported:
        kind = Published(SEPARATE_TYPE, "PlinthForCausalLM", {})
    scaling = None if model.rope_scaling is None else _hf_scaling(model.rope_scaling)
    return {
        "model_type": kind.model_type,
        "architectures": [kind.class_name],
        "vocab_size": vocab_size,
        "hidden_size": model.dim,
        "intermediate_size": model.ffn_dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": sequence_tokens,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": model.tied_embeddings,
        "initializer_range": model.init_std,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
        "use_cache": True,
        **(_own_fields(model) if kind.model_type in OWN_TYPES else layer_types.fields(model, kind.model_type, scaling)),
        **({"partial_rotary_factor": model.rotary_fraction, "pad_token_id": None} if kind.partly_rotated else {}),
        **({"attention_multiplier": model.head_width**-0.5} if kind.model_type == GRANITE else {}),
        **({"use_qk_norm": model.qk_norm} if kind.model_type == GLM else {}),
        **sparsity.fields(model.experts, kind.model_type),
    }


def _own_fields(model: Model) -> dict[str, Any]:
    """Return the fields of `config.json` that only `model_of` reads."""
    return model.model_dump(include={*OWN_FIELDS, *(() if model.mup is None else ("mup",))})


def _hf_scaling(scaling: RopeScaling) -> dict[str, Any]:
    original = {"factor": scaling.factor, "original_max_position_embeddings": scaling.original_tokens}
    if scaling.kind == "yarn":
        turns = {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        return {"rope_type": "yarn", **original, **turns, "attention_factor": scaling.attention_factor}
    return {
        "rope_type": "llama3",
        **original,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
    }


def weight_files(sizes: Mapping[str, int], file_bytes: int) -> dict[str, list[str]]:
    """Return the names of the weight files with the tensors of each, in order.

    Args:
        sizes: bytes of each tensor by name.
        file_bytes: maximum bytes of tensors per file; a larger tensor has its own file.
    """
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if groups[-1] and total + size > file_bytes:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    count = len(groups)
    names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)] if count > 1 else [WEIGHTS]
    return dict(zip(names, groups, strict=True))


def index_text(files: Mapping[str, list[str]], sizes: Mapping[str, int]) -> str:
    """Return the text of the index of several weight files."""
    where = {tensor: name for name, group in files.items() for tensor in group}
    return config_text({"metadata": {"total_size": sum(sizes.values())}, "weight_map": where})


def config_text(config: Mapping[str, Any]) -> str:
    """Return the JSON text of a configuration file."""
    return json.dumps(dict(config), indent=2, sort_keys=True) + "\n"


def plain_factor(model: Model, name: str) -> float:
    """Return the factor that folds muP's multipliers into the parameter `name`.

    With all parameters multiplied by their factors, a model without muP computes the same result as `model`. The logit
    multiplier goes into the gain of the last norm, and the attention scale into the queries. The embedding multiplier
    goes into the embeddings; if embeddings are tied, the gain of the last norm is divided by the embedding multiplier.
    Without muP, every factor is 1.
    """
    if model.mup is None:
        return 1.0
    if name == "norm.weight":
        return model.logit_scale / (model.embedding_scale if model.tied_embeddings else 1.0)
    if name == "embed_tokens":
        return model.embedding_scale
    queries = name.endswith("q_norm.weight" if model.qk_norm else ("q_proj.weight", "q_proj.bias"))
    return float(model.attention_scale * model.head_width**0.5) if queries else 1.0


def model_of(config: Mapping[str, Any]) -> Model:
    """Return the model configuration that a `config.json` describes.

    Raises:
        ValueError: Plinth's decoder does not support the model.
        KeyError: a field is missing.
    """
    known = {one.model_type: {"architecture": name, **one.fields} for name, one in published()}
    kind = config["model_type"]
    if kind not in (*known, *OWN_TYPES):
        raise ValueError(f"model_type {kind!r}, expected one of {', '.join(sorted(known))}")
    config = _DEFAULTS | dict(config)
    rope = layer_types.rope_parameters(config)["full_attention"]
    fraction = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.5 if kind == GLM else 1.0))
    only = _ONLY | ({} if kind == "phi3" else {"partial_rotary_factor": 1.0})
    for name, value in only.items():
        found = fraction if name == "partial_rotary_factor" else config.get(name, value)
        if found != value:
            raise ValueError(f"{name} {found!r}, expected {value!r}")
    mup = config.get("mup")
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or width // heads
    if kind == GRANITE and not math.isclose(config.get("attention_multiplier", 1.0), head_dim**-0.5):
        raise ValueError(f"attention_multiplier {config.get('attention_multiplier', 1.0)}, expected {head_dim**-0.5}")
    if kind in OWN_TYPES:
        implied = {name: config[name] for name in OWN_FIELDS if name in config}
    else:
        implied = {**known[kind], "window": layer_types.window_of(config), "rotary_fraction": fraction}
        implied |= {"experts": sparsity.experts_of(config)}
        implied |= {"qk_norm": config.get("use_qk_norm", False)} if kind == GLM else {}
    return Model(
        layers=config["num_hidden_layers"],
        dim=width,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=0 if head_dim * heads == width else head_dim,
        ffn_dim=config["intermediate_size"],
        rope_theta=rope["rope_theta"],
        rope_scaling=_scaling(rope),
        norm_eps=config["rms_norm_eps"],
        tied_embeddings=config["tie_word_embeddings"],
        init_std=config["initializer_range"],
        mup=None if mup is None else MuP(**mup),
        **implied,
    )


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = layer_types.rope_type(rope)
    if kind == "default":
        return None
    if kind == "yarn":
        return _yarn(rope)
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r}, expected llama3, yarn or none")
    return RopeScaling(
        factor=rope["factor"],
        low_frequency_factor=rope["low_freq_factor"],
        high_frequency_factor=rope["high_freq_factor"],
        original_tokens=rope["original_max_position_embeddings"],
    )


def _yarn(rope: Mapping[str, Any]) -> RopeScaling:
    """Return YaRN's parameters from a Hugging Face configuration.

    `attention_factor` is omitted if it equals the value that follows from `factor`.
    """
    for name, only in (("truncate", True), ("mscale", None), ("mscale_all_dim", None)):
        if rope.get(name, only) != only:
            raise ValueError(f"yarn with {name} {rope[name]!r}, expected {only!r}")
    scaling = RopeScaling(
        kind="yarn",
        factor=rope["factor"],
        original_tokens=rope["original_max_position_embeddings"],
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
    )
    stated = rope.get("attention_factor")
    if stated in (None, scaling.attention_factor):
        return scaling
    return scaling.model_copy(update={"temperature": stated})


@dataclass(frozen=True, kw_only=True)
class ModelForm:
    """Export format of a model, for example a quantized format.

    Args:
        name: name of the format in `plinth export model --format` and in export gates.
        export: function of a context, a name, the model folder and its `tokenizer.json`. It returns a context manager
            that yields an object with two methods: `write(folder)` writes the format, and
            `judged(settings, context, release, folder)` evaluates it.
    """

    name: str
    export: Callable[..., AbstractContextManager[Any]]


FORMS = Catalogue("plinth.model_forms", "form of a model", ModelForm, {})
