"""Parameters and floating-point operations of the decoder that a recipe describes. Free of torch.

L layers, D `dim`, H query heads and K key/value heads of D / H, F `ffn_dim`, V vocabulary, S sequence.
"""

from __future__ import annotations

from plinth.model.architecture import architecture
from plinth.model.parameters import Model
from plinth.records import Frozen


class ParameterCounts(Frozen):
    """Parameters by place; `norms` counts gains and biases, which no token is multiplied with as with a matrix."""

    embedding: int
    attention: int
    feed_forward: int
    norms: int
    output: int

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.feed_forward + self.norms + self.output


def parameters(model: Model, vocab_size: int) -> ParameterCounts:
    """Parameters of a model; a tied output projection has none of its own."""
    block = architecture(model.architecture).counts(model)
    return ParameterCounts(
        embedding=vocab_size * model.dim,
        attention=model.layers * block.attention,
        feed_forward=model.layers * block.feed_forward,
        norms=model.layers * (block.norms + block.biases) + model.dim,
        output=0 if model.tied_embeddings else vocab_size * model.dim,
    )


def flops_6n(model: Model, vocab_size: int) -> int:
    """Training FLOPs per token as 6 N, N all parameters (Hoffmann et al. 2022; Kaplan et al. 2020 leave out
    embeddings)."""
    return 6 * parameters(model, vocab_size).total


def flops_exact(model: Model, vocab_size: int, sequence_tokens: int) -> int:
    """Training FLOPs per token of every matrix product: 6 per matrix parameter, the output projection included
    and the embedding look-up not, and 12 L H Q S for attention over the whole square (Chowdhery et al. 2022,
    "PaLM", appendix B, whose convention published utilisation figures use)."""
    counted = parameters(model, vocab_size)
    matrices = counted.attention + counted.feed_forward + vocab_size * model.dim
    head = model.head_width
    return 6 * matrices + 12 * model.layers * model.heads * head * sequence_tokens
