"""Compare the planner's memory with every tensor of a real step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measured_memory
import pytest

from plinth.model.parameters import Model
from plinth.model.sparsity import Experts
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

#: Parameters are nearly all of it: 4.9 million, and four tokens. The largest are more than a bucket.
MODEL = Model(layers=4, dim=320, heads=2, kv_heads=2, ffn_dim=832)
ROWS: dict[str, Any] = {"model": MODEL, "sequence_tokens": 4, "micro_batch_sequences": 1, "total_steps": 6}


def cases(precision: str, accumulation: int, make: Callable[..., RunConfig]) -> dict[str, RunConfig]:
    """Every stage and what it can do, by name."""
    found = {}
    for stage in (0, 1, 2, 3):
        for overlap in (False, True) if stage in (1, 2) else (False,):
            for sent in ("fp32", "bf16") if precision == "bf16" and accumulation == 2 else ("fp32",):
                block = Parallel(
                    zero_stage=stage,  # type: ignore[arg-type]
                    overlap_communication=overlap,
                    communication_dtype=sent,  # type: ignore[arg-type]
                    reduce_bucket_elements=200_000,
                )
                found[f"zero {stage}, overlap {overlap}, {sent} sent"] = make(
                    parallel=block, precision=precision, global_batch_sequences=2 * accumulation, **ROWS
                )
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "accumulation"), [("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2)])
def test_memory_is_planned_within_two_percent(
    precision: str, accumulation: int, make: Callable[..., RunConfig]
) -> None:
    within_two_percent(cases(precision, accumulation, make))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "stages"),
    [("fp32", (0, 1, 2, 3)), ("bf16", (0, 2)), ("bf16", (1, 3))],
)
def test_muon_and_a_mean_of_the_weights_are_planned(
    precision: str, stages: tuple[int, ...], make: Callable[..., RunConfig]
) -> None:
    """The mean takes four bytes per parameter, Muon's matrices four less than AdamW's, divided as the masters are.

    Five layers: the border between two ranks cuts a matrix, also where matrices are a group of their own."""
    rows = ROWS | {"model": MODEL.model_copy(update={"layers": 5})}
    kinds = {"muon": Optimizer(kind="muon"), "ema": Optimizer(ema_decay=0.99)}
    kinds["both"] = Optimizer(kind="muon", ema_decay=0.99)
    within_two_percent(
        {
            f"zero {stage}, {name}": make(
                parallel=Parallel(zero_stage=stage, overlap_communication=False, reduce_bucket_elements=200_000),  # type: ignore[arg-type]
                precision=precision, optimizer=optimizer, global_batch_sequences=4, **rows,
            )
            for stage in stages for name, optimizer in kinds.items()
        }
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_experts_are_planned(precision: str, make: Callable[..., RunConfig]) -> None:
    """Within 12%: the gradients of experts on their own, before they are stacked, are not in the plan."""
    experts = Experts(count=4, active=1, ffn_dim=300)
    rows = ROWS | {"model": MODEL.model_copy(update={"qk_norm": True, "experts": experts})}
    blocks = [{"zero_stage": stage} for stage in (0, 1, 2, 3)]
    blocks += [{"zero_stage": stage, "expert": 2} for stage in (0, 1, 2)]
    within_two_percent(
        {
            str(block): make(
                parallel=Parallel(overlap_communication=False, reduce_bucket_elements=200_000, **block),
                precision=precision, global_batch_sequences=4, **rows,
            )
            for block in blocks
        },
        most=0.12,
    )  # fmt: skip


def within_two_percent(configs: dict[str, RunConfig], most: float = 0.02) -> None:
    answers = run_ranks(2, measured_memory.measure_all, configs, timeout_s=3000.0)
    off = {}
    for name, config in configs.items():
        measured = max(answer[name] for answer in answers)
        off[name] = measured_memory.planned(config).total / measured - 1
    assert not {name: f"{share:+.1%}" for name, share in off.items() if abs(share) > most}
