"""Names and shapes of a model's weights in several trainers' checkpoints. No torch.

Every tensor of every layout is a sequence of ranges of the tensors in Hugging Face's layout, so conversion copies
elements and changes none:

    hf          a state dict of `transformers`, of torchtitan's or torchtune's Hugging Face export
    plinth      a state dict of our decoder
    olmo-core   `olmo_core.nn.transformer.Transformer`, under `model.`
    megatron    `megatron.core.models.gpt.GPTModel.sharded_state_dict`: layers are stacked on a first axis; queries,
                keys and values are fused by query groups, gate and up projection by halves

Both named libraries rotate halves of a head, as Hugging Face's layout does, so no rows are permuted.

To add a layout, write a function that returns its tensors, and add it to `LAYOUTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from plinth.errors import CheckpointError
from plinth.model.architectures import parameters
from plinth.model.parameters import Model

Shape = tuple[int, ...]


class TensorRange(NamedTuple):
    """Range of elements of a Hugging Face tensor, in row-major order."""

    tensor: str
    first: int
    elements: int


class LayoutTensor(NamedTuple):
    """Tensor of a layout: shape, and the ranges that it consists of, in row-major order.

    `padded` is True if other trainers append rows, as Megatron does to divide the vocabulary; they are dropped.
    `stacked` is True if the first axis is the layers.
    """

    shape: Shape
    ranges: tuple[TensorRange, ...]
    padded: bool = False
    stacked: bool = False


#: Tensors of a layout by name.
Tensors = dict[str, LayoutTensor]


class TrainerLayout(NamedTuple):
    """Layout of a trainer.

    Args:
        embedding: name of the input embedding, by which the layout is recognized.
        tensors: returns the tensors of a model with a number of embedding rows.
        group: key of the state dict below which the trainer's reader expects the tensors; empty if there is none.
        objects: names of Python objects that the trainer's reader expects next to the tensors; each is a
            list of None.
    """

    embedding: str
    tensors: Callable[[Model, int], Tensors]
    group: str = ""
    objects: Callable[[Model], list[str]] = lambda model: []


def hf_shapes(model: Model, rows: int) -> dict[str, Shape]:
    """Return the shapes of the weights by Hugging Face name, in the order of the model.

    Raises:
        CheckpointError: the model has parameters that this module does not know.
    """
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (rows, model.dim)}
    for layer in range(model.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _block(model)}
    shapes["model.norm.weight"] = (model.dim,)
    if not model.tied_embeddings:
        shapes["lm_head.weight"] = (rows, model.dim)
    known, whole = sum(map(math.prod, shapes.values())), parameters(model, rows).total
    if known != whole:
        raise CheckpointError(
            "this model cannot be exchanged with other trainers yet",
            found=f"{whole - known:,} parameters without a known name, architecture {model.architecture}",
            expected="a Llama, Qwen2, Qwen3 or OLMo 2 model",
        )
    return shapes


def _block(model: Model) -> Iterator[tuple[str, Shape]]:
    head, dim = model.head_width, model.dim
    queries, keys = model.heads * head, model.kv_heads * head
    widths = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    for name, width in widths.items():
        yield f"self_attn.{name}.weight", (width, dim)
        if model.qkv_bias:
            yield f"self_attn.{name}.bias", (width,)
    yield "self_attn.o_proj.weight", (dim, queries)
    if model.qk_norm:
        whole = model.architecture == "olmo2"  # one norm over all heads; otherwise each head has the same
        yield "self_attn.q_norm.weight", (queries if whole else head,)
        yield "self_attn.k_norm.weight", (keys if whole else head,)
    yield "mlp.gate_proj.weight", (model.ffn_dim, dim)
    yield "mlp.up_proj.weight", (model.ffn_dim, dim)
    yield "mlp.down_proj.weight", (dim, model.ffn_dim)
    for norm in _block_norms(model):
        yield f"{norm}.weight", (dim,)


def _block_norms(model: Model) -> tuple[str, str]:
    """Return the names of the norms of the attention and of the feed-forward layer."""
    if model.architecture == "olmo2":
        return "post_attention_layernorm", "post_feedforward_layernorm"
    return "input_layernorm", "post_attention_layernorm"


def _whole(name: str, shape: Shape) -> LayoutTensor:
    return LayoutTensor(shape, (TensorRange(name, 0, math.prod(shape)),))


def _hf(model: Model, rows: int) -> Tensors:
    return {name: _whole(name, shape) for name, shape in hf_shapes(model, rows).items()}


def _plinth(model: Model, rows: int) -> Tensors:
    whole = {"model.embed_tokens.weight": "embed_tokens", "lm_head.weight": "lm_head"}
    return {whole.get(name, name.removeprefix("model.")): one for name, one in _hf(model, rows).items()}


_OLMO_NAMES = {
    "self_attn.q_proj": "attention.w_q",
    "self_attn.k_proj": "attention.w_k",
    "self_attn.v_proj": "attention.w_v",
    "self_attn.o_proj": "attention.w_out",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def _olmo_core(model: Model, rows: int) -> Tensors:
    if model.qkv_bias:
        raise _unsupported("OLMo-core", "qkv_bias: its attention has biases on all projections or on none")
    if model.rotary_fraction < 1:
        raise _unsupported("OLMo-core", "rotary_fraction: it rotates whole heads, so it would compute other numbers")
    attention, feed_forward = _block_norms(model)
    blocks = _OLMO_NAMES | {attention: "attention_norm", feed_forward: "feed_forward_norm"}
    names = {
        "model.embed_tokens": "embeddings",
        "model.norm": "lm_head.norm",
        "lm_head": "lm_head.w_out",
    }
    for layer in range(model.layers):
        names |= {f"model.layers.{layer}.{ours}": f"blocks.{layer}.{theirs}" for ours, theirs in blocks.items()}
    found = {}
    for name, one in _hf(model, rows).items():
        module, _, kind = name.rpartition(".")
        found[f"{names[module]}.{kind}"] = one
    return found


def _megatron(model: Model, rows: int) -> Tensors:
    if model.architecture != "llama":
        raise _unsupported("Megatron", f"architecture {model.architecture}: GPTModel's norms precede its sublayers")
    shapes = hf_shapes(model, rows)
    parts = {
        "self_attention.linear_qkv.weight": ("self_attn.{}.weight", "qkv"),
        "self_attention.linear_qkv.bias": ("self_attn.{}.bias", "qkv"),
        "self_attention.linear_proj.weight": ("self_attn.o_proj.weight", ""),
        "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight", ""),
        "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight", ""),
        "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight", ""),
        "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight", ""),
        "mlp.linear_fc1.weight": ("mlp.{}.weight", "halves"),
        "mlp.linear_fc2.weight": ("mlp.down_proj.weight", ""),
    }
    found = {"embedding.word_embeddings.weight": _padded("model.embed_tokens.weight", shapes)}
    for theirs, (ours, fused) in parts.items():
        if f"model.layers.0.{ours.format('q_proj')}" in shapes or fused == "halves":
            found[f"decoder.layers.{theirs}"] = _stacked(model, shapes, ours, fused)
    found["decoder.final_layernorm.weight"] = _whole("model.norm.weight", shapes["model.norm.weight"])
    if not model.tied_embeddings:
        found["output_layer.weight"] = _padded("lm_head.weight", shapes)
    return found


def _padded(name: str, shapes: Mapping[str, Shape]) -> LayoutTensor:
    return _whole(name, shapes[name])._replace(padded=True)


def _stacked(model: Model, shapes: Mapping[str, Shape], name: str, fused: str) -> LayoutTensor:
    """Return one tensor of all layers, stacked on a first axis; `fused` is `qkv`, `halves`, or
    empty for a tensor that is not fused."""
    ranges: list[TensorRange] = []
    for layer in range(model.layers):
        own = f"model.layers.{layer}.{name}"
        if fused == "qkv":
            ranges += _query_groups(model, shapes, own)
        else:
            parts = [own.format(part) for part in ("gate_proj", "up_proj")] if fused else [own]
            ranges += [TensorRange(part, 0, math.prod(shapes[part])) for part in parts]
    last = shapes[f"model.layers.0.{name.format('q_proj' if fused == 'qkv' else 'gate_proj')}"]
    rows = sum(one.elements for one in ranges) // model.layers // math.prod(last[1:])
    return LayoutTensor((model.layers, rows, *last[1:]), tuple(ranges), stacked=True)


def _query_groups(model: Model, shapes: Mapping[str, Shape], name: str) -> Iterator[TensorRange]:
    """Yield the rows of each query group: the queries of one key head, then its keys, then its values."""
    widths = {"q_proj": model.heads // model.kv_heads * model.head_width}
    for group in range(model.kv_heads):
        for part in ("q_proj", "k_proj", "v_proj"):
            own = name.format(part)
            count = widths.get(part, model.head_width) * math.prod(shapes[own][1:])
            yield TensorRange(own, group * count, count)


def _megatron_objects(model: Model) -> list[str]:
    """Return the names of the layers' extra states, which hold FP8 statistics in Transformer Engine."""
    modules = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
    return [
        f"decoder.layers.{module}._extra_state/shard_{layer}_{model.layers}"
        for module in modules
        for layer in range(model.layers)
    ]


