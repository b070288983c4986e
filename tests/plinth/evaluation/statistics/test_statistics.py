"""Known answers and properties."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.evaluation import statistics
from plinth.evaluation.statistics import DEGENERATE, FEW_CLUSTERS, MISSING
from plinth.evaluation.statistics.shares import tango
from tests.peers import Peer

stats = Peer("scipy.stats")


def test_three_to_nothing_is_not_certainty() -> None:
    """olmo-eval's pairwise gives p = 0 here: all three items that differ were won by one side."""
    found = statistics.paired_difference([1, 1, 1], [0, 0, 0])
    assert (found.value, found.p, found.flags) == (1.0, 0.25, (DEGENERATE,))
    assert found.low < 0
    assert not found.excludes()
    of_many = statistics.paired_difference([1] * 3 + [0] * 195, [0] * 198)
    assert (of_many.p, of_many.excludes(), of_many.flags) == (0.25, False, ())


def test_mcnemar() -> None:
    assert statistics.mcnemar(3, 0) == 0.25
    assert statistics.mcnemar(0, 0) == 1.0
    for a, b in itertools.product(range(12), repeat=2):
        if a + b:
            exact = stats.binomtest(a, a + b, 0.5).pvalue
            assert statistics.mcnemar(a, b) == pytest.approx(exact)
            assert statistics.mcnemar(a, b, mid=True) <= statistics.mcnemar(a, b)
    # Fagerland, Lydersen and Laake 2013, table 1 (airway hyper-responsiveness): 1 against 7
    assert statistics.mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert statistics.mcnemar(1, 7, mid=True) == pytest.approx(0.0391, abs=5e-5)
    with pytest.raises(ValueError, match="negative"):
        statistics.mcnemar(-1, 2)


def test_tango_inverts_its_score_test() -> None:
    """The ends solve the score equation with the maximum likelihood found by search; known values of the paper."""
    low, high = tango(9, 13, 44)  # Tango 1998, section 5: -0.3028 to 0.1231 [difference -4/44]
    for end, sign in ((low, 1.0), (high, -1.0)):
        shares = np.linspace(max(0.0, -end), min(1.0, (1 - end) / 2), 400_001)[1:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            likelihood = 9 * np.log(shares + end) + 13 * np.log(shares) + 22 * np.log(1 - 2 * shares - end)
        alone = shares[np.nanargmax(likelihood)]
        score = (9 - 13 - 44 * end) / math.sqrt(44 * (2 * alone + end * (1 - end)))
        assert score == pytest.approx(sign * 1.959964, abs=1e-3)
    z = 1.959964
    assert tango(0, 0, 50) == pytest.approx((-z * z / (50 + z * z), z * z / (50 + z * z)), abs=1e-6)
    assert tango(5, 2, 40) == pytest.approx(tuple(-end for end in reversed(tango(2, 5, 40))), abs=1e-12)


def test_no_spread_is_a_flag_and_no_claim() -> None:
    same = statistics.paired_difference([0.5, 0.7, 0.2], [0.4, 0.6, 0.1])
    assert same.p is not None
    assert same.p >= 0.25
    assert not same.excludes()
    none = statistics.paired_difference([0.5, 0.7], [0.5, 0.7])
    assert (none.value, none.p, none.flags) == (0.0, 1.0, (DEGENERATE, FEW_CLUSTERS))
    assert none.smallest_effect() is None
    one = statistics.ratio([3.0], [2.0])
    assert (one.value, one.flags) == (1.5, (DEGENERATE, FEW_CLUSTERS))
    alike = statistics.ratio([0.3] * 50, [0.1] * 50)
    assert (alike.flags, alike.low, alike.high) == ((DEGENERATE,), alike.value, alike.value)
    right = statistics.mean([1.0] * 20)
    assert (right.flags, right.high) == ((DEGENERATE,), 1.0)
    assert right.low == pytest.approx(0.8389, abs=5e-5)  # Wilson: 20 of 20


def test_identical_answers_name_what_could_have_been_seen() -> None:
    found = statistics.paired_difference([1, 0] * 99, [1, 0] * 99)
    assert (found.value, found.p) == (0.0, 1.0)
    # six pairs must differ for p < 0.05, and a share of 4% gives as many in four of five samples of 198
    assert found.smallest_effect() == pytest.approx(stats.beta.ppf(0.8, 6, 193), abs=1e-9)
    # after a correction for 500 lines 15 must; of 12 pairs no number is enough
    assert found.smallest_effect(tests=500) == pytest.approx(stats.beta.ppf(0.8, 15, 184), abs=1e-9)
    assert statistics.paired_difference([1, 0] * 6, [1, 0] * 6).smallest_effect(tests=500) is None


def test_student_of_single_rows() -> None:
    values = np.random.default_rng(0).normal(0.1, 1, 40)
    found = statistics.paired_difference(values, np.zeros(40))
    test = stats.ttest_1samp(values, 0)
    assert found.p == pytest.approx(test.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)), rel=1e-9)
    other = np.random.default_rng(1).normal(0.4, 2, 25)
    assert statistics.difference(values, other).p == pytest.approx(
        stats.ttest_ind(values, other, equal_var=False).pvalue, rel=1e-9
    )


