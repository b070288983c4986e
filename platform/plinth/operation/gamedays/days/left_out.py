"""A run in which some steps never were: what a run whose guard left them out must equal.

Does not belong here: which steps those are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters


def trained_without(config: RunConfig, left_out: Collection[int]) -> dict[str, Any]:
    """Train as one rank, without guard and checkpoints, and pass over these steps; digests of the state at the end."""
    import torch

    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine
    from plinth.training.trainer import Trainer

    unwatched = config.model_copy(update={"guard": GuardParameters(enabled=False)})
    rank = engine.join(unwatched)
    torch.set_num_threads(1)
    trainer = Trainer(unwatched, rank)
    trainer.keep_optimizer()
    stream = trainer.batches(1)
    for step in range(1, config.total_steps + 1):
        if step in left_out:
            next(stream)
        else:
            trainer.launch(stream, step).read()
    found = snapshot.digests(trainer.engine)
    engine.leave()
    return found
