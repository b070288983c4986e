"""Ranks that count the bytes of every tensor of a training step, for comparison with the planner."""

from __future__ import annotations

from typing import Any

import synthetic
from counted_tensors import Live

from plinth.operation import memory
from plinth.training.config import RunConfig


def measure_all(configs: dict[str, RunConfig]) -> dict[str, int]:
    """On one rank, of each configuration: most bytes held in a step, the least of three.

    Gloo's threads let go of what they have sent when they get to it, on a busy machine in the next bucket's time.
    """
    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    answers = {name: _measure(config, rank) for name, config in configs.items()}
    engines.leave()
    return answers


def _measure(config: RunConfig, rank: Any) -> int:
    from plinth.training.engine.pipeline import open_engine

    live, peaks = Live(), []
    with live:
        engine = open_engine(config, rank)
        for step in range(1, 6):
            live.peak = 0
            engine.train_step(synthetic.batch_at(config, step, engine.topology.place.data), 1e-3)
            peaks.append(live.peak)
    engine.deepspeed.destroy()
    return min(peaks[2:])


def planned(config: RunConfig) -> memory.Memory:
    """Return the memory that `plinth run plan` predicts for a configuration."""
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
        private=config.privacy is not None,
    )
