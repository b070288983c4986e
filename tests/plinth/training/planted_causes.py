"""Ranks that one thing makes slow, really: their reader, their all-reduce, their disk, or one rank of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import synthetic

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch

#: Seconds that a batch takes to be read, or a forward pass more than it takes; that a disk needs to flush a file. Above
#: what a rank on a busy machine waits for its turn.
READ_S, COMPUTE_S, FLUSH_S = 0.4, 0.4, 0.06

#: Bytes per second of a link that is too slow.
LINK = 250_000.0

#: Whom a cause befalls: of these, one rank alone.
ONE_RANK = {"reader of rank 1": 1, "computation of rank 1": 1, "reader of rank 0": 0}


def open_batches(config: RunConfig, rank: int) -> Batches:
    """Open batches that arrive late where `$PLANTED` requests it."""
    source, planted = synthetic.open_batches(config, rank), os.environ.get("PLANTED", "")
    late = planted == "reader" or (planted.startswith("reader of") and ONE_RANK[planted] == rank)

    def stream(first_step: int) -> Iterator[StepBatch]:
        for batch in source(first_step):
            if late:
                time.sleep(READ_S)
            yield batch

    return stream


def train(config: RunConfig, planted: str) -> None:
    """Train a run on this rank, with one cause planted."""
    from plinth.training.engine import engine
    from plinth.training.loop import TrainingRun

    os.environ["PLANTED"] = planted
    if planted == "all-reduce":
        _throttle()
    if planted == "disk":
        _flush_slowly()
    rank = engine.join(config)
    run = TrainingRun(config, rank)
    if planted.startswith("computation of") and ONE_RANK[planted] == rank.index:
        run.trainer.engine.module.register_forward_pre_hook(lambda *_: time.sleep(COMPUTE_S))
    run.resume(0)
    run.run(0)
    run.saver.drain()
    run.saver.close()
    engine.leave()


def _throttle() -> None:
    """Every collective takes its bytes over `LINK` longer; before they are measured, and DeepSpeed keeps them."""
    import torch.distributed as dist

    def slowed(function: Any) -> Any:
        def throttled(*arguments: Any, **more: Any) -> Any:
            tensor = next((one for one in (*arguments, *more.values()) if hasattr(one, "nbytes")), None)
            time.sleep(0.0 if tensor is None else tensor.nbytes / LINK)
            return function(*arguments, **more)

        return throttled

    for name in ("all_reduce", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor"):
        setattr(dist, name, slowed(getattr(dist, name)))


def _flush_slowly() -> None:
    flush = os.fsync

    def slowly(descriptor: Any) -> None:
        time.sleep(FLUSH_S)
        flush(descriptor)

    os.fsync = slowly