def test_a_side_without_spread_is_not_known_exactly() -> None:
    """One value gives no information about others; forty wrong answers show that few are right, not none."""
    rng = np.random.default_rng(0)
    for other in ([0.9], [0.9] * 5):
        one = statistics.difference(rng.normal(0.1, 0.1, 50), other)
        assert (one.p, one.low, DEGENERATE in one.flags) == (1.0, one.value, True)
    wrong = statistics.difference([1.0] * 3 + [0.0] * 37, [0.0] * 40)
    assert not wrong.excludes()  # Fisher's exact test: p = 0.24
    assert statistics.difference([1.0] * 20 + [0.0] * 20, [0.0] * 40).excludes()
    held = 0
    for _ in range(1000):  # rare answers, of which a side often has none
        found = statistics.difference((rng.random(40) < 0.04) * 1.0, (rng.random(40) < 0.01) * 1.0)
        held += found.low <= 0.03 <= found.high
    assert held / 1000 > 0.93


def test_repeating_rows_of_a_cluster_is_no_evidence() -> None:
    values = np.random.default_rng(0).normal(0.1, 1, 40)
    once = statistics.mean(values)
    often = statistics.mean(np.repeat(values, 7), np.repeat(np.arange(40), 7))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (often.n, often.clusters) == (280, 40)
    bits, size = np.exp(values) * 100, np.arange(100.0, 140.0)
    single = statistics.ratio(bits, size, seed=4)
    spans = statistics.ratio(np.repeat(bits, 3) / 3, np.repeat(size, 3) / 3, np.repeat(np.arange(40), 3), seed=4)
    assert (spans.low, spans.high) == pytest.approx((single.low, single.high))


