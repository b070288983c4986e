"""Swarm, surrogates and proposal on surfaces whose best mixture is known."""

import numpy as np
import pytest
from pydantic import ValidationError

from plinth.errors import RequestError
from plinth_lab.mixture import Swarm, draws
from plinth_lab.mixture.proposals import best_shares, propose
from plinth_lab.mixture.surrogate import (
    Kernel,
    LogLinear,
    _by_leverage,
    _fit_kernel,
    _kernel_left_out,
    _log_linear,
    fit,
)

SWARM = Swarm(prior={"a": 1, "b": 1, "c": 2, "d": 1})
SLOPES = np.array([-1.0, 0.2, -0.2, 0.4])
NAMES = tuple(SWARM.prior)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plinth_lab.mixture.proposals.DRAWS", 40)


def of(shares) -> np.ndarray:
    return np.array([shares.get(name, 0.0) for name in NAMES])


def law(shares) -> float:
    return float(1 + np.exp(of(shares) @ SLOPES - 0.7))


def both(shares) -> float:
    """No law of one sign: a and b are worth most together."""
    a, b, *_ = of(shares)
    return 1.5 - 0.25 * np.sqrt(a + 0.01) - 0.25 * np.sqrt(b + 0.01)


def runs(surface, noise: float, seed: int = 0, swarm: Swarm = SWARM):
    rng = np.random.default_rng(seed)
    return [(one, surface(one) + noise * rng.normal()) for one in [swarm.shares, *draws(swarm)]]


def test_draws_are_shares_differ_and_are_the_same_again() -> None:
    found = draws(Swarm(prior={"a": 1, "b": 9}, count=200, sparse=0.3))
    assert found == draws(Swarm(prior={"a": 1, "b": 9}, count=200, sparse=0.3))
    assert len({tuple(one.items()) for one in found}) == 200
    assert all(abs(sum(one.values()) - 1) < 1e-9 and min(one.values()) > 0 for one in found)
    assert {len(one) for one in found} == {1, 2}
    mean = np.mean([one.get("b", 0.0) for one in draws(Swarm(prior={"a": 1, "b": 3}, count=2000, sparse=0))])
    assert abs(mean - 0.75) < 0.05  # equal draws count once


def test_a_log_linear_surface_is_found_exactly_and_its_optimum_is_a_corner() -> None:
    shares = np.array([of(one) for one, _ in runs(law, 0)])
    fitted = fit(shares, np.array([loss for _, loss in runs(law, 0)]))
    assert fitted.family == "log-linear"
    assert fitted.errors["log-linear"] < 1e-4
    found = propose(SWARM.model_copy(update={"stay": 0.0}), runs(law, 0), {"a": 0.4})
    # the best stream up to the end of its text, then the second best: a linear program
    assert found.shares == {"a": 0.4, "b": 0.0, "c": 0.6, "d": 0.0}
    assert found.gain == pytest.approx(law(SWARM.shares) - law(found.shares), abs=1e-4)


def test_floor_caps_and_divergence_hold() -> None:
    swarm = SWARM.model_copy(update={"floor": 0.05, "stay": 0.2})
    found = propose(swarm, runs(law, 0.002), {"a": 0.3, "c": 0.5})
    assert min(found.shares.values()) >= 0.05
    assert found.shares["a"] <= 0.3
    assert found.shares["c"] <= 0.5
    assert sum(found.shares.values()) == pytest.approx(1, abs=2e-4)
    free = propose(SWARM, runs(law, 0.002), {})
    apart = [sum(abs(one[name] - SWARM.shares[name]) for name in NAMES) for one in (found.shares, free.shares)]
    assert apart[0] < apart[1]


def test_a_surface_that_is_not_the_laws_is_the_kernels() -> None:
    found = propose(SWARM, runs(both, 0.005), {})
    assert found.family == "kernel"
    assert found.shares["a"] + found.shares["b"] > 0.9
    assert found.low <= both(SWARM.shares) - both(found.shares) <= found.high


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, 2))])
def test_where_shares_make_no_difference_nothing_is_proposed(seed: int) -> None:
    swarm = SWARM.model_copy(update={"seed": seed})
    found = propose(swarm, runs(lambda _: 1.2, 0.02, seed, swarm), {})
    assert found.refusal
    assert found.shares == {}


def test_left_out_runs_are_those_of_fits_without_them() -> None:
    of_both = runs(both, 0.005, swarm=SWARM.model_copy(update={"count": 80}))
    shares, losses = np.array([of(one) for one, _ in of_both]), np.array([loss for _, loss in of_both])
    for features, width, ridge, held in list(_kernel_left_out(shares, losses))[::40]:
        keep = np.arange(len(losses)) != 7
        # a mean of its own moves a little where a run is left out
        without = _fit_kernel(features, width, ridge, shares[keep], losses[keep])(shares[7])
        assert held[7] == pytest.approx(float(without), abs=5e-3)
    law = _log_linear(shares, losses)
    swift = _by_leverage(law, shares, losses)
    for at in (3, 40, 77):
        keep = np.arange(len(losses)) != at
        assert swift[at] == pytest.approx(float(_log_linear(shares[keep], losses[keep], law)(shares[at])), abs=2e-3)


def test_slopes_are_those_of_the_surfaces() -> None:
    shares = np.array([of(one) for one, _ in runs(both, 0.01)])
    losses = np.array([loss for _, loss in runs(both, 0.01)])
    kernel = fit(shares, losses).loss
    assert isinstance(kernel, Kernel)
    at = np.array([0.3, 0.3, 0.3, 0.1])
    for surface in (kernel, LogLinear(1.0, SLOPES)):
        steps = 1e-6 * np.eye(4)
        numeric = (surface(at + steps) - surface(at - steps)) / 2e-6
        assert np.allclose(surface.slope(at), numeric, atol=1e-6)


def test_the_best_of_a_kernel_is_no_worse_than_a_grid() -> None:
    kernel = fit(np.array([of(one) for one, _ in runs(both, 0.01)]), np.array([loss for _, loss in runs(both, 0.01)]))
    swarm = SWARM.model_copy(update={"stay": 0.0})
    found = best_shares(kernel.loss, of(swarm.shares), np.full(4, 0.6), swarm)
    grid = np.random.default_rng(0).dirichlet(np.ones(4), 20_000)
    assert kernel.loss(found) <= kernel.loss(grid[(grid <= 0.6).all(1)]).min() + 1e-4


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(RequestError, match="caps on repetition"):
        propose(SWARM, runs(law, 0), dict.fromkeys(NAMES, 0.2))
    assert propose(SWARM, runs(law, 0)[:3], {}).refusal == "3 runs have scores, and a surrogate needs 4"
    with pytest.raises(RequestError, match="at least 4 runs"):
        fit(np.eye(4)[:3], np.ones(3))
    for wrong in ({"prior": {"a": 1, "b": 0}}, {"prior": {"a": 1, "b": 1}, "strength": (2, 1)}):
        with pytest.raises(ValidationError):
            Swarm.model_validate(wrong)
