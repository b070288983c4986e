"""Noise and signal-to-noise ratio, against numbers worked out by hand."""

import math

import pytest

from plinth.evaluation.probes import noise


def test_noise_is_the_deviation_over_the_last_checkpoints() -> None:
    found = noise.worth(0.5, [9.0, 2.0, 1.0, 3.0, 2.0, 2.0])
    assert found.checkpoints == 5
    assert found.noise == pytest.approx(math.sqrt(0.5))
    assert found.snr == pytest.approx(math.sqrt(0.5))
    assert not found.decides


def test_two_checkpoints_give_no_noise_and_nothing_decides() -> None:
    found = noise.worth(5.0, [1.0, 1.1])
    assert (found.noise, found.snr) == (None, None)
    assert not found.decides


def test_seeds_count_where_they_differ_more() -> None:
    found = noise.worth(1.0, [1.0, 1.1, 1.2], seeds=[1.0, 3.0])
    assert found.noise == pytest.approx(math.sqrt(2))
    assert found.seeds == 2
    assert not found.decides
    assert noise.worth(1.0, [1.0, 1.1, 1.2], seeds=[1.0, 1.01]).decides


def test_a_control_that_is_better_decides_nothing() -> None:
    assert not noise.worth(-1.0, [1.0, 1.1, 1.2]).decides


def test_scores_that_do_not_move_have_no_noise() -> None:
    found = noise.worth(0.1, [1.0, 1.0, 1.0])
    assert found.snr == math.inf
    assert found.decides
