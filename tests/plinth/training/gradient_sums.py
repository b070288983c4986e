"""Compare BF16 engines that take one step of many micro batches with the exact sum of the same gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import synthetic
import torch
import torch.distributed as dist

from plinth.training.config import RunConfig


def measure_all(configs: dict[str, RunConfig]) -> dict[str, dict[str, float]]:
    """On one rank, of each configuration: how far the gradient of its first step is from the exact mean of what the
    backward passes gave, how far a BF16 sum would be (relative norms), and the relative error of the norm."""
    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    answers = {name: _measure(config, rank) for name, config in configs.items()}
    engines.leave()
    return answers


def _measure(config: RunConfig, rank: Any) -> dict[str, float]:
    from plinth.training.checkpoint import universal
    from plinth.training.engine.pipeline import open_engine

    engine = open_engine(config, rank)
    exact: dict[str, torch.Tensor] = {}
    rounded: dict[str, torch.Tensor] = {}

    def add(name: str, gradient: torch.Tensor) -> None:
        exact[name] = exact.get(name, torch.zeros((), dtype=torch.float64)) + gradient.double()
        low = gradient.bfloat16()
        rounded[name] = rounded[name] + low if name in rounded else low

    for name, parameter in engine.module.named_parameters():
        parameter.register_hook(lambda gradient, name=name: add(name, gradient))  # type: ignore[no-untyped-call]
    _, norm = engine.train_step(synthetic.batch_at(config, 1, rank.index), 1e-3)
    for name in exact:
        total, low = exact[name].contiguous(), rounded[name].double()
        dist.all_reduce(total)
        dist.all_reduce(low)
        exact[name], rounded[name] = total / config.ranks, low / config.ranks
    ours, far, whole = 0.0, 0.0, sum(float(each.square().sum()) for each in exact.values())
    for share in universal.shares(engine):
        place = slice(share.start, share.start + share.state["exp_avg"].numel())
        found = share.state["exp_avg"].double() / (1 - config.optimizer.beta1)  # Adam's first moment after one step
        ours += float((found - exact[share.name].flatten()[place]).square().sum())
        far += float((rounded[share.name] - exact[share.name]).flatten()[place].square().sum())
    sums = torch.tensor([ours, far], dtype=torch.float64)
    dist.all_reduce(sums)
    copies = config.ranks if config.parallel.zero_stage == 0 else 1
    engine.deepspeed.destroy()
    errors = (sums / copies / whole).sqrt().tolist()
    return {"ours": errors[0], "in bf16": errors[1], "norm": abs(float(norm) / whole**0.5 - 1)}


def states(configs: dict[str, RunConfig]) -> dict[str, tuple[int, int]]:
    """On one rank, of each configuration: the digest of the optimizer's state after two steps, with buckets that are
    summed in place, and as DeepSpeed sums them."""
    from plinth.training.engine import deepspeed_engine
    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    theirs = mock.patch.object(deepspeed_engine, "_sum_in_place")
    found = {name: (_state(one, rank, nullcontext()), _state(one, rank, theirs)) for name, one in configs.items()}
    engines.leave()
    return found


def _state(config: RunConfig, rank: Any, opening: Any) -> int:
    from plinth.training.corruption.state import digest
    from plinth.training.engine.pipeline import open_engine

    with opening:
        engine = open_engine(config, rank)
    for step in (1, 2):
        engine.train_step(synthetic.batch_at(config, step, rank.index), 1e-3)
    found = digest(engine.optimizer_tensors(), rank.device)
    engine.deepspeed.destroy()
    return int(found)
