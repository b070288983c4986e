"""A source of batches for tests: repeating patterns that a small model learns, in any step, on any rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.parallel.topology import place_of


def batch_at(config: RunConfig, step: int, rank: int) -> StepBatch:
    """The batch of one rank at one step, from the position alone. The ranks of a replica have the same one."""
    rank = place_of(config.parallel, config.ranks, rank).data
    shape = (config.accumulation(step), config.micro_batch_sequences, config.sequence_tokens + 1)
    tokens = np.empty(shape, np.int32)
    for micro in range(shape[0]):
        for row in range(shape[1]):
            position = ((step * shape[0] + micro) * config.ranks + rank) * shape[1] + row
            start, stride = np.random.default_rng(position).integers(1, config.vocab_size, 2)
            tokens[micro, row] = (start + stride % 7 * np.arange(shape[2])) % config.vocab_size
    segments = np.broadcast_to((np.arange(shape[2]) >= shape[2] // 2).astype(np.int32), shape).copy()
    return StepBatch.of(tokens, segments)


def open_batches(config: RunConfig, rank: int) -> Batches:
    """Open batches; the configuration of a run names this function as `synthetic:open_batches`."""

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            yield batch_at(config, step, rank)

    return stream
