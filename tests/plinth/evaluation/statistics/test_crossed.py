"""Seeds crossed with documents: known answers, identities, and how often 95% intervals hold the truth."""

import math
from typing import Any

import numpy as np
import pytest

from plinth.evaluation import statistics
from plinth.evaluation.statistics import DEGENERATE, DOCUMENTS_ONLY, FEW_CLUSTERS, Estimate
from tests.peers import Peer

stats = Peer("scipy.stats")

EFFECT = -0.01
#: Standard deviation of what documents and nothing else give, in bits per byte.
OF_DOCUMENTS = 0.05


def draw(
    rng: np.random.Generator, seeds: int, documents: int, noise: float, rest: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bits of both sides, [K, D], and bytes; `noise` is the error by seeds in errors by documents, `rest` likewise."""
    size = np.round(np.exp(rng.normal(7.5, 0.7, documents))) + 50
    uneven = math.sqrt(float((size**2).mean())) / float(size.mean())  # long documents weigh more
    of_seeds = noise * OF_DOCUMENTS * uneven * math.sqrt(seeds / documents)
    gap = EFFECT + rng.normal(0, OF_DOCUMENTS, documents) + rng.normal(0, of_seeds or 1e-12, (seeds, 1))
    gap = gap + rng.normal(0, rest * OF_DOCUMENTS, (seeds, documents))
    b = size * rng.normal(1.2, 0.2, (seeds, documents))
    return b + size * gap, b, size


def coverage(seeds: int, documents: int, noise: float, rest: float, times: int) -> float:
    rng, held = np.random.default_rng([seeds, documents, int(10 * noise), int(10 * rest)]), 0
    for _ in range(times):
        one = statistics.crossed_difference(*draw(rng, seeds, documents, noise, rest), draws=499)
        held += one.low <= EFFECT <= one.high
    return held / times


@pytest.mark.parametrize(("seeds", "noise"), [(2, 30.0), (5, 1.0)])
def test_coverage(seeds: int, noise: float) -> None:
    assert 0.925 <= coverage(seeds, 100, noise, 0.3, 400) <= 0.99


@pytest.mark.exhaustive
@pytest.mark.parametrize("rest", [0.3, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0, 3.0, 30.0])
@pytest.mark.parametrize(("documents", "times"), [(100, 1500), (1000, 600)])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_coverage_whole(seeds: int, documents: int, times: int, noise: float, rest: float) -> None:
    """Within three standard errors of the simulation of 94 to 97%; with 2 and 3 seeds more, never less."""
    error = 3 * math.sqrt(0.05 * 0.95 / times)
    most = {2: 0.987, 3: 0.978}.get(seeds, 0.97)
    assert 0.945 - error <= coverage(seeds, documents, noise, rest, times) <= most + error


def test_one_seed_is_a_ratio_of_documents_and_says_so() -> None:
    a, b, size = draw(np.random.default_rng(0), 1, 200, 1.0, 0.3)
    found = statistics.crossed_difference(a, b, size, draws=999)
    plain = statistics.ratio_difference(a[0], b[0], size, draws=999)
    assert DOCUMENTS_ONLY in found.flags
    assert (found.value, found.low, found.high) == pytest.approx((plain.value, plain.low, plain.high), rel=1e-9)
    assert found.p == pytest.approx(plain.p, rel=1e-6)
    assert found.method == plain.method


def test_where_seeds_dominate_it_is_a_t_test_of_whole_runs() -> None:
    a, b, size = draw(np.random.default_rng(1), 4, 100, 1e5, 0.1)
    found = statistics.crossed_difference(a, b, size, draws=999)
    runs = (a - b).sum(axis=1) / size.sum()
    low, high = stats.t.interval(0.95, 3, runs.mean(), stats.sem(runs))
    assert (found.value, found.low, found.high) == pytest.approx((runs.mean(), low, high), rel=1e-6)
    assert found.p == pytest.approx(stats.ttest_1samp(runs, 0).pvalue, rel=1e-6)
    assert found.freedom == pytest.approx(3, rel=1e-3)
    assert found.flags == ()


def test_variances_by_hand() -> None:
    """Three seeds, four documents of one byte: seeds, documents and rest of an analysis of variance."""
    gaps = np.array([[1.0, 2.0, 4.0, 3.0], [2.0, 2.0, 6.0, 3.0], [0.0, 2.0, 5.0, 1.0]])
    found = statistics.crossed_difference(gaps, np.zeros((3, 4)), np.ones(4))
    rows, columns, middle = gaps.mean(1), gaps.mean(0), gaps.mean()
    rest = ((gaps - rows[:, None] - columns + middle) ** 2).sum() / 6 / 12
    by_seeds, by_documents = rows.var(ddof=1) / 3, columns.var(ddof=1) / 4 - rest
    half = math.hypot(
        stats.t.ppf(0.975, 2) * math.sqrt(by_seeds), stats.t.ppf(0.975, 3) * math.sqrt(by_documents)
    )  # four documents are too few for draws: Student's t
    assert found.value == pytest.approx(middle)
    assert found.high - found.value == pytest.approx(half, rel=1e-9)
    assert (found.n, found.clusters, found.flags) == (12, 4, (FEW_CLUSTERS,))


@pytest.mark.parametrize("seeds", [1, 2, 3, 6])
def test_p_reaches_the_level_where_the_interval_reaches_0(seeds: int) -> None:
    a, b, size = draw(np.random.default_rng(seeds), seeds, 60, 1.0, 0.3)
    found = statistics.crossed_difference(a, b, size, draws=999)
    for end in (found.low, found.high):
        moved = statistics.crossed_difference(a - end * size, b, size, draws=999)
        assert moved.p == pytest.approx(0.05, rel=1e-4)
    other = statistics.crossed_difference(b, a, size, draws=999)
    assert (other.value, other.low, other.high) == pytest.approx((-found.value, -found.high, -found.low), rel=1e-9)


def test_runs_that_are_one_and_the_same_are_no_second_seed() -> None:
    a, b, size = draw(np.random.default_rng(3), 1, 50, 1.0, 0.3)
    once = statistics.crossed_difference(a, b, size, draws=999)
    twice = statistics.crossed_difference(np.repeat(a, 3, 0), np.repeat(b, 3, 0), size, draws=999)
    assert DOCUMENTS_ONLY in twice.flags
    assert (twice.low, twice.high) == pytest.approx((once.low, once.high), rel=1e-9)


@pytest.mark.parametrize("gaps", [np.zeros((3, 20)), np.full((3, 20), 0.25), np.array([[1.0], [2.0]])])
def test_nothing_is_claimed_where_documents_do_not_vary(gaps: np.ndarray) -> None:
    found = statistics.crossed_difference(1.1 + gaps, np.full(gaps.shape, 1.1), np.ones(gaps.shape[1]))
    assert DEGENERATE in found.flags
    assert (found.p, found.excludes(), found.smallest_effect()) == (1.0, False, None)


@pytest.mark.parametrize(
    ("a", "weights", "said"),
    [
        (np.zeros((2, 3)), np.ones(4), "weights"),
        (np.zeros((3, 2)), np.ones(3), "weights"),
        (np.zeros(3), np.ones(3), r"finite scores with at least one seed \(row\) and one document"),
        (np.zeros((0, 3)), np.ones(3), r"finite scores with at least one seed \(row\) and one document"),
        (np.array([[0, np.nan, 0]] * 2), np.ones(3), "finite"),
        (np.zeros((2, 3)), np.zeros(3), "above 0"),
    ],
)
def test_refused(a: Any, weights: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        statistics.crossed_difference(a, np.zeros((2, 3)), weights)


def test_smallest_effect_is_found_in_four_of_five() -> None:
    """An effect reported as detectable with power 0.8 is detected about that often; it shrinks with the number of
    seeds."""
    rng, seen, times = np.random.default_rng(5), 0, 300
    wide: dict[int, float] = {}
    for seeds in (3, 6):
        every = [_at(rng, seeds, 0.0).smallest_effect() or 0.0 for _ in range(30)]
        wide[seeds] = float(np.median(every))
    for _ in range(times):
        seen += _at(rng, 6, wide[6]).excludes()
    assert wide[6] < wide[3] / 1.2
    assert 0.7 <= seen / times <= 0.93


def _at(rng: np.random.Generator, seeds: int, shift: float) -> Estimate:
    a, b, size = draw(rng, seeds, 100, 3.0, 0.3)
    return statistics.crossed_difference(a + (shift - EFFECT) * size, b, size, draws=199)