def _unsupported(trainer: str, found: str) -> CheckpointError:
    return CheckpointError(f"{trainer} has no such model", found=found, expected="a model that both trainers have")


#: Layouts by name.
LAYOUTS: Final[Mapping[str, TrainerLayout]] = {
    "hf": TrainerLayout("model.embed_tokens.weight", _hf),
    "plinth": TrainerLayout("embed_tokens", _plinth),
    "olmo-core": TrainerLayout("embeddings.weight", _olmo_core, group="model"),
    "megatron": TrainerLayout("embedding.word_embeddings.weight", _megatron, objects=_megatron_objects),
}


def recognized(names: Mapping[str, object]) -> tuple[str, str]:
    """Return the layout of a checkpoint by the names of its tensors, and the prefix of the model's names.

    Raises:
        CheckpointError: no layout's input embedding is there, or those of several models, such as a copy of averages.
    """
    found = {
        (name[: -len(layout.embedding)], kind)
        for kind, layout in LAYOUTS.items()
        for name in names
        if name == layout.embedding or name.endswith(f".{layout.embedding}")
    }
    if not found:
        raise CheckpointError(
            "the checkpoint has no weights in a known layout",
            found=", ".join(sorted(names)[:5]) or "no tensors",
            expected=f"a tensor {', '.join(one.embedding for one in LAYOUTS.values())}, or one whose name ends so",
        )
    if len(found) > 1:
        raise CheckpointError(
            "the checkpoint has several models",
            found=", ".join(sorted(f"{prefix}{LAYOUTS[kind].embedding}" for prefix, kind in found)),
            expected="one input embedding",
            remedy="save the model alone, without averages of its weights",
        )
    ((prefix, kind),) = found
    return kind, prefix
