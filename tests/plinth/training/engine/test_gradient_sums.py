"""Gradients are accumulated and sent in FP32 in every ZeRO stage, unless the recipe names a cheaper dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import gradient_sums
import pytest

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

STAGES: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)

#: No clipping, and 16 micro batches on each rank.
MANY = {"optimizer": Optimizer(grad_clip=1e9), "micro_batch_sequences": 1, "total_steps": 2, "precision": "bf16"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_bf16_gradients_are_summed_in_fp32(make: Callable[..., RunConfig]) -> None:
    table = {f"zero {stage}": Parallel(zero_stage=stage) for stage in STAGES}
    table["zero 1, overlapped"] = Parallel(zero_stage=1, overlap_communication=True)
    table["zero 2, small buckets"] = Parallel(zero_stage=2, overlap_communication=True, reduce_bucket_elements=3000)
    table["zero 2, offloaded"] = Parallel(zero_stage=2, offload="optimizer")
    table["zero 1, offloaded"] = Parallel(zero_stage=1, offload="optimizer")
    table["zero 3, offloaded"] = Parallel(zero_stage=3, offload="optimizer")
    cheap = {f"zero {stage}, bf16 sent": Parallel(zero_stage=stage, communication_dtype="bf16") for stage in STAGES}
    configs = {
        name: make(parallel=parallel, global_batch_sequences=32, **MANY) for name, parallel in (table | cheap).items()
    }
    found = run_ranks(2, gradient_sums.measure_all, configs)[0]
    for name, errors in found.items():
        assert errors["in bf16"] > 2e-3, name  # what a sum in BF16 would lose of these very gradients
        assert (errors["ours"] < 1e-6) == (name in table), (name, errors)
        assert errors["norm"] < (1e-6 if name in table else 1e-2), (name, errors)


@pytest.mark.slow
def test_means_over_three_ranks_do_not_round(make: Callable[..., RunConfig]) -> None:
    """DeepSpeed's ZeRO-2 would divide BF16 gradients by 3 before it adds them in FP32."""
    configs = {
        f"zero {stage}": make(
            parallel=Parallel(zero_stage=stage),  # type: ignore[arg-type]
            launch=Launch(ranks=3),
            global_batch_sequences=12,
            **MANY,
        )
        for stage in (1, 2)
    }
    for name, errors in run_ranks(3, gradient_sums.measure_all, configs)[0].items():
        assert errors["ours"] < 1e-6, (name, errors)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_sum_in_place_has_the_bits_of_deepspeeds_sum(make: Callable[..., RunConfig]) -> None:
    table = {
        "zero 1": Parallel(zero_stage=1),
        "zero 2": Parallel(zero_stage=2),
        "zero 1, bf16 sent": Parallel(zero_stage=1, communication_dtype="bf16"),
        "zero 2, small buckets": Parallel(zero_stage=2, reduce_bucket_elements=3000),
    }
    more = {**MANY, "launch": Launch(ranks=3), "global_batch_sequences": 12}
    configs = {name: make(parallel=parallel, **more) for name, parallel in table.items()}
    configs["fp32"] = make(parallel=table["zero 1"], **{**more, "precision": "fp32"})
    for found in run_ranks(3, gradient_sums.states, configs):
        assert {name: ours for name, (ours, theirs) in found.items() if ours != theirs} == {}
        assert len(set(found.values())) > 1
