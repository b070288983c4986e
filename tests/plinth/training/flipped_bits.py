"""Flipped bits inside the ranks of a run, for tests: `flipped_bits:open_batches` reads the plan from FAULTS.

FAULTS is a JSON object {"marks": folder, "flips": [[step, rank], …]}. Each flip strikes once, ever: the lowest bit of a
weight of the rank changes before the forward pass of the step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import synthetic

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch


def open_batches(config: RunConfig, rank: int) -> Batches:
    plan = json.loads(os.environ.get("FAULTS") or '{"marks": "", "flips": []}')
    own = rank == int(os.environ["RANK"])  # a replay also reads the batches of other ranks
    steps = {step for step, struck in plan["flips"] if own and struck == rank}
    if steps:
        _arm(steps, Path(plan["marks"]))

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            if own:
                _STEP[:] = [step]
            yield synthetic.batch_at(config, step, rank)

    return stream


_STEP: list[int] = []


def _arm(steps: set[int], marks: Path) -> None:
    import torch

    from plinth.training.engine.engine import TrainingEngine

    whole = TrainingEngine.train_step

    def struck(engine: Any, batch: StepBatch, lr: float) -> Any:
        mark = marks / f"flipped-{_STEP[0]}"
        if _STEP[0] in steps and not mark.exists():
            mark.touch()
            weight = max(engine.module.parameters(), key=lambda one: one.numel())
            weight.data.view(-1)[:64].view(torch.int32).bitwise_xor_(1)
        return whole(engine, batch, lr)

    TrainingEngine.train_step = struck  # type: ignore[method-assign]
