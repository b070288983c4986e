"""Exposure, its p-value and the audit: known answers, and nothing where there is nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plinth_audit.canaries import audit
from tests.peers import Peer

stats = Peer("scipy.stats")


def test_ranks_count_ties_against_the_canary() -> None:
    references = np.array([1.0, 2.0, 2.0, 3.0])
    assert audit.ranks(np.array([0.5, 1.0, 2.0, 2.5, 9.0]), references).tolist() == [1, 2, 4, 4, 5]


def test_a_loss_that_is_no_number_has_no_rank() -> None:
    good, bad = np.array([1.0, 2.0]), np.array([1.0, math.nan])
    for canaries, references in ((bad, good), (good, bad), (np.array([math.inf]), good)):
        with pytest.raises(ValueError, match="must be finite"):
            audit.ranks(canaries, references)


def test_exposure_of_the_paper() -> None:
    """Carlini et al. 2019, section 4.2: log2 |R| - log2 rank; the lowest of 4,096 has 12 bits."""
    assert audit.exposures(np.array([1, 2, 4096]), 4096).tolist() == [12.0, 11.0, 0.0]


def test_a_fitted_tail_only_adds_below_all_references() -> None:
    references = np.random.default_rng(1).normal(100, 5, 4096)
    bits = np.array([90.0, 100.0, 70.0, 0.0])
    found = audit.extended(bits, references)
    assert found[:2].tolist() == audit.exposures(audit.ranks(bits[:2], references), 4096).tolist()
    # six standard deviations of a normal distribution: -log2 of its CDF is 29.9; the fit differs a little
    assert found[2] == pytest.approx(-stats.norm.logcdf(-6) / math.log(2), rel=0.25)
    assert found[3] > 250  # where the CDF underflows


@pytest.mark.parametrize("value", [-3.0, -8.0, -20.0])
@pytest.mark.parametrize("shape", [-2.0, 0.0, 1.5])
def test_the_tail_is_that_of_the_distribution(value: float, shape: float) -> None:
    found = audit._log_cdf(value, shape, 0.0, 1.0)
    expected = math.log(2) + math.log(_owens(value, shape))
    assert found == pytest.approx(expected, rel=2e-3)


def _owens(value: float, shape: float) -> float:
    """Half of the CDF by quadrature of its definition, in a variable that keeps the tail in sight."""
    grid = np.linspace(value - 12, value, 400_001)
    return float(np.trapezoid(stats.norm.pdf(grid) * stats.norm.cdf(shape * grid), grid))


def test_p_value_of_no_canary_is_one_and_of_one_is_its_rank() -> None:
    assert audit.exposure_p_value(np.empty(0)) == 1.0
    for rank in (1, 7, 2000):
        assert audit.exposure_p_value(audit.exposures(np.array([rank]), 4096)) == pytest.approx(rank / 4096)


def _simulated(seed: int, canaries: int = 64, references: int = 4096) -> float:
    rng = np.random.default_rng(seed)
    losses = rng.normal(size=canaries + references)
    found = audit.ranks(losses[:canaries], losses[canaries:])
    return audit.exposure_p_value(audit.exposures(found, references))


def test_untrained_models_show_nothing() -> None:
    """Canaries and references of one distribution: p-values of 200 seeds are uniform."""
    assert stats.kstest([_simulated(seed) for seed in range(200)], "uniform").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_p_value_keeps_its_level_where_most_canaries_share_the_references() -> None:
    """256 canaries, the most that 4,096 references allow: the shared references add a sixteenth to the variance."""
    found = np.array([_simulated(seed, canaries=256) for seed in range(4000)])
    assert (found <= 0.05).mean() == pytest.approx(0.05, abs=0.012)
    assert (found <= 0.01).mean() < 0.02


def test_memorised_canaries_show() -> None:
    rng = np.random.default_rng(2)
    losses = np.concatenate([rng.normal(-2, 1, 16), rng.normal(size=48), rng.normal(size=4096)])
    found = audit.exposures(audit.ranks(losses[:64], losses[64:]), 4096)
    assert audit.exposure_p_value(found) < 1e-5


def test_epsilon_of_the_paper() -> None:
    """All of r guesses right at 95%: (e^eps / (1 + e^eps))^r = 0.05."""
    share = 0.05 ** (1 / 50)
    assert audit.lower_bound(50, 50) == pytest.approx(math.log(share / (1 - share)))
    assert audit.lower_bound(25, 50) == 0.0
    assert audit.lower_bound(0, 0) == 0.0


def test_the_bound_is_the_largest_epsilon_that_the_guesses_rule_out() -> None:
    epsilon = audit.lower_bound(40, 50)
    at = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert stats.binom.sf(39, 50, at) == pytest.approx(0.05)


def test_guesses_see_losses_and_groups_alone() -> None:
    ranks = np.array([1, 1, 3000, 2000, 1, 3000, 3000, 3000])
    groups = np.array([64, 64, 64, 64, 1, 1, 1, 1])
    assert audit.guesses(ranks, groups, 4096).tolist() == [1, 1, -1, -1, 1, -1, -1, -1]
    assert audit.guesses(ranks[4:], np.array([1, 4, 4, 4]), 4096).tolist() == [1, 0, 0, 0]
    planted = np.array([True, True, False, True])
    assert audit.audit(np.array([1, 1, -1, -1], np.int8), planted).model_dump() == {
        "guesses": 4, "right": 3, "level": 0.95, "epsilon": audit.lower_bound(3, 4),
    }  # fmt: skip


def test_an_untrained_model_has_no_epsilon_more_often_than_its_level() -> None:
    """Losses that do not depend on the coins: the bound is above 0 in at most 5% of runs."""
    above = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        planted, groups = rng.random(128) < 0.5, np.tile([1, 4, 16, 64], 32)
        ranks = audit.ranks(rng.normal(size=128), rng.normal(size=4096))
        above += audit.audit(audit.guesses(ranks, groups, 4096), planted).epsilon > 0
    assert above / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_mechanism_of_known_epsilon_is_not_overstated() -> None:
    """Randomized response at epsilon = 1 tells every coin with probability e / (1 + e): the bound stays below 1 in
    95% of runs, and comes near."""
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        planted = rng.random(500) < 0.5
        right = rng.random(500) < math.e / (1 + math.e)
        found.append(audit.audit(np.where(planted == right, 1, -1).astype(np.int8), planted).epsilon)
    assert np.mean(np.array(found) <= 1) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 300)
    assert np.median(found) > 0.7
