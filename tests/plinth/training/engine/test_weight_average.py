"""The mean of the weights: PyTorch's, kept through updates that are not made, restarts and other layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import changed_layout
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.engine.weights import EMA, WeightAverage, step_weight
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks


def trained(steps: int, found_inf: dict[int, float]) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Weights, our mean, and PyTorch's after some steps, of which those in `found_inf` are judged."""
    model = torch.nn.Linear(7, 3, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    ours, theirs = WeightAverage(optimizer), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ours.weight = 1 - 0.9
    for step in range(steps):
        model.weight.grad = torch.full_like(model.weight, float("nan") if found_inf.get(step) else step - 1.5)
        optimizer.found_inf = torch.tensor(found_inf[step]) if step in found_inf else None
        optimizer.step()
        if not found_inf.get(step):
            theirs.update_parameters(model)
    return model.weight.detach(), optimizer.state[model.weight][EMA], theirs.module


@pytest.mark.parametrize("found_inf", [{}, dict.fromkeys(range(6), 0.0), {2: 1.0, 3: 0.0}])
def test_as_torch_bit_for_bit_and_not_moved_by_an_update_that_is_not_made(found_inf: dict[int, float]) -> None:
    weights, ours, theirs = trained(6, found_inf)
    assert torch.equal(ours, theirs.weight.detach())
    assert not torch.equal(ours, weights)


def test_a_decay_of_tokens_does_not_depend_on_the_batch() -> None:
    by_tokens = Optimizer(ema_decay=0.5, ema_tokens=1000)
    assert step_weight(by_tokens, 1000) == 0.5
    assert (1 - step_weight(by_tokens, 100)) ** 10 == pytest.approx(0.5)
    assert step_weight(Optimizer(ema_decay=0.5), 17) == 0.5
    assert step_weight(Optimizer(), 17) == 0.0
    with pytest.raises(ValueError, match="ema_tokens"):
        Optimizer(ema_tokens=1000)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_mean_is_divided_saved_and_taken_up_by_any_layout(
    make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """ZeRO-1 and ZeRO-3 through a restart, bit for bit; one rank takes both up; the mean is that of the masters."""

    def layout(ranks: int, stage: int) -> RunConfig:
        block = Optimizer(warmup_fraction=0.2, ema_decay=0.8)
        batches = "changed_layout:open_batches"
        return make(launch=Launch(ranks=ranks), parallel=Parallel(zero_stage=stage), optimizer=block, batches=batches)

    legs, stages = list[Any](), (1, 3)
    for stage in stages:
        config, first = layout(2, stage), tmp_path / f"{stage}-first"
        legs += [(config, None, 1, 1, first), (config, None, 1, 2, tmp_path / f"{stage}-whole")]
        legs += [(config, first, 2, 2, tmp_path / f"{stage}-resumed")]
    for rank in run_ranks(2, changed_layout.journey, legs, timeout_s=400):
        for number in range(len(stages)):
            begun, through, resumed = rank[3 * number : 3 * number + 3]
            assert resumed["before"]["optimizer_sha256"] == begun["after"]["optimizer_sha256"]
            assert resumed["after"] == through["after"]
    alone = [(layout(1, 1), tmp_path / f"{stage}-first", 2, 2, tmp_path / f"{stage}-one") for stage in stages]
    run_ranks(1, changed_layout.journey, alone, timeout_s=400)
    for stage in stages:
        one, two = (changed_layout.whole_state(tmp_path / f"{stage}{end}") for end in ("-first", "-whole"))
        assert changed_layout.same(one, changed_layout.whole_state(tmp_path / f"{stage}-one-before"))
        for name in {name for name, _ in one}:
            assert torch.equal(one[name, EMA], one[name, "master"])
            assert torch.allclose(two[name, EMA], one[name, EMA].lerp(two[name, "master"], 1 - 0.8), rtol=1e-6, atol=0)
            assert not torch.equal(two[name, EMA], two[name, "master"])
