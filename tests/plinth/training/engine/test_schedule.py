"""Rates at steps where they can be computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.training.engine.optimization import learning_rate
from plinth.training.parameters.optimizers import Optimizer


def rates(total: int, **options: object) -> list[float]:
    optimizer = Optimizer(**{"lr": 1.0, "warmup_fraction": 0.2, "decay_fraction": 0.4, **options})
    return [round(learning_rate(optimizer, step, total), 4) for step in range(1, total + 1)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "wsd"}, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"schedule": "wsd", "warmup_fraction": 0.0, "decay_fraction": 0.0}, [1.0, 1.0, 1.0]),
        ({"schedule": "linear", "min_lr": 0.2, "warmup_fraction": 0.3}, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"schedule": "cosine", "warmup_fraction": 0.3}, [0.5, 1.0, 0.8536, 0.5, 0.1464, 0.0]),
    ],
)
def test_rates_by_hand(options: dict[str, object], expected: list[float]) -> None:
    assert rates(len(expected), **options) == expected


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


def at(total: int, **options: object) -> dict[int, float]:
    """Rates at every tenth of a run of `total` tokens."""
    optimizer = Optimizer(**{"lr": 1.0, "warmup_fraction": 0.1, "decay_fraction": 0.4, **options})
    return {tenth: round(learning_rate(optimizer, tenth * total // 10, total), 4) for tenth in range(1, 11)}


def test_one_minus_the_root() -> None:
    rates_of = at(1000, schedule="wsd-sqrt")
    assert [rates_of[tenth] for tenth in (1, 6, 7, 9, 10)] == [1.0, 1.0, 0.5, round(1 - 0.75**0.5, 4), 0.0]


def test_a_run_decays_at_each_of_its_horizons() -> None:
    found = at(1000, horizons=(0.5,), decay_fraction=0.4)
    expected = [1.0, 1.0, 1.0, 0.5, 0.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert [found[tenth] for tenth in range(1, 11)] == expected
    alone = at(500, decay_fraction=0.4, warmup_fraction=0.2)  # the run that it stands for
    assert [found[tenth] for tenth in (1, 2, 3, 4, 5)] == [alone[tenth] for tenth in (2, 4, 6, 8, 10)]


@pytest.mark.parametrize(
    "wrong",
    [{"horizons": (0.5, 0.6)}, {"horizons": (0.5, 0.5)}, {"horizons": (1.0,)}, {"horizons": (0.05,)},
     {"horizons": (0.5,), "schedule": "cosine"}],
)  # fmt: skip
def test_horizons_that_do_not_fit_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="horizons"):
        Optimizer(**{"decay_fraction": 0.2, "warmup_fraction": 0.1, **wrong})


def test_constant_and_inverse_square_root() -> None:
    assert set(at(1000, schedule="constant").values()) == {1.0}
    falling = at(1000, schedule="inverse-sqrt", min_lr=0.35)
    assert [falling[tenth] for tenth in (1, 4, 9, 10)] == [1.0, 0.5, 0.35, 0.35]
    with pytest.raises(ValueError, match="inverse-sqrt"):
        Optimizer(schedule="inverse-sqrt", warmup_fraction=0.0)


def test_a_trained_model_is_warmed_up_again() -> None:
    found = at(1000, warmup_fraction=0.2, decay_fraction=0.1, start_lr=0.2, min_lr=0.1)
    assert [found[tenth] for tenth in (1, 2, 9, 10)] == [0.6, 1.0, 1.0, 0.1]
    with pytest.raises(ValueError, match="start_lr"):
        Optimizer(lr=1e-3, start_lr=2e-3)


@given(st.sampled_from(["wsd", "cosine", "linear", "inverse-sqrt"]), st.integers(1, 10_000), st.integers(1, 400))
def test_by_tokens_in_any_unit(schedule: str, unit: int, at_step: int) -> None:
    """Steps of one token each and steps of many have the same rate at the same share of the run."""
    optimizer = Optimizer(schedule=schedule, warmup_fraction=0.25)
    one, many = learning_rate(optimizer, at_step, 400), learning_rate(optimizer, at_step * unit, 400 * unit)
    assert many == pytest.approx(one)
