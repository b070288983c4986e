"""Functions that ranks run in the tests of changed layouts: train a few steps, save the state, resume elsewhere."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plinth.training.checkpoint import sharded_state, universal
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.parallel.topology import place_of


def batch_at(config: RunConfig, step: int, data_rank: int) -> StepBatch:
    """The rows of one data rank: the global batch is the same for any number of ranks and any micro batch."""
    accumulation, micro = config.accumulation(step), config.micro_batch_sequences
    rows, length = accumulation * micro, config.sequence_tokens + 1
    tokens = np.empty((rows, length), np.int32)
    for row in range(rows):
        generator = np.random.default_rng((step, data_rank * rows + row))
        start, stride = generator.integers(1, config.vocab_size, 2)
        tokens[row] = (start + stride % 7 * np.arange(length)) % config.vocab_size
    tokens = tokens.reshape(accumulation, micro, length)
    segments = np.broadcast_to((np.arange(length) >= length // 3).astype(np.int32), tokens.shape).copy()
    return StepBatch.of(tokens, segments)


def open_batches(config: RunConfig, rank: int) -> Batches:
    """The batches of `changed_layout:open_batches`. FAULTS: {"marks": folder, "kill": [[step, rank]]}."""
    data_rank = place_of(config.parallel, config.ranks, rank).data
    plan = json.loads(os.environ.get("FAULTS", '{"marks": "", "kill": []}'))

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            mark = Path(plan["marks"]) / f"kill-{step}-{rank}"
            if [step, rank] in plan["kill"] and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch_at(config, step, data_rank)

    return stream


def journey(legs: list[tuple[RunConfig, Path | None, int, int, Path]]) -> list[dict[str, Any]]:
    """On one rank: for each leg, take up the state of a folder, train steps from first to last, leave the state."""
    from plinth.training.engine.engine import join, leave

    rank = join(legs[0][0])
    torch.set_num_threads(1)  # threads that wait for each other crawl on a busy machine
    found = [train(config, rank, *leg) for config, *leg in legs]
    leave()
    return found


def train(config: RunConfig, rank: Any, start: Path | None, first: int, last: int, end: Path) -> dict[str, Any]:
    from plinth.training.checkpoint import snapshot
    from plinth.training.trainer import Trainer

    trainer = Trainer(config, rank)
    engine, found = trainer.engine, dict[str, Any]()
    if start is not None:
        universal.restore(engine, start)
        found["before"] = snapshot.digests(engine)
        torch.distributed.barrier()
        sharded_state.write(universal.capture(engine), Path(f"{end}-before"), rank.index)
    stream = trainer.batches(first)
    measured = [trainer.launch(stream, step).read() for step in range(first, last + 1)]
    sharded_state.write(universal.capture(engine), end, rank.index)
    torch.distributed.barrier()
    found |= {name: [getattr(one, name) for one in measured] for name in ("loss", "grad_norm", "batch")}
    found["after"] = snapshot.digests(engine)
    engine.deepspeed.destroy()
    return found


def whole_state(folder: Path) -> dict[tuple[str, str], Tensor]:
    """Every whole tensor of a state, by parameter and kind."""
    with ExitStack() as stack:
        found = sharded_state.ShardedState(stack, folder)
        named = [(name, kind) for name in sorted(found.names) for kind in sorted(found.kinds_of(name))]
        return {(name, kind): found.whole(name, kind) for name, kind in named}


def same(left: dict[Any, Tensor], right: dict[Any, Tensor]) -> bool:
    """Return True if two states hold the same bits."""
    return left.keys() == right.keys() and all(
        torch.equal(left[key].view(torch.int32), right[key].view(torch.int32)) for key in left
    )
