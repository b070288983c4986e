"""Batches that grow and rows that lengthen train as one plain process does on the same tokens, in every ZeRO stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scheduled_batches

from plinth.tokens.order.steps import Amendment, BatchChange, LengthChange
from plinth.training.config import RunConfig, identity
from plinth.training.data import StepBatch
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

GROWS = {
    "micro_batch_sequences": 2,
    "global_batch_sequences": 4,
    "batch_schedule": (
        BatchChange(from_tokens=256, global_batch_sequences=12),
        BatchChange(from_step=5, global_batch_sequences=8),
    ),
    "length_schedule": (
        LengthChange(from_tokens=0, sequence_tokens=8),
        LengthChange(from_step=4, sequence_tokens=32),
    ),
    "sequences": 8 + 24 + 16,
    "total_steps": 6,
}


def test_steps_rates_and_rows_of_a_run(make: Callable[..., RunConfig]) -> None:
    config = make(**GROWS)
    assert config.steps.total == config.total_steps
    assert [config.accumulation(step) for step in range(1, 7)] == [1, 1, 3, 3, 2, 2]
    assert [config.step_tokens(step) for step in range(1, 7)] == [128, 128, 384, 384, 256, 256]
    assert [config.tokens_through(step) for step in range(7)] == [0, 128, 256, 640, 1024, 1280, 1536]
    assert [config.progress(step)[0] for step in (1, 6)] == [128, 1536]
    assert scheduled_batches.batch_of(config, 3, 1).shape == (3, 8, 9)
    assert scheduled_batches.batch_of(config, 4, 1).shape == (3, 2, 33)


def test_shorter_rows_hold_the_same_tokens_in_the_same_order() -> None:
    tokens = np.arange(2 * 3 * 9, dtype=np.int32).reshape(2, 3, 9)
    scored = tokens[..., 1:] % 5 > 0
    batch = replace(StepBatch.of(tokens, tokens // 4, scored, int(scored.sum())), length=4)
    short = batch.expanded()
    assert short.tokens.shape == batch.shape == (2, 6, 5)
    assert short.tokens[0, :2].tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert np.array_equal(short.tokens[..., 1:].reshape(2, -1), tokens[..., 1:].reshape(2, -1))  # the targets
    assert np.array_equal(short.segments, short.tokens // 4 - tokens[..., :1].repeat(2, axis=1) // 4)
    assert short.scored is not None
    assert np.array_equal(short.scored.reshape(2, -1), scored.reshape(2, -1))


def test_an_amendment_leaves_the_past_as_it_was(make: Callable[..., RunConfig]) -> None:
    config = make(global_batch_sequences=4, total_steps=12, sequences=48)
    amended = make(
        global_batch_sequences=4,
        total_steps=9,
        sequences=48,
        amendments=(Amendment(from_step=7, global_batch_sequences=8, reason="loss is noisy"),),
    )
    assert amended.steps.total == amended.total_steps
    assert [amended.tokens_through(step) for step in (6, 7, 9)] == [768, 1024, 1536]
    assert [config.progress(step) for step in range(1, 7)] == [amended.progress(step) for step in range(1, 7)]
    assert identity(config, 6) == identity(amended, 6)  # its checkpoints can be loaded
    assert identity(config, 7) != identity(amended, 7)  # and those after it are the amended run's


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_stage_follows_one_plain_process(make: Callable[..., RunConfig]) -> None:
    table = {f"zero {stage}": Parallel(zero_stage=stage) for stage in (0, 1, 2, 3)}  # type: ignore[arg-type]
    table["zero 2, offloaded"] = Parallel(zero_stage=2, offload="optimizer")
    configs = {name: make(parallel=parallel, **GROWS) for name, parallel in table.items()}
    losses, norms = scheduled_batches.plain_run(configs["zero 0"])
    answers = run_ranks(2, scheduled_batches.train_all, configs)
    for name in configs:
        ours = np.mean([answer[name][0] for answer in answers], axis=0)
        assert ours == pytest.approx(losses, abs=2e-6), name
        assert answers[0][name][1] == pytest.approx(norms, rel=2e-5), name
