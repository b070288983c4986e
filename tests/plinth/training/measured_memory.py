"""Ranks that count the bytes of every tensor of a training step, beside what the planner says of it."""

from __future__ import annotations

from typing import Any

import synthetic
from counted_tensors import Live

from plinth.operation.planning import memory
from plinth.training.config import RunConfig


def measure_all(configs: dict[str, RunConfig]) -> dict[str, int]:
    """On one rank, of each configuration: most bytes held in the third step."""
    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    answers = {name: _measure(config, rank) for name, config in configs.items()}
    engines.leave()
    return answers


def _measure(config: RunConfig, rank: Any) -> int:
    from plinth.training.engine.engine import open_engine

    live = Live()
    with live:
        engine = open_engine(config, rank)
        for step in range(1, 4):
            live.peak = 0
            engine.train_step(synthetic.batch_at(config, step, engine.topology.place.data), 1e-3)
    engine.deepspeed.destroy()
    return live.peak


def planned(config: RunConfig) -> memory.Memory:
    """What `plinth plan` says of a configuration."""
    return memory.per_device(
        config.model,
        config.parallel,
        vocab_size=config.vocab_size,
        sequence_tokens=config.sequence_tokens,
        micro_batch=config.micro_batch_sequences,
        accumulation=config.accumulation(),
        ranks=config.ranks,
        precision=config.precision,  # type: ignore[arg-type]
        optimizer=config.optimizer,
    )
