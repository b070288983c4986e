"""The decoder when its matrices, its sequences or both are divided: the same names, the same loss.

Every rank is given whole sequences and returns its share of the loss, so that the mean over all ranks is the
loss of the global batch, and the mean of gradients over data and sequence ranks is its gradient.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from plinth.model.attention import attention_mask, rotary
from plinth.model.blocks import Block
from plinth.model.decoder import Decoder
from plinth.training.parallel import tensor
from plinth.training.parallel.collectives import enter_region
from plinth.training.parallel.sequence import UlyssesCore
from plinth.training.parallel.topology import Topology


class DividedDecoder(Decoder):
    """Token ids to loss, over tensor and sequence ranks."""

    topology: Topology

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        whole: bool | None = None,
    ) -> Tensor:
        """As `Decoder.forward`, of whole sequences [B, S]. Logits, without targets, are of this rank's slice and
        part of the vocabulary: [B, S / sequence ranks, V / tensor ranks]."""
        ours = self.topology.slice
        x = self.embed(ours.of(tokens))
        mask = attention_mask(segments, x.dtype, whole=whole)
        rotation = rotary(self.config, ours.positions(x), x.dtype)
        for layer in self.layers:
            x = layer(x, rotation, mask)
        x = self.norm(x)
        return self.head(x, None) if targets is None else self.head(x, ours.of(targets)) * ours.share(targets)

    def embed(self, tokens: Tensor) -> Tensor:
        group = self.topology.tensor
        if group is None:
            return super().embed(tokens)
        x = tensor.embed(tokens, self.embed_tokens, self._first_id, group)
        return x * self.config.embedding_scale

    def head(self, x: Tensor, targets: Tensor | None) -> Tensor:
        group = self.topology.tensor
        if group is None:
            return super().head(x, targets)
        if targets is None:
            return super().head(enter_region(x, group), None)
        output = self.embed_tokens if self.config.tied_embeddings else self.lm_head
        scale, z_loss = self.config.logit_scale, self.config.z_loss if self.training else 0.0
        flat = x.flatten(0, 1)
        return tensor.cross_entropy(flat, output, targets.flatten(), self._first_id, group, scale=scale, z_loss=z_loss)

    @property
    def _first_id(self) -> int:
        return tensor.bounds(self.vocab_size, self.topology.shape.tensor, self.topology.place.tensor)[0]


def divided(model: Decoder, topology: Topology) -> Decoder:
    """The hollow decoder, cut to this rank's part in place; as it is when nothing divides it."""
    if topology.tensor is None and topology.sequence is None:
        return model
    if topology.tensor is not None:
        tensor.divide(model, topology.tensor)
    model.__class__ = DividedDecoder  # parameters keep their names, by which checkpoints and exports are written
    cut = cast(DividedDecoder, model)
    cut.topology = topology
    if topology.sequence is not None:
        for layer in cut.layers:
            attention = cast(Block, layer).self_attn
            attention.core = UlyssesCore(attention.core, topology.sequence)
    return cut


def whole(name: str, parameter: Tensor, topology: Topology) -> Tensor:
    """The undivided parameter; a collective over the tensor ranks."""
    return parameter if topology.tensor is None else tensor.whole(name, parameter, topology.tensor)


def gradient_norm(module: nn.Module, topology: Topology) -> Tensor:
    """Norm of the averaged gradients of the whole model, on the device."""
    return tensor.norm_squared(module, topology.tensor).sqrt()
