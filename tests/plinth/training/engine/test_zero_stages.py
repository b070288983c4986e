"""Every ZeRO stage over two ranks trains as one process with plain PyTorch does."""

from __future__ import annotations

from collections.abc import Callable

import federated_sites
import pytest
import synthetic
import torch
from torch import Tensor

from plinth.model.decoder import Decoder, build
from plinth.model.folder import load_model
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.engine.optimization import learning_rate
from plinth.training.parameters.parallel import Parallel
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training import plain_training
from tests.ranks import run_ranks

STEPS = 6


def plain_run(config: RunConfig) -> tuple[list[float], list[float], torch.nn.Module]:
    """The same run in one process without DeepSpeed: losses, gradient norms, the model."""

    def loss_of(model: Decoder, step: int) -> Tensor:
        parts = [synthetic.batch_at(config, step, rank).expanded() for rank in range(config.ranks)]
        tokens = torch.cat([torch.from_numpy(part.tokens).long().flatten(0, 1) for part in parts])
        segments = torch.cat([torch.from_numpy(part.segments).flatten(0, 1) for part in parts])
        loss: Tensor = model(tokens[:, :-1], segments[:, :-1], tokens[:, 1:])
        return loss

    def rate_of(step: int) -> float:
        return learning_rate(config.optimizer, *config.progress(step))

    return plain_training.plain_run(config, config.total_steps, loss_of, rate_of)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, *(pytest.param(stage, marks=pytest.mark.exhaustive) for stage in (0, 1, 3))])
def test_stage_agrees_with_one_plain_process(stage: int, make: Callable[..., RunConfig]) -> None:
    config = make(parallel=Parallel(zero_stage=stage), total_steps=STEPS)
    assert run_ranks(2, federated_sites.train, config) == [True, True]
    losses, norms, model = plain_run(config)
    steps = timeline(config.directory.events).steps
    assert [steps[n]["loss"] for n in range(1, STEPS + 1)] == pytest.approx(losses, abs=2e-6)
    assert [steps[n]["grad_norm"] for n in range(1, STEPS + 1)] == pytest.approx(norms, rel=1e-5)
    trained = load_model(checkpoint.path(config.directory, STEPS) / "model")
    start = build(config.model, config.vocab_size, config.seed)
    for (name, ours), theirs, first in zip(
        trained.named_parameters(), model.parameters(), start.parameters(), strict=True
    ):
        # Adam divides by the size of a gradient, so that the noise of one near zero is as large as a step
        assert (ours - theirs).norm() <= 0.02 * (theirs - first).norm(), name


@pytest.mark.exhaustive
@pytest.mark.slow
def test_bf16_follows_fp32(make: Callable[..., RunConfig]) -> None:
    """Within its precision; the export is BF16."""
    config = make(total_steps=STEPS, precision="bf16")
    assert run_ranks(2, federated_sites.train, config) == [True, True]
    losses, _, _ = plain_run(config)
    steps = timeline(config.directory.events).steps
    assert [steps[n]["loss"] for n in range(1, STEPS + 1)] == pytest.approx(losses, abs=0.02)
    trained = load_model(checkpoint.path(config.directory, STEPS) / "model")
    assert {p.dtype for p in trained.parameters()} == {torch.bfloat16}
