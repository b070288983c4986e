"""Compare engines whose steps change their batch and the length of their rows with one plain process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.engine.optimization import learning_rate
from tests.plinth.training import plain_training


def sequences_of(config: RunConfig, step: int) -> StepBatch:
    """The global batch of a step, by the positions that it takes: [1, batch, S + 1]."""
    first, count = config.steps.take(step - 1)
    tokens = np.empty((1, count, config.sequence_tokens + 1), np.int32)
    for row, position in enumerate(range(first, first + count)):
        start, stride = np.random.default_rng(position).integers(1, config.vocab_size, 2)
        tokens[0, row] = (start + stride % 7 * np.arange(tokens.shape[2])) % config.vocab_size
    return StepBatch.of(tokens, (tokens % 11 == 0).cumsum(-1).astype(np.int32))


def batch_of(config: RunConfig, step: int, rank: int) -> StepBatch:
    """Return the part of the batch for one rank, in micro batches."""
    whole = sequences_of(config, step).expanded()
    shape = (config.data_ranks, config.accumulation(step), config.micro_batch_sequences, config.sequence_tokens + 1)
    mine = StepBatch.of(whole.tokens.reshape(shape)[rank], whole.segments.reshape(shape)[rank])
    return replace(mine, length=config.steps.length(step - 1))


def plain_run(config: RunConfig) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of one process without DeepSpeed and without micro batches."""

    def loss_of(model: Decoder, step: int) -> Tensor:
        batch = replace(sequences_of(config, step), length=config.steps.length(step - 1)).expanded()
        tokens, segments = torch.from_numpy(batch.tokens[0]).long(), torch.from_numpy(batch.segments[0])
        loss: Tensor = model(tokens[:, :-1], segments[:, :-1], tokens[:, 1:])
        return loss

    def rate_of(step: int) -> float:
        return learning_rate(config.optimizer, *config.progress(step))

    return plain_training.plain_run(config, config.total_steps, loss_of, rate_of)[:2]


def train_all(configs: dict[str, RunConfig]) -> dict[str, tuple[list[float], list[float]]]:
    """On one rank: losses and gradient norms of each configuration in turn."""
    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    answers = {name: _train(config, rank) for name, config in configs.items()}
    engines.leave()
    return answers


def _train(config: RunConfig, rank: Any) -> tuple[list[float], list[float]]:
    from plinth.training.engine.pipeline import open_engine

    engine = open_engine(config, rank)
    losses, norms = [], []
    for step in range(1, config.total_steps + 1):
        batch = batch_of(config, step, engine.topology.place.data)
        loss, norm = engine.train_step(batch, learning_rate(config.optimizer, *config.progress(step)))
        losses.append(float(loss))
        norms.append(float(norm))
    engine.deepspeed.destroy()
    return losses, norms
