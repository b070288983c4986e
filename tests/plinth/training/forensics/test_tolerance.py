"""A run whose gradients have noise of their own each time: what its audit shows, right and wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics.proof import FACTOR, ResumeProof, examined
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from tests.ranks import run_ranks

#: Relative noise of every gradient: about the last bit of FP32, as sums in another order have it.
NOISE = 1e-7

START, STEPS = 8, 16


def train_then_audit(config: RunConfig, noise: float, moment: float) -> None:
    """Both in one process.

    Args:
        noise: of gradients, of another seed each time.
        moment: what a replay that is wrong multiplies a moment by when it has loaded its checkpoint; 1 changes nothing.
    """
    import torch

    from plinth.training import loop, trainer
    from plinth.training.engine import engine
    from plinth.training.forensics import audit

    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(6)))
    opened, load = trainer.open_engine, trainer.Trainer.load

    def noisy(*arguments: Any) -> Any:
        made = opened(*arguments)
        for parameter in made.module.parameters():
            parameter.register_hook(lambda g: g * (1 + noise * torch.randn(g.shape, generator=generator)))
        return made

    def wrong(self: Any, step: int) -> None:
        load(self, step)
        if step == START:
            moments = [tensor for tensor in self.engine.optimizer_tensors() if tensor.numel() > 1]
            moments[1].mul_(moment)

    trainer.open_engine = noisy if noise else opened
    rank = engine.join(config)
    assert loop.train(config, rank, 0)
    trainer.Trainer.load = wrong  # type: ignore[method-assign]
    audit.replay(config, rank, START)
    engine.leave()


def audited(make: Callable[..., RunConfig], root: Path, noise: float, moment: float = 1.0) -> ResumeProof:
    config = make(
        workspace=root,
        total_steps=STEPS,
        parallel=Parallel(zero_stage=1),
        launch=Launch(ranks=2),
        checkpoints=Checkpoints(every_steps=8, keep_last=3, audit_steps=8),
    )
    run_ranks(2, train_then_audit, config, noise, moment)
    saved = checkpoint.read_state(config.directory, STEPS)["parameters_sha256"]
    evidence = json.loads(config.directory.evidence.read_bytes())
    found = examined(evidence, step=STEPS, parameters_sha256=saved)
    assert evidence["bit_exact"] is found.bit_exact
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_noise_of_kernels_is_within_its_measured_bound_and_a_wrong_resume_is_not(
    make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    noisy = audited(make, tmp_path / "noisy", NOISE)
    assert noisy.classes == ("measured",), noisy
    assert noisy.tolerance is not None
    for bound in noisy.tolerance.bounds.values():
        assert bound.difference <= bound.bound == FACTOR * bound.spread < 1e-2
    assert noisy.tolerance.bounds["state"].difference > 0
    assert len(noisy.tolerance.hardware) == 2

    wrong = audited(make, tmp_path / "wrong", NOISE, moment=1.5)
    assert wrong.classes == ()
    assert wrong.tolerance is not None
    state = wrong.tolerance.bounds["state"]
    assert state.difference > 10 * state.bound


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_wrong_resume_of_exact_kernels_has_no_tolerance(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    found = audited(make, tmp_path, 0.0, moment=1.0 + 1e-6)
    assert found.classes == ()
    assert found.tolerance is not None
    assert {bound.spread for bound in found.tolerance.bounds.values()} == {0.0}
