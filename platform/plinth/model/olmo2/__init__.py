"""OLMo 2 (arXiv:2501.00656, section 3.2): norms of each sublayer's output, and QK-norm over all heads together.

    block    the block, with what each of its parameters declares
"""

from __future__ import annotations

from plinth.model.parameters import Architecture, BlockCounts, Model, Norm, Published


def counts(model: Model) -> BlockCounts:
    """Parameters of one block."""
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    return BlockCounts(
        attention=2 * model.dim * (queries + keys),
        feed_forward=3 * model.dim * model.ffn_dim,
        norms=2 * model.dim + queries + keys,
    )


def norms(model: Model) -> tuple[Norm, ...]:
    """Norms of one block."""
    projected = (model.heads * model.head_width, model.kv_heads * model.head_width)
    return (Norm(model.dim), Norm(model.dim), *(Norm(width, divided=True, over_ranks=True) for width in projected))


ARCHITECTURE = Architecture(
    block="plinth.model.olmo2.block:Olmo2Block",
    counts=counts,
    norms=norms,
    recomputes_output=True,
    published=(Published("olmo2", "Olmo2ForCausalLM", {"qk_norm": True, "qkv_bias": False}),),
)
