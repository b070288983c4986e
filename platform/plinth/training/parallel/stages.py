"""Which layers a stage of the pipeline holds, and the decoder reduced to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from torch import Tensor, nn

from plinth.model.attention import attention_mask, rotary
from plinth.model.decoder import Decoder
from plinth.training.parallel.sequence import Slice


@dataclass(frozen=True)
class Stage:
    """Which part of the model this rank holds, and its neighbours' global ranks."""

    index: int
    count: int
    ranks: list[int]  # of this pipeline, first stage first

    @property
    def first(self) -> bool:
        """Holds the embedding."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Holds the last norm and the head, and knows the loss."""
        return self.index == self.count - 1

    @property
    def before(self) -> int | None:
        """Global rank of the stage before."""
        return None if self.first else self.ranks[self.index - 1]

    @property
    def after(self) -> int | None:
        """Global rank of the stage after."""
        return None if self.last else self.ranks[self.index + 1]

    def layers(self, total: int) -> range:
        """Its blocks; the first stages take one more where they do not divide evenly, for the last has the head."""
        each, more = divmod(total, self.count)
        start = self.index * each + min(self.index, more)
        return range(start, start + each + (self.index < more))

    def owner(self, name: str, layers: int) -> int:
        """The stage that trains a parameter, by its name in `Decoder`."""
        parts = name.split(".")
        if parts[0] == "layers":
            return next(n for n in range(self.count) if int(parts[1]) in replace(self, index=n).layers(layers))
        return 0 if name == "embed_tokens" else self.count - 1


def cut(model: Decoder, stage: Stage, ours: Slice) -> Decoder:
    """The hollow decoder, reduced to one stage in place. What remains keeps its names.

    Its `forward` takes (tokens, segments, targets, x), of whole sequences but for x: the activations that the stage
    before made of this rank's slice of them, or None on the first; it returns activations, or the loss on the last.
    """
    blocks = {str(index): model.layers[index] for index in stage.layers(len(model.layers))}
    setattr(model, "layers", nn.ModuleDict(blocks))  # noqa: B010 - mypy: another class, the same names
    if not stage.first:
        tied = model.embed_tokens.detach()
        del model.embed_tokens
        if stage.last and model.config.tied_embeddings:
            model.__dict__["embed_tokens"] = tied  # no parameter: the first stage trains it, and sends what it is
    if not stage.last:
        del model.norm
        if not model.config.tied_embeddings:
            del model.lm_head
    setattr(model, "forward", partial(_forward, model, stage, ours))  # noqa: B010 - mypy forbids it as an assignment
    return model


def _forward(
    model: Decoder,
    stage: Stage,
    ours: Slice,
    tokens: Tensor,
    segments: Tensor | None,
    targets: Tensor,
    *,
    x: Tensor | None = None,
    whole: bool | None = None,
) -> Tensor:
    """`Decoder.forward` of one stage."""
    x = model.embed(ours.of(tokens)) if x is None else x
    mask = attention_mask(segments, x.dtype, whole=whole)
    rotation = rotary(model.config, ours.positions(x), x.dtype)
    for layer in cast(nn.ModuleDict, model.layers).values():
        x = layer(x, rotation, mask)
    if not stage.last:
        return cast(Tensor, x)
    return model.head(model.norm(x), ours.of(targets)) * ours.share(targets)
