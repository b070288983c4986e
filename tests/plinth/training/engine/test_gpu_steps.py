"""Steps on a GPU: `pytest -m gpu`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import synthetic
import torch

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Telemetry
from tests.ranks import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def train_without_wait(config: RunConfig) -> list[float]:
    """On one rank: losses of six steps; in the last three, PyTorch raises where the host would wait for the device."""
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.engine.skipped_update import UpdateSkipper
    from plinth.training.guard.rules import Limits

    rank = engines.join(config)
    engine = open_engine(config, rank)
    skipper, pending = UpdateSkipper(engine), []
    for step in range(1, 7):
        batch = synthetic.batch_at(config, step, rank.index)
        torch.cuda.set_sync_debug_mode("error" if step > 3 else "default")
        skipper.arm(Limits(), (1, 2), 0, 0.5)
        engine.stats.begin(step)
        pending.append(skipper.result(*engine.train_step(batch, 1e-3)))
    torch.cuda.set_sync_debug_mode("default")
    losses = [numbers.read().loss for numbers in pending]
    engines.leave()
    return losses


def train_vetoed(config: RunConfig) -> list[bool]:
    """On one rank: whether the state changed in a step, in one whose loss the limits forbid, and in one more."""
    from plinth.training.checkpoint.staging import tensors_digest
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.engine.skipped_update import UpdateSkipper
    from plinth.training.guard.rules import Limits

    rank = engines.join(config)
    engine = open_engine(config, rank)
    skipper, changed = UpdateSkipper(engine), []
    before = tensors_digest(engine.optimizer_tensors())
    for step, limit in enumerate((math.inf, 1e-6, math.inf), 1):
        skipper.arm(Limits(loss=limit), (1, 2), 0, 0.5)
        skipper.result(*engine.train_step(synthetic.batch_at(config, step, rank.index), 1e-3)).read()
        after = tensors_digest(engine.optimizer_tensors())
        changed.append(after != before)
        before = after
    engines.leave()
    return changed


def one_rank(make: Callable[..., RunConfig], **changes: Any) -> RunConfig:
    return make(launch=Launch(ranks=1), total_steps=6, **changes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2])  # ZeRO-3 on one rank waits for every parameter
def test_steps_do_not_wait_for_the_device(stage: Any, precision: str, make: Callable[..., RunConfig]) -> None:
    config = one_rank(
        make, parallel=Parallel(zero_stage=stage), precision=precision, telemetry=Telemetry(layers_every=1)
    )
    losses = run_ranks(1, train_without_wait, config)[0]
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_offloaded_update_is_kept_back(stage: Any, make: Callable[..., RunConfig]) -> None:
    config = one_rank(make, parallel=Parallel(zero_stage=stage, offload="optimizer"), precision="bf16")
    assert run_ranks(1, train_vetoed, config)[0] == [True, False, True]
