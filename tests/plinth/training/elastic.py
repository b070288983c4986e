"""What ranks do in the tests of changed layouts: train a few steps, leave the state, take it up elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plinth.training import pieces, snapshot, universal
from plinth.training.config import RunConfig
from plinth.training.data import Batch, Batches
from plinth.training.engine import Engine, join, leave, open_engine
from plinth.training.loop import train_step
from plinth.training.parallel.topology import place_of


def batch_at(config: RunConfig, step: int, data_rank: int) -> Batch:
    """The rows of one data rank: the global batch is the same for any number of ranks and any micro batch."""
    accumulation, micro, length = config.accumulation(), config.micro_batch_sequences, config.sequence_tokens + 1
    tokens = np.empty((accumulation, micro, length), np.int32)
    for number in range(accumulation):
        for row in range(micro):
            global_row = (number * config.data_ranks + data_rank) * micro + row
            generator = np.random.default_rng(step * config.global_batch_sequences + global_row)
            start, stride = generator.integers(1, config.vocab_size, 2)
            tokens[number, row] = (start + stride % 7 * np.arange(length)) % config.vocab_size
    segments = np.broadcast_to((np.arange(length) >= length // 3).astype(np.int32), tokens.shape).copy()
    return Batch(tokens, segments)


def open_batches(config: RunConfig, rank: int) -> Batches:
    """What a run's configuration names as `elastic:open_batches`."""
    data_rank = place_of(config.parallel, config.ranks, rank).data

    def stream(first_step: int) -> Iterator[Batch]:
        for step in range(first_step, config.total_steps + 1):
            yield batch_at(config, step, data_rank)

    return stream


def train(config: RunConfig, start: Path | None, first: int, last: int, end: Path) -> dict[str, Any]:
    """Take the state from `start`, train steps `first` to `last`, leave the state in `end`."""
    rank = join(config)
    engine = open_engine(config, rank)
    found: dict[str, Any] = {}
    if start is not None:
        universal.restore(engine, start)
        found["before"] = state_of(engine)
    stream = open_batches(config, rank.index)(first)
    measured = [train_step(engine, stream, step, 0) for step in range(first, last + 1)]
    pieces.write(universal.capture(engine), end, rank.index)
    found |= {"loss": [one.loss for one in measured], "norm": [one.grad_norm for one in measured]}
    found |= {"batch": [one.batch for one in measured], "after": state_of(engine)}
    leave()
    return found


def state_of(engine: Engine) -> dict[str, Any]:
    """Digests of everything that the next step depends on."""
    return snapshot.digests(engine)


def whole_state(folder: Path) -> dict[tuple[str, str], Tensor]:
    """Every whole tensor of a state, by parameter and kind."""
    with ExitStack() as stack:
        found = pieces.Pieces(stack, folder)
        return {(name, kind): found.whole(name, kind) for name in sorted(found.names) for kind in sorted(found.kinds)}


def same(left: dict[Any, Tensor], right: dict[Any, Tensor]) -> bool:
    """Whether two states hold the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
