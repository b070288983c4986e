"""Decoder: embedding, blocks of its architecture, head; whole, or one rank's part. Generation.

B  sequences    S  tokens of a sequence    n  ranks that share a sequence    V  vocabulary    D  model width
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.model.attention import CoreAttention, KeyValues, Layout, attention_mask, causal_mask, rotary
from plinth.model.blocks import Block
from plinth.model.division import (
    GAIN,
    UNDIVIDED,
    VOCABULARY,
    Declaration,
    Division,
    Initial,
    Placement,
    declarations,
    divided_cross_entropy,
    divided_embedding,
    initialise,
    token_losses,
)
from plinth.model.loss import Teacher, TopTokens, cross_entropy, distilled_cross_entropy
from plinth.model.parameters import AttentionPath, Model, architecture

__all__ = ["Choose", "Decoder", "build", "empty", "generate"]


class Decoder(nn.Module):
    """Token ids to logits, or to the loss when targets are given.

    The embedding and output matrices belong to this outermost module: ZeRO-3 then keeps them gathered for the whole
    forward pass, which tied embeddings need. Parameter names do not depend on the division of the model.
    """

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "embed_tokens": VOCABULARY,
        "lm_head": VOCABULARY,
        "norm.weight": GAIN,
    }

    def __init__(self, config: Model, vocab_size: int, division: Division = UNDIVIDED) -> None:
        super().__init__()
        self.config, self.vocab_size, self.division = config, vocab_size, division
        block, stage = architecture(config.architecture).block_class(), division.stage
        self.attention: AttentionPath = "auto"
        #: Copy of the first stage's embedding matrix on the last stage, if embeddings are tied.
        self.borrowed_embedding: Tensor | None = None
        if stage.first:
            self.embed_tokens = nn.Parameter(torch.empty(vocab_size, config.dim))
        self.layers = nn.ModuleDict({str(n): block(config, n, division) for n in stage.layers(config.layers)})
        if stage.last:
            self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
            if not config.tied_embeddings:
                self.lm_head = nn.Parameter(torch.empty(vocab_size, config.dim))

    def attend_by(self, path: AttentionPath) -> None:
        """Set the attention path of `forward`. The model itself does not change."""
        self.attention = path
        for module in self.modules():
            if isinstance(module, CoreAttention):
                module.flash = path == "flash"

    @property
    def blocks(self) -> list[Block]:
        """Return the blocks on this rank, in order."""
        return [cast(Block, block) for block in self.layers.values()]

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        x: Tensor | None = None,
        whole: bool | None = None,
        layout: Layout | None = None,
        teacher: Teacher | TopTokens | None = None,
    ) -> Tensor:
        """Return logits [B, S/n, V], or this rank's share of the mean cross-entropy in nats (scalar, FP32).

        The mean over sequence ranks of their shares is the loss. A stage that is not the last returns its activations
        [B, S/n, D]. Tensor ranks return logits of their part of the vocabulary. In training, z-loss is part of the
        loss; in evaluation it is not.

        Args:
            tokens: ids of whole sequences [B, S].
            segments: document number of each token [B, S]; attention stays within a document.
            targets: next ids [B, S]; -100 is not scored.
            x: activations of the previous stage [B, S/n, D]; None on the first stage.
            whole: True if no document ends within a sequence, so that no mask is needed; None if unknown.
            layout: positions, mask and outputs other than training's (`arranged` documents the result).
            teacher: teacher for distillation; undivided models only.
        """
        if layout is not None:
            return self.arranged(tokens, layout, x)
        ranks = self.division.sequence
        x = self.states(tokens, segments, x=x, whole=whole)
        if not self.division.stage.last:
            return x
        if targets is None:
            return self.logits(x)
        loss = self.loss(x, ranks.slice(targets), teacher)
        return loss if ranks.size == 1 else loss * ranks.loss_weight(targets)

    def states(
        self, tokens: Tensor, segments: Tensor | None = None, *, x: Tensor | None = None, whole: bool | None = None
    ) -> Tensor:
        """Activations [B, S/n, D] of this rank's part of the model, on the last stage after the last norm.

        Args: as of `forward`.
        """
        ranks = self.division.sequence
        if x is None:
            x = self.embed(ranks.slice(tokens))
        mask = attention_mask(segments, x.dtype, whole=whole, path=self.attention)
        if mask is None and self.attention == "flex":
            mask = causal_mask(tokens.shape[1], tokens.device)
        rotation = rotary(self.config, ranks.positions(x), x.dtype)
        for block in self.layers.values():
            x = block(x, rotation, mask)
        assert x is not None
        return self.norm(x) if self.division.stage.last else x

    def arranged(self, tokens: Tensor, layout: Layout, x: Tensor | None = None) -> Tensor:
        """Logits [U, V] of outputs, or [N, 2] of targets (`token_losses`); of a stage that is not the last activations.

        Sequence ranks return zeros for targets that others predict: their sum is the whole.
        """
        ranks = self.division.sequence
        if x is None:
            x = self.embed(ranks.slice(tokens))
        rotation, stage = rotary(self.config, ranks.slice(layout.positions), x.dtype), self.division.stage
        asked = layout.of_slice(ranks.index, ranks.size) if stage.last else None
        for block in self.blocks:
            last = asked is not None and block.index == self.config.layers - 1
            x = block(x, rotation, layout.seen(block.index), asked.outputs if asked and last else None)
        assert x is not None
        if asked is None:
            return x
        x = self.norm(x).flatten(0, -2)
        if asked.which is None or layout.targets is None:
            return self.logits(x)
        found = x.new_zeros(len(layout.targets), 2, dtype=torch.float32)
        found[asked.kept] = self._losses(x, asked.which, layout.targets[asked.kept])
        return found

    def _losses(self, x: Tensor, which: Tensor, targets: Tensor) -> Tensor:
        ranks, scale = self.division.tensor, self.config.logit_scale
        return token_losses(x, self.output_matrix, which, targets, self.held_ids[0], ranks, scale)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, S, D] of ids [B, S]."""
        ranks = self.division.tensor
        if ranks.size == 1:
            x = functional.embedding(tokens, self.embed_tokens)
        else:
            x = divided_embedding(tokens, self.embed_tokens, self.held_ids[0], ranks)
        return times(x, self.config.embedding_scale)

    def logits(self, x: Tensor) -> Tensor:
        """[B, S, D] after the last norm to logits [B, S, V]."""
        x = self.division.tensor.enter_region(x)
        return times(functional.linear(x, self.output_matrix), self.config.logit_scale)

    def loss(self, x: Tensor, targets: Tensor, teacher: Teacher | TopTokens | None = None) -> Tensor:
        """[B, S, D] after the last norm to the mean cross-entropy over targets [B, S], mixed with a teacher's."""
        ranks, scale = self.division.tensor, self.config.logit_scale
        z_loss = self.config.z_loss if self.training else 0.0
        hidden, output, targets = x.flatten(0, 1), self.output_matrix, targets.flatten()
        if teacher is not None:
            return distilled_cross_entropy(hidden, output, targets, teacher, scale=scale, z_loss=z_loss)
        if ranks.size == 1:
            return cross_entropy(hidden, output, targets, scale=scale, z_loss=z_loss)
        return divided_cross_entropy(hidden, output, targets, self.held_ids[0], ranks, scale=scale, z_loss=z_loss)

    @property
    def output_matrix(self) -> Tensor:
        """Return this rank's rows of the output projection."""
        if not self.config.tied_embeddings:
            return self.lm_head
        return self.embed_tokens if self.borrowed_embedding is None else self.borrowed_embedding

    @property
    def held_ids(self) -> tuple[int, int]:
        """Half-open range of the vocabulary on this rank."""
        return self.division.tensor.bounds(self.vocab_size)


