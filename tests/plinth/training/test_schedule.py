"""Rates at the steps where they can be said by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.recipe.training import Optimizer
from plinth.training.schedule import learning_rate


def rates(total: int, **options: object) -> list[float]:
    optimizer = Optimizer(**{"lr": 1.0, "warmup_fraction": 0.2, "decay_fraction": 0.4, **options})
    return [round(learning_rate(optimizer, step, total), 4) for step in range(1, total + 1)]


def test_wsd() -> None:
    assert rates(10, schedule="wsd") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_linear_to_a_minimum() -> None:
    assert rates(6, schedule="linear", min_lr=0.2, warmup_fraction=0.3) == [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]


def test_cosine() -> None:
    assert rates(6, schedule="cosine", warmup_fraction=0.3) == [0.5, 1.0, 0.8536, 0.5, 0.1464, 0.0]


def test_without_warmup_or_decay() -> None:
    assert rates(3, schedule="wsd", warmup_fraction=0.0, decay_fraction=0.0) == [1.0, 1.0, 1.0]


@given(
    st.sampled_from(["wsd", "linear", "cosine"]),
    st.integers(1, 300),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1e-3),
)
def test_never_above_the_peak_nor_below_the_minimum(
    schedule: str, total: int, warmup: float, decay: float, minimum: float
) -> None:
    optimizer = Optimizer(schedule=schedule, lr=1e-3, min_lr=minimum, warmup_fraction=warmup, decay_fraction=decay)
    values = [learning_rate(optimizer, step, total) for step in range(1, total + 1)]
    assert max(values) <= 1e-3 * (1 + 1e-12)
    start = -(-int(warmup * total * 1e9) // 10**9) + 1
    assert all(value >= minimum * (1 - 1e-12) for value in values[start:])
    peak = values.index(max(values))
    assert values[peak:] == sorted(values[peak:], reverse=True) or schedule == "wsd"


def test_last_step_reaches_the_minimum() -> None:
    for schedule in ("wsd", "linear", "cosine"):
        assert rates(7, schedule=schedule, min_lr=0.1)[-1] == pytest.approx(0.1)
