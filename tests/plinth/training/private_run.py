"""What ranks do in the tests of private runs: steps with rows by themselves, plain or private."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch


def rows_of(config: RunConfig, step: int, rank: int) -> StepBatch:
    """The rows of a rank, one to a micro batch, of the same global batch on any number of ranks."""
    count, width = config.global_batch_sequences // config.ranks, config.sequence_tokens + 1
    tokens = np.empty((count, 1, width), np.int32)
    for row in range(count):
        start, stride = np.random.default_rng((step, rank * count + row)).integers(1, config.vocab_size, 2)
        tokens[row, 0] = (start + stride % 7 * np.arange(width)) % config.vocab_size
    return StepBatch.of(tokens)


def open_batches(config: RunConfig, rank: int) -> Batches:
    """The batches of `private_run:open_batches`."""

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            yield rows_of(config, step, rank)

    return stream


def steps_of(legs: list[tuple[RunConfig, bool]], count: int) -> list[list[tuple[float, float]]]:
    """On one rank: loss and gradient norm of the first steps of each run; with True without clip and noise."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.trainer import Trainer

    rank, found = join(legs[0][0]), list[Any]()
    torch.set_num_threads(1)
    for config, bare in legs:
        trainer = Trainer(config, rank)
        if bare:
            assert trainer.engine.private is not None
            trainer.engine.private.noise_multiplier, trainer.engine.private.clip_norm = 0.0, float("inf")
        stream = trainer.batches(1)
        measured = [trainer.launch(stream, step).read() for step in range(1, count + 1)]
        assert trainer.engine.private is None or trainer.engine.private.step == count
        found.append([(one.loss, one.grad_norm) for one in measured])
        trainer.engine.deepspeed.destroy()
    leave()
    return found


def audited(config: RunConfig, step: int) -> dict[str, Any]:
    """On one rank: the proof of resume, then what a trainer says that has loaded a checkpoint and taken no step."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.forensics.audit import replay
    from plinth.training.trainer import Trainer

    rank = join(config)
    torch.set_num_threads(1)
    replay(config, rank)
    trainer = Trainer(config, rank)
    trainer.load(step)
    leave()
    return trainer.state()["privacy"]
