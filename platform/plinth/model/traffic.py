"""Bytes that training moves between a device's memory and its arithmetic, of the decoder that a recipe describes. Free
of torch.

A product of an [m, k] by a [k, n] matrix reads both and writes the result: (mk + kn + mn) elements. So do the two of
its backward pass, each with two of the three as inputs and the third as output. Counted are matrix products, attention
as a fused kernel (FlashAttention: nothing of size S x S) and the update of AdamW in FP32; norms, activations and the
loss move bytes of their own, so that this is a lower bound, and an intensity of it an upper one (Williams, Waterman and
Patterson 2009, "Roofline").

D `dim`, H query heads and K key/value heads of E, F `ffn_dim`, V vocabulary.
"""

from __future__ import annotations

from plinth.model.flops import parameters
from plinth.model.parameters import Model

#: AdamW in FP32 reads parameter, gradient and both moments, and writes all but the gradient.
UPDATE_BYTES = 7 * 4


def product_bytes(model: Model, vocab_size: int, tokens: int, element_bytes: int, *, tensor: int = 1) -> float:
    """Of every matrix product of one forward and backward pass of so many tokens.

    Args:
        element_bytes: of an element of activations and weights.
        tensor: ranks that divide every matrix, each along one of its sides.
    """
    counted, heads = parameters(model, vocab_size), 2 * (model.heads + model.kv_heads) * model.head_width
    weights = counted.attention + counted.feed_forward + vocab_size * model.dim
    whole = model.layers * 7 * model.dim + model.dim  # q, k, v, o, gate, up, down, and the output projection
    divided = model.layers * (heads + 3 * model.ffn_dim) + vocab_size
    return 3 * element_bytes * (weights / tensor + tokens * (whole + divided / tensor))


def attention_bytes(model: Model, tokens: int, element_bytes: int, *, tensor: int = 1) -> float:
    """Of attention as a fused kernel, forward (Q, K, V, O) and backward (those, and the gradients of O, Q, K, V)."""
    per_token = 6 * (model.heads + model.kv_heads) * model.head_width
    return element_bytes * tokens * model.layers * per_token / tensor


def update_bytes(model: Model, vocab_size: int, ranks: int = 1) -> float:
    """Of one update by AdamW whose states so many ranks divide."""
    return UPDATE_BYTES * parameters(model, vocab_size).total / ranks
