"""A Llama-style decoder.

B  sequences    S  tokens of a sequence    V  vocabulary    D  model width

attention.py   rotary positions, masks, kernels
blocks.py      attention, feed-forward, block
initialise.py  initial weights
loss.py        cross-entropy without all logits
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.model.attention import attention_mask, rotary
from plinth.model.blocks import Block
from plinth.model.initialisation import Initial, initialise
from plinth.model.loss import cross_entropy
from plinth.model.parameters import Model

__all__ = ["Decoder", "build", "hollow"]


class Decoder(nn.Module):
    """Token ids to logits, or to the loss when targets are given.

    The embedding and output matrices belong to this outermost module: ZeRO-3 then keeps them gathered for
    the whole forward pass, which tied embeddings need.
    """

    def __init__(self, config: Model, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embed_tokens = nn.Parameter(torch.empty(vocab_size, config.dim))
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        if not config.tied_embeddings:
            self.lm_head = nn.Parameter(torch.empty(vocab_size, config.dim))

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        whole: bool | None = None,
    ) -> Tensor:
        """Logits [B, S, V], or the mean cross-entropy in nats (scalar, FP32) over `targets`.

        In training, z-loss is part of the loss; in evaluation it is not.

        Args:
            tokens: ids [B, S].
            segments: document number of each token [B, S]; attention stays within a document.
            targets: next ids [B, S]; -100 is not scored.
            whole: no document ends within a sequence, so that no mask is needed; None: not known.
        """
        x = self.embed(tokens)
        mask = attention_mask(segments, x.dtype, whole=whole)
        rotation = rotary(self.config, torch.arange(tokens.shape[1], device=x.device), x.dtype)
        for layer in self.layers:
            x = layer(x, rotation, mask)
        return self.head(self.norm(x), targets)

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [B, S] to [B, S, D]."""
        return times(functional.embedding(tokens, self.embed_tokens), self.config.embedding_scale)

    def head(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """[B, S, D] after the last norm to logits [B, S, V], or to the loss."""
        output = self.embed_tokens if self.config.tied_embeddings else self.lm_head
        if targets is None:
            return times(functional.linear(x, output), self.config.logit_scale)
        z_loss = self.config.z_loss if self.training else 0.0
        return cross_entropy(x.flatten(0, 1), output, targets.flatten(), scale=self.config.logit_scale, z_loss=z_loss)


def times(x: Tensor, factor: float) -> Tensor:
    """x * factor, and nothing at all where the factor is 1."""
    return x if factor == 1.0 else x * factor


def hollow(
    config: Model, vocab_size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """A decoder whose parameters have shape, precision and device, and one element of memory each.

    It may be divided and cut as one with weights; `initialise` gives what is left of it its values.
    """
    with torch.device("meta"):
        model = Decoder(config, vocab_size)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            one = torch.zeros(1, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(one.expand(parameter.shape)))
    return model


def build(config: Model, vocab_size: int, seed: int) -> Decoder:
    """A freshly initialised decoder on the CPU, whole, FP32."""
    model = hollow(config, vocab_size)
    initialise(model, Initial(config, seed))
    return model
