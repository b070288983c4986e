"""An update that is kept back changes nothing, on any rank, in any ZeRO stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters, LossSpike
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

STEPS = 7


def loud(config: RunConfig, step: int, rank: int) -> Any:
    """Step 6 is noise; all others repeat patterns."""
    from plinth.training.data import StepBatch

    shape = (config.accumulation(step), config.micro_batch_sequences, config.sequence_tokens + 1)
    if step == 6:
        tokens = np.random.default_rng(rank).integers(0, config.vocab_size, shape).astype(np.int32)
    else:
        tokens = np.broadcast_to((np.arange(shape[2]) % 4).astype(np.int32), shape).copy()
    return StepBatch.of(tokens, np.zeros(shape, np.int32))


def vetoed_steps(config: RunConfig) -> list[Any]:
    """Train a few steps; of each what all ranks saw, and digests of parameters and this rank's optimizer."""
    from plinth.training import trainer
    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine

    rank = engine.join(config)
    trainer.batches_of = lambda config, index: lambda first: (loud(config, s, index) for s in range(first, STEPS + 1))
    run, told = trainer.Trainer(config, rank), []
    stream = run.batches(1)
    for step in range(1, STEPS + 1):
        measured = run.launch(stream, step, pending=15 * (step == 3 and rank.index == config.ranks - 1)).read()
        made = [one.action for one in run.record(measured)]
        proof = snapshot.digests(run.engine)
        told.append((measured.loss, measured.grad_norm, measured.vetoed, measured.signal, measured.batch, made, proof))
    engine.leave()
    return told


@pytest.mark.parametrize("stage", [0, *(pytest.param(stage, marks=pytest.mark.exhaustive) for stage in (1, 2, 3))])
def test_every_rank_keeps_the_same_update_back(stage: int, make: Any, tmp_path: Path) -> None:
    config = make(
        workspace=tmp_path,
        parallel=Parallel(zero_stage=stage),
        launch=Launch(ranks=2),
        total_steps=STEPS,
        guard=GuardParameters(
            min_steps=4, window_steps=8, loss_spike=LossSpike(action="skip", sigmas=0.1, min_rise=0.1)
        ),
        optimizer=Optimizer(lr=2e-2, warmup_fraction=0.0, decay_fraction=0.0),
    )
    first, second = run_ranks(2, vetoed_steps, config)
    assert [row[:6] for row in first] == [row[:6] for row in second]
    assert [row[2] for row in first] == [False] * 5 + [True, False]
    assert [row[3] for row in first] == [0, 0, 15, 0, 0, 0, 0]
    assert [row[5] for row in first] == [[]] * 5 + [["skip"], []]
    states = [row[6] for row in first]
    for part in ("parameters_sha256", "optimizer_sha256"):
        assert states[4][part] == states[5][part], part
        assert len({str(state[part]) for state in states}) == STEPS - 1, part
