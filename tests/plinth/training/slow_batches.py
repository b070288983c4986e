"""The synthetic batches, each of which takes a while to arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator

import synthetic

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch

ARRIVES_S = 0.05


def open_batches(config: RunConfig, rank: int) -> Batches:
    source = synthetic.open_batches(config, rank)

    def stream(first_step: int) -> Iterator[StepBatch]:
        for batch in source(first_step):
            time.sleep(ARRIVES_S)
            yield batch

    return stream