@given(st.permutations(range(40)), st.integers(0, 2**31))
def test_ratio_of_any_order_is_the_same(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(7)
    bits, size, owner = rng.exponential(3, 40), rng.integers(50, 900, 40), [f"d{i % 13}" for i in range(40)]
    at = np.array(order)
    first = statistics.ratio(bits, size, owner, seed=seed, draws=99)
    assert statistics.ratio(bits[at], size[at], [owner[i] for i in order], seed=seed, draws=99) == first


def test_ratio_is_of_sums_and_has_a_seed() -> None:
    bits, size = [10.0 + i for i in range(10)] + [1.0] * 10, [10] * 10 + [2] * 10
    found = statistics.ratio(bits, size, seed=3)
    assert found.value == pytest.approx(155 / 120)  # a mean of ratios would be 0.975
    assert found == statistics.ratio(bits, size, seed=3)
    assert (found.seed, found.n, found.clusters, found.p) == (3, 20, 20, None)
    assert found.low < found.value < found.high
    assert statistics.ratio(bits, size, seed=4).high != found.high


def test_ratio_difference_is_paired() -> None:
    rng = np.random.default_rng(0)
    size = rng.integers(200, 4000, 80)
    hard = rng.lognormal(0, 0.4, 80)
    a, b = size * hard, size * (hard + 0.02 + rng.normal(0, 0.02, 80))
    found = statistics.ratio_difference(a, b, size)
    assert found.excludes()
    assert found.high < 0
    assert found.p is not None
    assert found.p < 0.001
    apart = statistics.ratio(a, size)
    assert apart.high - apart.low > 5 * (found.high - found.low)
    swapped = statistics.ratio_difference(b, a, size)
    assert (swapped.value, swapped.low, swapped.high) == (-found.value, -found.high, -found.low)


def test_p_and_interval_of_a_ratio_agree() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        size = rng.integers(100, 1000, 30)
        found = statistics.ratio_difference(size * rng.normal(0.03, 0.08, 30), np.zeros(30), size, draws=999)
        assert found.p is not None
        assert found.excludes() == (found.p < 0.05)


def test_p_of_a_ratio_is_not_bounded_by_the_draws() -> None:
    """10,000 draws resolve 1e-4; Holm over 501 lines asks for less."""
    rng = np.random.default_rng(0)
    size = rng.integers(100, 1000, 200)
    found = [statistics.ratio_difference(size * rng.normal(mean, 0.08, 200), np.zeros(200), size, draws=999)
             for mean in (0.02, 0.04, 0.08)]  # fmt: skip
    p_values = [one.p or 1.0 for one in found]
    assert p_values == sorted(p_values, reverse=True)
    assert p_values[-1] < 1e-12
    assert 1e-6 < p_values[0] < 0.05


def test_few_clusters_that_hold_the_spread_give_no_small_p() -> None:
    """Five documents of 100 differ, all by the same amount: a sign test of them has p = 1/16."""
    found = statistics.ratio_difference([2.0] * 5 + [1.0] * 95, [1.0] * 100, [1.0] * 100)
    assert found.p is not None
    assert found.p > 0.03


def test_shares() -> None:
    found = statistics.share(81, 263)  # Newcombe 1998, table I
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert statistics.upper_share(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    exact = stats.binomtest(7, 50).proportion_ci(0.9, method="exact")
    assert (statistics.lower_share(7, 50), statistics.upper_share(7, 50)) == pytest.approx((exact.low, exact.high))
    assert (statistics.upper_share(5, 5), statistics.lower_share(0, 5)) == (1.0, 0.0)
    for wrong in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="successes"):
            statistics.share(*wrong)


def test_missing_items_are_bounded() -> None:
    assert statistics.share_with_missing(60, 100, 0) == statistics.share(60, 100)
    found = statistics.share_with_missing(60, 100, 25)
    assert found.flags == (MISSING,)
    assert (found.value, found.n) == (0.6, 125)
    assert found.low < 0.8 * 0.6 < 0.8 * 0.6 + 0.2 < found.high
    # with much missing, each end is one-sided: the truth cannot be beyond both (Imbens and Manski 2004)
    wrong, right = statistics.share(60, 125, level=0.9), statistics.share(85, 125, level=0.9)
    assert (found.low, found.high) == pytest.approx((wrong.low, right.high), abs=1e-6)
    two_sided, little = statistics.share(6000, 10003), statistics.share_with_missing(6000, 10000, 3)
    assert little.high - little.low == pytest.approx(two_sided.high - two_sided.low, rel=0.03)


def test_missing_items_whatever_they_would_have_scored() -> None:
    """Those missing are all wrong, or all right: the interval holds all the same."""
    rng = np.random.default_rng(0)
    for lost in (0.0, 1.0):
        held = 0
        for _ in range(1000):
            right = rng.random(200) < 0.5
            gone = (rng.random(200) < 0.2) & (right == lost)
            found = statistics.share_with_missing(int(right[~gone].sum()), int((~gone).sum()), int(gone.sum()))
            held += found.low <= 0.5 <= found.high
        assert held / 1000 >= 0.935


def test_holm() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="between"):
        statistics.holm([1.2])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_lies_between_each_and_bonferroni(p_values: list[float]) -> None:
    found = statistics.holm(p_values)
    assert (found >= np.array(p_values)).all()
    assert (found <= np.minimum(1.0, np.array(p_values) * len(p_values)) + 1e-15).all()


def test_what_can_be_seen() -> None:
    assert statistics.smallest_effect(0.01) == pytest.approx(0.0280158, abs=1e-6)
    # Miller 2411.00640, section 5: 969 questions find 3 points where variances are 1/9 and samples settle the noise
    assert statistics.sample_size(0.03, 1 / 9) == 969
    assert statistics.sample_size(0.03, 1 / 9, noise_a=1 / 6, noise_b=1 / 6) > 3 * 969
    with pytest.raises(ValueError, match="unknown"):
        statistics.smallest_effect(0.0)
    with pytest.raises(ValueError, match="above 0"):
        statistics.sample_size(0.0, 1.0)
    with pytest.raises(ValueError, match="above 0 and finite"):
        statistics.sample_size(math.nan, 1.0)
    for wrong in ({"noise_a": -1.0}, {"samples_b": 0}, {"variance": math.nan}, {"variance": math.inf}):
        with pytest.raises(ValueError, match="variances must be finite"):
            statistics.sample_size(0.1, **{"variance": 1.0, **wrong})
    for wrong in ({"power": 1.0}, {"alpha": 0.0}, {"alpha": math.nan}):
        with pytest.raises(ValueError, match="must be between"):
            statistics.sample_size(0.1, 1.0, **wrong)
        with pytest.raises(ValueError, match="must be between"):
            statistics.smallest_effect(0.1, **wrong)