def times(x: Tensor, factor: float) -> Tensor:
    """Return x * factor, or `x` itself if the factor is 1."""
    return x if factor == 1.0 else x * factor


def empty(
    config: Model,
    vocab_size: int,
    division: Division = UNDIVIDED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Return a rank's part of a decoder, without its weights: parameters have shape, precision and device, and
    one element of memory each.

    `initialise` sets their values. Each has its `placement` in the whole and, if tensor ranks divide it, its `shard`:
    axis, index, number of parts.
    """
    with torch.device("meta"):
        model = Decoder(config, vocab_size, division)
    declared, ranks = declarations(model), division.tensor
    for prefix, module in model.named_modules():
        for name, whole in list(module.named_parameters(recurse=False)):
            axis = declared[f"{prefix}.{name}" if prefix else name].axis
            shape, offset = list(whole.shape), [0, 0]
            if axis is not None:
                offset[axis], end = ranks.bounds(shape[axis])
                shape[axis] = end - offset[axis]
            parameter = nn.Parameter(torch.zeros(1, dtype=dtype, device=device).expand(shape))
            parameter.placement = Placement(tuple(whole.shape), *offset)  # type: ignore[attr-defined]
            if axis is not None and ranks.size > 1:
                parameter.shard = (axis, ranks.index, ranks.size)  # type: ignore[attr-defined]
            setattr(module, name, parameter)
    return model


def build(config: Model, vocab_size: int, seed: int) -> Decoder:
    """Return an initialized, undivided FP32 decoder on the CPU."""
    model = empty(config, vocab_size)
    initialise(model, Initial(config, seed))
    return model


# Generation with a key/value cache.
#
#     B  sequences    V  vocabulary
#
# The batch runs until its last sequence has ended; ended sequences are removed once they are half of the batch.

#: Function that chooses the next token of each sequence, by sequence number, from the logits [B, V].
Choose = Callable[[Tensor, Sequence[int]], list[int]]


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    choose: Choose,
    ended: Callable[[int, list[int]], bool],
) -> list[list[int]]:
    """Return the tokens after each prompt.

    Args:
        model: whole model, in evaluation mode.
        prompts: token ids, at least one each.
        limits: number of new tokens for each, at least one.
        choose: function that chooses the next tokens.
        ended: function that returns True if a sequence, by number and new tokens so far, is complete.
    """
    written: list[list[int]] = [[] for _ in prompts]
    device, dtype = model.embed_tokens.device, model.embed_tokens.dtype
    lengths = torch.tensor([len(one) for one in prompts], device=device)
    slots = max(len(one) + limit for one, limit in zip(prompts, limits, strict=True))
    cache = KeyValues(model.config, len(prompts), slots, device, dtype)
    rows = list(range(len(prompts)))  # sequences in the batch
    live = set(rows)
    logits = _read(model, prompts, lengths, cache)
    while True:
        chosen = choose(logits, rows)
        for row, token in zip(rows, chosen, strict=True):
            if row in live:
                written[row].append(token)
                if len(written[row]) >= limits[row] or ended(row, written[row]):
                    live.remove(row)
        if not live:
            return written
        if 2 * len(live) <= len(rows):
            kept = [index for index, row in enumerate(rows) if row in live]
            chosen, rows = [chosen[index] for index in kept], [rows[index] for index in kept]
            cache.keep(torch.tensor(kept, device=device))
            lengths = lengths[kept]
        logits = _write(model, torch.tensor(chosen, device=device), lengths, cache, slots)
        lengths = lengths + 1


def _read(model: Decoder, prompts: Sequence[Sequence[int]], lengths: Tensor, cache: KeyValues) -> Tensor:
    """Return logits [B, V] after the prompts. Padding is at the end, so no token attends to it."""
    longest = max(len(one) for one in prompts)
    tokens = torch.tensor([[*one, *[0] * (longest - len(one))] for one in prompts], device=lengths.device)
    positions = torch.arange(longest, device=lengths.device).expand(len(prompts), -1)
    last = torch.arange(len(prompts), device=lengths.device) * longest + lengths - 1
    return model.arranged(tokens, Layout(positions, outputs=last, cache=cache))


def _write(model: Decoder, tokens: Tensor, lengths: Tensor, cache: KeyValues, slots: int) -> Tensor:
    """Return logits [B, V] after one more token of each sequence, at position `lengths` [B]."""
    positions = lengths.clamp(max=slots - 1).unsqueeze(1)  # ended sequences write anywhere
    seen = torch.arange(int(positions.max()) + 1, device=tokens.device)
    unseen = (seen > positions)[:, None, None, :]
    mask = torch.zeros(unseen.shape, dtype=model.embed_tokens.dtype, device=tokens.device)
    mask = mask.masked_fill_(unseen, -torch.inf)
    return model.arranged(tokens.unsqueeze(1), Layout(positions, mask, cache=cache))
