"""Llama (arXiv:2302.13971): pre-norm blocks with RMSNorm. With `qkv_bias` it is Qwen2, with `qk_norm` Qwen3.

    block    the block, with what each of its parameters declares
"""

from __future__ import annotations

from plinth.model.parameters import Architecture, BlockCounts, Model, Norm, Published


def counts(model: Model) -> BlockCounts:
    """Parameters of one block."""
    head = model.head_width
    return BlockCounts(
        attention=2 * model.dim * model.heads * head + 2 * model.dim * model.kv_heads * head,
        feed_forward=3 * model.dim * model.ffn_dim,
        norms=2 * model.dim + (2 * head if model.qk_norm else 0),
        biases=(model.heads + 2 * model.kv_heads) * head if model.qkv_bias else 0,
    )


def norms(model: Model) -> tuple[Norm, ...]:
    """Norms of one block."""
    head = model.head_width
    heads = tuple(Norm(n * head, n, divided=True) for n in (model.heads, model.kv_heads)) if model.qk_norm else ()
    return (Norm(model.dim), Norm(model.dim), *heads)


ARCHITECTURE = Architecture(
    block="plinth.model.llama.block:LlamaBlock",
    counts=counts,
    norms=norms,
    recomputes_output=False,
    published=(
        Published("llama", "LlamaForCausalLM", {"qk_norm": False, "qkv_bias": False}),
        Published("qwen2", "Qwen2ForCausalLM", {"qk_norm": False, "qkv_bias": True}),
        Published("qwen3", "Qwen3ForCausalLM", {"qk_norm": True, "qkv_bias": False}),
    ),
)