def test_an_effect_of_the_smallest_size_is_found_in_four_of_five() -> None:
    rng = np.random.default_rng(0)
    sought = statistics.smallest_effect(1 / math.sqrt(100))
    found = [statistics.paired_difference(rng.normal(sought, 1, 100), np.zeros(100)) for _ in range(1000)]
    assert np.mean([one.excludes() for one in found]) == pytest.approx(0.8, abs=0.04)
    planned = [one.smallest_effect() for one in found]
    assert float(np.median([one for one in planned if one])) == pytest.approx(sought, rel=0.03)


@pytest.mark.parametrize("tests", [1, 20, 500])
@pytest.mark.parametrize(("count", "right"), [(12, False), (60, False), (60, True), (300, True)])
def test_the_smallest_effect_is_found_at_the_corrected_level(count: int, right: bool, tests: int) -> None:
    """Planned on data without an effect, found in four of five with it: of scores, and of answers."""
    rng = np.random.default_rng(count + tests)

    def draw(effect: float) -> statistics.Estimate:
        if not right:
            return statistics.paired_difference(rng.normal(effect, 1, count), np.zeros(count))
        answer, flipped = rng.random(count) < 0.5, rng.random(count) < effect * 2
        return statistics.paired_difference((answer | flipped) * 1.0, answer * 1.0)

    planned = [draw(0.0).smallest_effect(tests=tests) for _ in range(100)]
    sought = float(np.mean([one for one in planned if one is not None]))
    found = np.mean([(draw(sought).p or 1.0) < 0.05 / tests for _ in range(300)])
    assert found >= 0.72


def test_slope() -> None:
    x, y = [0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 2.0, 4.0]
    found, fit = statistics.slope(x, y, level=0.9), stats.linregress(x, y)
    assert (found.value, found.p) == pytest.approx((fit.slope, fit.pvalue))
    assert found.value - found.low == pytest.approx(stats.t.ppf(0.95, 2) * fit.stderr)
    for nowhere in ([1.0, 1.0, 1.0], [0.3, 0.1 + 0.2, 0.3]):
        with pytest.raises(ValueError, match="three points"):
            statistics.slope(nowhere, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("height", [0.0, 0.1, 1e9])
@pytest.mark.parametrize("rate", [0.0, 0.1, -3e-7])
def test_points_on_a_line_are_a_flag_and_no_claim(height: float, rate: float) -> None:
    along = np.linspace(0.1, 700.3, 31)
    found = statistics.slope(along, height + rate * along)
    if height < 1e9 or not rate:
        assert (found.flags, found.p, found.low, found.high) == ((DEGENERATE,), 1.0, found.value, found.value)
    assert not found.excludes() or found.value == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("height", [1.0, 1e4, 1e8])
def test_equal_gaps_between_large_values_are_no_spread(height: float) -> None:
    """The remainder of a subtraction of large values is rounding."""
    b = height + np.random.default_rng(0).normal(0, height / 10, 40)
    paired = statistics.paired_difference(b + 0.1, b)
    ratio = statistics.ratio_difference(b + 0.1, b, np.ones(40))
    assert [one.flags for one in (paired, ratio)] == [(DEGENERATE,)] * 2
    assert [one.p for one in (paired, ratio)] == [1.0, 1.0]


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [[1.0], [2.0]]])
def test_what_is_no_sample_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        statistics.mean(values)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="values for"):
        statistics.paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="labels"):
        statistics.mean([1.0, 2.0], ["a"])
    with pytest.raises(ValueError, match="above 0"):
        statistics.ratio([1.0], [0.0])


@pytest.mark.parametrize("differing", [1, 2])
@pytest.mark.parametrize("count", [20, 100])
def test_a_ratio_that_rests_on_one_or_two_clusters_has_an_interval_and_says_so(count: int, differing: int) -> None:
    """More than a twentieth of the draws miss them, and have no spread to be measured in."""
    found = statistics.ratio_difference([2.0] * differing + [1.0] * (count - differing), [1.0] * count, [1.0] * count)
    assert math.isfinite(found.low)
    assert math.isfinite(found.high)
    assert found.low < 0 < found.high
    assert "few_clusters" in found.flags


def test_a_new_observation_has_the_spread_of_the_residuals() -> None:
    found = statistics.prediction(2.0, [2.0] * 400, [-0.5, 0.5], n=20, seed=0, level=0.8)
    assert (found.value, found.low, found.high) == (2.0, 1.5, 2.5)
    with pytest.raises(ValueError, match="finite"):
        statistics.prediction(2.0, [2.0], [float("nan")], n=20, seed=0)
