"""The synthetic batches from step 7 on, and a trainer's first steps that are those of another run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import synthetic

from plinth.training.config import RunConfig
from plinth.training.data import StepBatch

BEFORE = 6


def open_batches(config: RunConfig, rank: int) -> Any:
    inner = synthetic.open_batches(config, rank)

    def stream(first_step: int) -> Iterator[StepBatch]:
        yield from inner(first_step + BEFORE)

    return stream


def first_steps(config: RunConfig, count: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of the first steps of a run that begins from another."""
    from plinth.training.engine import engine as engines
    from plinth.training.trainer import Trainer

    trainer = Trainer(config, engines.join(config))
    trainer.keep_optimizer()
    stream, found = trainer.batches(1), []
    for step in range(1, count + 1):
        measured = trainer.launch(stream, step).read()
        found.append((measured.loss, measured.grad_norm))
    engines.leave()
    return found
