"""Functions that ranks run in the tests of private runs: steps with separate rows, plain or private; runs with
canaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch

if TYPE_CHECKING:
    from plinth.training.trainer import Trainer
    from plinth_extras.privacy.gradients import PrivateGradients


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


def gradients_of(trainer: Trainer) -> PrivateGradients:
    """Return the gradient computation of a private run."""
    from plinth_extras.privacy.gradients import PrivateRun

    hook = trainer.hooks["privacy"]
    assert isinstance(hook, PrivateRun)
    return hook.gradients


def steps_of(legs: list[tuple[RunConfig, bool]], count: int) -> list[list[tuple[float, float]]]:
    """On one rank: loss and gradient norm of the first steps of each run; with True without clip and noise."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.trainer import Trainer

    rank, found = join(legs[0][0]), list[Any]()
    torch.set_num_threads(1)
    for config, bare in legs:
        trainer = Trainer(config, rank)
        if bare:
            gradients = gradients_of(trainer)
            gradients.noise_multiplier, gradients.clip_norm = 0.0, float("inf")
        stream = trainer.batches(1)
        measured = [trainer.launch(stream, step).read() for step in range(1, count + 1)]
        assert config.privacy is None or gradients_of(trainer).step == count
        found.append([(one.loss, one.grad_norm) for one in measured])
        trainer.engine.deepspeed.destroy()
    leave()
    return found


#: Positions that hold canaries if their coin is heads, and are empty otherwise; each has two tokens of its own.
CANARIES = 192


def coins(config: RunConfig) -> np.ndarray:
    """Which canaries are in."""
    return np.random.default_rng((config.seed, 77)).random(CANARIES) < 0.5


def canary_rows(config: RunConfig, numbers: Sequence[int]) -> StepBatch:
    """The sequences of positions: two tokens by turns, of a canary its own, of any other position common ones."""
    width, common = config.sequence_tokens + 1, 2 * CANARIES
    tokens = np.empty((len(numbers), 1, width), np.int32)
    for row, number in enumerate(numbers):
        tokens[row, 0] = (2 * number if number < CANARIES else common + number % 3) + np.arange(width) % 2
    return StepBatch.of(tokens)


def open_canary_batches(config: RunConfig, rank: int) -> Batches:
    """The batches of `private_run:open_canary_batches`: positions that the run's key draws."""
    planted = coins(config)

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            drawn = config.draws.positions(step - 1).tolist()
            batch = canary_rows(config, [n for n in drawn if n >= CANARIES or planted[n]])
            yield replace(batch, numbered=False)

    return stream


def known_canaries(runs: list[tuple[RunConfig, bool]]) -> list[list[float]]:
    """On one rank: by how much each canary's loss fell in each run; with True the run leaves its noise out."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.trainer import Trainer

    rank, found = join(runs[0][0]), list[Any]()
    torch.set_num_threads(1)
    for config, bare in runs:
        trainer = Trainer(config, rank)
        engine = trainer.engine
        if bare:
            gradients_of(trainer).noise_multiplier = 0.0
        rows = canary_rows(config, range(CANARIES))
        before = _losses(engine, rows)
        stream = trainer.batches(1)
        for step in range(1, config.total_steps + 1):
            trainer.launch(stream, step).read()
        found.append([was - now for was, now in zip(before, _losses(engine, rows), strict=True)])
        engine.deepspeed.destroy()
    leave()
    return found


def _losses(engine: Any, rows: StepBatch) -> list[float]:
    with torch.no_grad():
        return [float(engine.sequence_loss(rows, one)) for one in rows.micro]


def audited(config: RunConfig, step: int) -> dict[str, Any]:
    """On one rank, return the proof of resume, then the state of a trainer that has loaded a checkpoint and taken no
    step."""
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
