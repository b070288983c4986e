"""Decoder with embedding, blocks and head, for the whole model or one rank's part of it; text generation.

B  sequences    S  tokens per sequence    n  ranks that share a sequence    V  vocabulary    D  model width
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.model.architectures import architecture
from plinth.model.attention import CoreAttention, KeyValues, Layout, Rotation, attention_mask, rotary
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
from plinth.model.experts import RoutingRecord, sparse_layers
from plinth.model.loss import Teacher, TopTokens, cross_entropy, distilled_cross_entropy
from plinth.model.parameters import AttentionPath, Model

__all__ = ["Choose", "Decoder", "build", "empty", "generate"]


class Decoder(nn.Module):
    """Decoder that maps token ids to logits, or to the loss if targets are given.

    The embedding and output matrices belong to this outermost module. ZeRO-3 therefore keeps them gathered for the
    whole forward pass, which tied embeddings need. Parameter names do not depend on the division of the model over
    ranks.
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
        #: Routing of the last training forward pass through sparse layers of this rank; None if there are none.
        self.routing: RoutingRecord | None = None
        self.measures_routing = False  # also entropies, and the load by sequence
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
        """Set the attention path of `forward`. The path changes neither the parameters nor the result."""
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
        """Return logits [B, S/n, V], or the loss in nats (scalar, FP32) if `targets` is given.

        With sequence parallelism, each rank returns a weighted loss, and the mean over the sequence ranks is the loss
        of the batch. A pipeline stage other than the last returns its activations [B, S/n, D]. Tensor ranks return
        logits for their part of the vocabulary. In training the loss includes z-loss and the balancing losses of this
        stage's experts.

        Args:
            tokens: ids of whole sequences [B, S].
            segments: document number of each token [B, S]; attention stays within a document.
            targets: next ids [B, S]; targets of -100 are not scored.
            x: activations of the previous stage [B, S/n, D]; None on the first stage.
            whole: True if no document ends within a sequence, so that no mask is needed; None if unknown.
            layout: positions, mask and outputs that differ from training; if given, the method returns the result of
                `arranged`.
            teacher: teacher for distillation; undivided models only.
        """
        if layout is not None:
            return self.arranged(tokens, layout, x)
        ranks = self.division.sequence
        with self._recording(targets is not None):
            x = self.states(tokens, segments, x=x, whole=whole)
        if not self.division.stage.last:
            return x
        if targets is None:
            return self.logits(x)
        loss = self.loss(x, ranks.slice(targets), teacher)
        loss = loss if ranks.size == 1 else loss * ranks.loss_weight(targets)
        return loss if self.routing is None else loss + self.routing.loss()

    @contextmanager
    def _recording(self, trains: bool) -> Iterator[None]:
        """Collect the routing of sparse layers within the context, if the pass is one of training."""
        layers = sparse_layers(self) if self.config.experts else []
        self.routing = RoutingRecord(measures=self.measures_routing) if layers and trains and self.training else None
        for layer in layers:
            layer.record = self.routing
        yield
        if self.routing is not None:
            self.routing.open = False

    def states(
        self, tokens: Tensor, segments: Tensor | None = None, *, x: Tensor | None = None, whole: bool | None = None
    ) -> Tensor:
        """Return the activations [B, S/n, D] after this rank's blocks; on the last stage, after the final norm.

        The arguments have the same meaning as in `forward`.
        """
        ranks = self.division.sequence
        if x is None:
            x = self.embed(ranks.slice(tokens))
        rotations = self._rotations(ranks.positions(x), x.dtype)
        # the fused kernel of `sdpa` has no sinks
        path = "flex" if self.config.sinks and self.attention == "auto" and x.is_cuda else self.attention
        masks = {
            window: attention_mask(tokens, segments, x.dtype, whole=whole, path=path, window=window)
            for window in rotations
        }
        for block in self.blocks:
            x = block(x, rotations[block.window], masks[block.window])
        assert x is not None
        return self.norm(x) if self.division.stage.last else x

    def arranged(self, tokens: Tensor, layout: Layout, x: Tensor | None = None) -> Tensor:
        """Return logits [U, V] of the requested outputs, or `token_losses` [N, 2] if the layout has targets.

        A pipeline stage other than the last returns its activations. A sequence rank returns zeros for targets that
        other ranks predict, so the sum over ranks is the complete result.
        """
        ranks = self.division.sequence
        if x is None:
            x = self.embed(ranks.slice(tokens))
        rotations = self._rotations(ranks.slice(layout.positions), x.dtype)
        masks = {window: layout.mask_within(window, x.dtype) for window in rotations}
        asked = layout.of_slice(ranks.index, ranks.size) if self.division.stage.last else None
        for block in self.blocks:
            last = asked is not None and block.index == self.config.layers - 1
            mask = layout.seen(block.index, masks[block.window])
            x = block(x, rotations[block.window], mask, asked.outputs if asked and last else None)
        assert x is not None
        if asked is None:
            return x
        x = self.norm(x).flatten(0, -2)
        if asked.which is None or layout.targets is None:
            return self.logits(x)
        found = x.new_zeros(len(layout.targets), 2, dtype=torch.float32)
        found[asked.kept] = self._losses(x, asked.which, layout.targets[asked.kept])
        return found

    def _rotations(self, positions: Tensor, dtype: torch.dtype) -> dict[int | None, Rotation]:
        """Return the rotary positions of this rank's blocks, by the window of the blocks."""
        windows = {block.window for block in self.blocks}
        return {window: rotary(self.config.with_positions_of(window), positions, dtype) for window in windows}

    def _losses(self, x: Tensor, which: Tensor, targets: Tensor) -> Tensor:
        ranks, scale = self.division.tensor, self.config.logit_scale
        return token_losses(x, self.output_matrix, which, targets, self.held_ids[0], ranks, scale)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, S, D] of token ids [B, S]."""
        ranks = self.division.tensor
        if ranks.size == 1:
            x = functional.embedding(tokens, self.embed_tokens)
        else:
            x = divided_embedding(tokens, self.embed_tokens, self.held_ids[0], ranks)
        return times(x, self.config.embedding_scale)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits [B, S, V] for activations [B, S, D] after the final norm."""
        x = self.division.tensor.enter_region(x)
        return times(functional.linear(x, self.output_matrix), self.config.logit_scale)

    def loss(self, x: Tensor, targets: Tensor, teacher: Teacher | TopTokens | None = None) -> Tensor:
        """Return the mean cross-entropy over targets [B, S] for activations [B, S, D] after the final norm.

        If a teacher is given, the result is a weighted sum of cross-entropy and distillation loss.
        """
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
        """Half-open range of token ids whose embeddings are on this rank."""
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
    """Return a rank's part of a decoder, with parameters that have no values yet.

    Every parameter has its final shape, precision and device, but only one element of memory. `initialise` allocates
    the parameters and sets their values. Each parameter has a `placement`, its position in the whole parameter. If
    tensor ranks divide the parameter, it also has a `shard`: the axis, the index of the part, and the number of parts.
    """
    with torch.device("meta"):
        model = Decoder(config, vocab_size, division)
    declared = declarations(model)
    for prefix, module in model.named_modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.zeros_like(buffer, device=device))
        for name, whole in list(module.named_parameters(recurse=False)):
            declaration = declared[f"{prefix}.{name}" if prefix else name]
            axis, ranks = declaration.axis, division.experts if declaration.experts else division.tensor
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
    """Return the generated tokens of each prompt, without the prompt.

    Args:
        model: whole model, in evaluation mode.
        prompts: token ids; each prompt has at least one.
        limits: maximum number of new tokens for each prompt; each limit is at least 1.
        choose: function that chooses the next token of each sequence.
        ended: function of a sequence's index and its new tokens so far; returns True if the sequence is complete.
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
    """Return the logits [B, V] after the last token of each prompt, and fill the cache.

    Prompts are padded at the end, so no token attends to padding.
    """
    longest = max(len(one) for one in prompts)
    tokens = torch.tensor([[*one, *[0] * (longest - len(one))] for one in prompts], device=lengths.device)
    positions = torch.arange(longest, device=lengths.device).expand(len(prompts), -1)
    last = torch.arange(len(prompts), device=lengths.device) * longest + lengths - 1
    return model.arranged(tokens, Layout(positions, outputs=last, cache=cache))


def _write(model: Decoder, tokens: Tensor, lengths: Tensor, cache: KeyValues, slots: int) -> Tensor:
    """Process one more token per sequence, at position `lengths` [B], and return the logits [B, V] after it."""
    positions = lengths.clamp(max=slots - 1).unsqueeze(1)  # ended sequences write anywhere
    seen = torch.arange(int(positions.max()) + 1, device=tokens.device)
    unseen = (seen > positions)[:, None, None, :]
    mask = torch.zeros(unseen.shape, dtype=model.embed_tokens.dtype, device=tokens.device)
    mask = mask.masked_fill_(unseen, -torch.inf)
    return model.arranged(tokens.unsqueeze(1), Layout(positions, mask, cache=cache))
