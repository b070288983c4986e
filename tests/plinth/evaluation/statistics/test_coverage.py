"""Coverage of 95% intervals: 93.5 to 96.5% of simulations, at 30, 100 and 300 clusters.

`make test` simulates some; `exhaustive` all, 4,000 times each.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from plinth.evaluation import statistics
from plinth.evaluation.statistics import Estimate

Rng = np.random.Generator
#: Draws one data set of C clusters and gives the interval.
Simulation = Callable[[Rng, int], Estimate]


def documents(rng: Rng, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits and bytes of documents: lengths log-normal, bits per byte falling with length and varying by document."""
    size = np.round(np.exp(rng.normal(7.5, 1.0, count))) + 50
    return size * (np.exp(rng.normal(0, 0.3, count)) + 8 / np.sqrt(size)), size


def gaps(rng: Rng, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Differences in bits between two models, with heavy tails, and bytes."""
    _, size = documents(rng, count)
    return size * (0.01 + 0.05 * rng.standard_t(4, count)) + np.sqrt(size), size


@lru_cache
def true_ratio(kind: Callable[[Rng, int], tuple[np.ndarray, np.ndarray]]) -> float:
    above, below = kind(np.random.default_rng(0), 2_000_000)
    return float(above.sum() / below.sum())


def of_ratio(kind: Callable[[Rng, int], tuple[np.ndarray, np.ndarray]]) -> Simulation:
    return lambda rng, count: statistics.ratio(*kind(rng, count), draws=999, seed=int(rng.integers(2**31)))


def spans(rng: Rng, count: int) -> Estimate:
    """Ratio of spans, several of each document, that share their document's rate."""
    above, below = documents(rng, count)
    owner = np.repeat(np.arange(count), rng.integers(1, 5, count))
    share = rng.dirichlet(np.ones(4), count)[owner, np.concatenate([np.arange(n) for n in np.bincount(owner)])]
    return statistics.ratio(share * above[owner], share * below[owner], owner, draws=999)


def bernoulli(rng: Rng, count: int) -> Estimate:
    return statistics.mean((rng.random(count) < 0.3) * 1.0)


def skewed(rng: Rng, count: int) -> Estimate:
    return statistics.mean(rng.beta(0.5, 2, count))


def clustered(rng: Rng, count: int) -> Estimate:
    """Items of documents of one to eight questions, which share a difficulty."""
    owner = np.repeat(np.arange(count), rng.integers(1, 9, count))
    return statistics.mean((rng.random(len(owner)) < rng.beta(1, 1, count)[owner]) * 1.0, owner)


def samples(rng: Rng, count: int) -> Estimate:
    """Five samples an item of two models that are equal."""
    owner = np.repeat(np.arange(count), 5)
    chance = rng.beta(0.7, 0.7, count)[owner]
    draws = rng.random((2, len(owner))) < chance
    return statistics.paired_difference(draws[0] * 1.0, draws[1] * 1.0, owner)


def answers(differ: float, gap: float) -> Simulation:
    """Right and wrong answers of two models that differ on this share of items."""

    def draw(rng: Rng, count: int) -> Estimate:
        at = rng.random(count)
        a_only, b_only = at < (differ + gap) / 2, (at >= (differ + gap) / 2) & (at < differ)
        return statistics.paired_difference(a_only * 1.0, b_only * 1.0)

    return draw


def wilson(rng: Rng, count: int) -> Estimate:
    return statistics.share(int(rng.binomial(count, 0.2)), count)


def trend(rng: Rng, count: int) -> Estimate:
    along = np.arange(count)
    return statistics.slope(along, 2.0 - 0.01 * along + rng.normal(0, 0.3, count))


MEANS: dict[str, tuple[Simulation, float]] = {
    "bernoulli": (bernoulli, 0.3),
    "skewed": (skewed, 0.2),
    "clustered": (clustered, 0.5),
    "samples": (samples, 0.0),
    "Wilson": (wilson, 0.2),
    "trend": (trend, -0.01),
    "answers": (answers(0.4, 0.1), 0.1),
}


def coverage(simulate: Simulation, count: int, truth: float, times: int) -> float:
    rng = np.random.default_rng(count)
    found = (simulate(rng, count) for _ in range(times))
    return sum(one.low <= truth <= one.high for one in found) / times


@pytest.mark.parametrize("name", MEANS)
def test_coverage_of_means(name: str) -> None:
    simulate, truth = MEANS[name]
    assert coverage(simulate, 30, truth, 2000) == pytest.approx(0.95, abs=0.015)


def test_coverage_of_ratios() -> None:
    assert coverage(of_ratio(gaps), 30, true_ratio(gaps), 2000) == pytest.approx(0.95, abs=0.015)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [30, 100, 300])
@pytest.mark.parametrize("name", MEANS)
def test_coverage_of_means_whole(name: str, count: int) -> None:
    simulate, truth = MEANS[name]
    assert coverage(simulate, count, truth, 4000) == pytest.approx(0.95, abs=0.015)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [30, 100, 300])
@pytest.mark.parametrize("kind", [documents, gaps, spans])
def test_coverage_of_ratios_whole(kind: Callable[..., tuple[np.ndarray, np.ndarray]], count: int) -> None:
    simulate, truth = (spans, true_ratio(documents)) if kind is spans else (of_ratio(kind), true_ratio(kind))
    assert coverage(simulate, count, truth, 4000) == pytest.approx(0.95, abs=0.015)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [30, 100, 300])
@pytest.mark.parametrize(("differ", "gap"), [(0.2, 0.0), (0.2, 0.05), (0.05, 0.02)])
def test_where_few_pairs_differ_intervals_hold_at_least_as_often(count: int, differ: float, gap: float) -> None:
    """An exact test is cautious: with 30 items of which one or two differ, almost no claim is made."""
    assert coverage(answers(differ, gap), count, gap, 4000) >= 0.935


def even(rng: Rng, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Differences in bits with heavy tails about none, and bytes."""
    _, size = documents(rng, count)
    return size * 0.05 * rng.standard_t(4, count), size


def false_findings(count: int, below: float, times: int) -> float:
    """Return the share of simulations without a difference in which p is less than `below`."""
    rng, found = np.random.default_rng(count), 0
    for _ in range(times):
        bits, size = even(rng, count)
        one = statistics.ratio_difference(bits, np.zeros(count), size, draws=999, seed=int(rng.integers(2**31)))
        found += one.p is not None and one.p < below
    return found / times


def test_p_of_a_ratio_keeps_its_level() -> None:
    assert false_findings(30, 0.01, 1500) <= 0.017  # 0.01 and 2.7 standard errors


@pytest.mark.exhaustive
def test_p_of_a_ratio_keeps_its_level_below_what_draws_resolve() -> None:
    assert false_findings(30, 0.0005, 20_000) <= 0.001


def test_no_false_difference_among_few_pairs() -> None:
    rng, simulate = np.random.default_rng(0), answers(0.2, 0.0)
    found = [simulate(rng, 30) for _ in range(1000)]
    assert sum(one.p < 0.05 for one in found if one.p is not None) / 1000 <= 0.05
    assert all(one.excludes() <= ((one.p or 0) < 0.05) for one in found)
