"""Conditions for skipping an update, at their bounds: a real optimizer on one rank; `test_skipped_update` has real
engines."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from plinth.training.engine.skipped_update import PendingNumbers, UpdateSkipper
from plinth.training.guard.rules import Limits


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _step(loss: float, norm: float, pending: int = 0, broken: tuple[int, ...] = (0,) * 4) -> tuple[bool, Any]:
    """One step under limits of 3 and 2, and of 2.5 rows: whether the parameter changed, and what the host reads."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    numbers = torch.tensor([loss, norm], dtype=torch.float64)
    engine: Any = SimpleNamespace(
        rank=SimpleNamespace(device=torch.device("cpu")),
        deepspeed=SimpleNamespace(basic_optimizer=optimizer),
        gradient_norm=lambda: numbers[1],
    )
    skipper = UpdateSkipper(engine)
    skipper.arm(Limits(loss=3.0, grad_norm=2.0, rows=2.5), (0xAB, 0xCD), pending, 0.5, 0, broken)
    engine.on_gradient(numbers[0])
    parameter.grad = torch.ones(1)
    optimizer.step()
    return parameter.item() != 1.0, skipper.result(*numbers).read()


@pytest.mark.parametrize(
    ("loss", "norm", "made"),
    [
        (3.0, 2.0, True),
        (math.nextafter(3.0, 4.0), 2.0, False),
        (3.0, math.nextafter(2.0, 3.0), False),
        (math.nan, 2.0, False),
        (3.0, math.nan, False),
    ],
)
def test_an_update_is_made_up_to_its_limits(loss: float, norm: float, made: bool) -> None:
    changed, seen = _step(loss, norm)
    assert (changed, seen.vetoed) == (made, not made)
    assert repr((seen.loss, seen.grad_norm)) == repr((loss, norm))
    assert (seen.batch, seen.signal, seen.step_s) == ("000000ab000000cd", 0, 0.5)


@pytest.mark.parametrize(("broken", "made"), [((2, 2, 2, 2), True), ((0, 0, 0, 3), False), ((3, 0, 0, 0), False)])
def test_an_update_is_made_up_to_the_rows_that_may_break_a_bound(broken: tuple[int, ...], made: bool) -> None:
    changed, seen = _step(1.0, 1.0, broken=broken)
    assert (changed, seen.vetoed, seen.broken) == (made, not made, broken)


@pytest.mark.parametrize("pending", [-1, 1, int(signal.SIGINT), int(signal.SIGTERM)])
def test_the_signal_of_a_rank_is_what_it_has_received(pending: int) -> None:
    assert _step(1.0, 1.0, pending)[1].signal == pending


def test_sums_over_ranks_by_hand() -> None:
    """Two ranks: losses 1 and 4, one of them was asked to save again and one to end."""
    values = [5.0, 2.0**33, 3.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 7.0, 4.0, 0.0, 1.0, 8.0, 0.25, 1.0]
    seen = PendingNumbers(torch.tensor(values, dtype=torch.float64)).read()
    assert (seen.loss, seen.grad_norm, seen.step_s, seen.vetoed) == (2.5, 0.25, 0.5, True)
    assert seen.broken == (4, 0, 1, 8)
    assert (seen.batch, seen.signal, seen.trace) == ("0000000000000003", int(signal.SIGTERM), 7)
