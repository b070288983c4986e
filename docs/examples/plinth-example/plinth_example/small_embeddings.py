"""A training hook: a loss term that keeps embeddings small, and their size as a number of every step.

training:
  extensions:
    small_embeddings: {weight: 0.01}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from plinth.records import Frozen
from plinth.training.hooks import TrainingHook
from plinth.training.rank_hook import RankHook

if TYPE_CHECKING:
    from torch import Tensor

    from plinth.training.config import RunConfig
    from plinth.training.engine.engine import TrainingEngine
    from plinth.training.engine.ranks import Rank


class SmallEmbeddings(Frozen):
    """Strength of the embedding penalty."""

    weight: float = Field(0.01, gt=0, description="Weight of the mean squared element in the loss.")


class EmbeddingTerm(RankHook):
    """The term on one rank."""

    def __init__(self, config: RunConfig, rank: Rank, params: SmallEmbeddings) -> None:
        self.weight, self.step = params.weight, 0
        self.squares: dict[int, Tensor] = {}  # of steps that were not read yet, on the device

    def attach(self, engine: TrainingEngine) -> None:
        self.matrix: Tensor = dict(engine.module.named_parameters())["embed_tokens"]

    def before_step(self, step: int) -> None:
        self.step = step

    def loss(self, loss: Tensor, inputs: Any) -> Tensor:
        square = self.matrix.float().square().mean()
        self.squares[self.step] = square.detach()
        return loss + self.weight * square

    def after_step(self, measured: Any) -> Mapping[str, float]:
        return {"rms": float(self.squares.pop(measured.step)) ** 0.5}


HOOK = TrainingHook(
    name="small_embeddings",
    params=SmallEmbeddings,
    rank=EmbeddingTerm,
    undivided=("tensor", "pipeline", "zero_stage"),
)
