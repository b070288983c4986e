"""A canary is rolled back when it is worse than the margin, and seldom when it is not, at any number of evaluations."""

from __future__ import annotations

import numpy as np
import pytest

from plinth_registry.canary import POINTS, PairedStream, Trial, evidence_curve, judge
from plinth_registry.gates.settings import TrialPolicy

CANARIES, LOOKS = 200, 500


def pairs(worse: float, seed: int, n: int = LOOKS) -> list[tuple[float, float]]:
    """Bits per byte of documents: around 1, both models together by document, 5% of noise between them."""
    rng = np.random.default_rng(seed)
    champion = rng.lognormal(0, 0.25, n)
    canary = champion * (1 + worse + rng.normal(0, 0.05, n))
    return list(zip(canary.tolist(), champion.tolist(), strict=True))


def decided(policy: TrialPolicy, values: list[tuple[float, float]]) -> str:
    return judge(policy, [PairedStream("web", values)]).decision


@pytest.mark.parametrize(("margin", "worse"), [(0.0, 0.0), (0.005, 0.005)])
def test_canaries_at_the_limit_watched_at_every_observation_are_seldom_given_back(margin: float, worse: float) -> None:
    """Identical models at margin 0, and canaries that are worse by the whole margin: the hardest that must stay."""
    policy = TrialPolicy(margin=margin)
    given_back = [decided(policy, pairs(worse, seed)) == "return" for seed in range(CANARIES)]
    assert np.mean(given_back) <= 0.05


def test_identical_canaries_become_champion_and_none_is_given_back_by_the_defaults() -> None:
    decisions = [decided(TrialPolicy(), pairs(0, seed, 4000)) for seed in range(20)]
    assert set(decisions) <= {"promote", "continue"}
    assert decisions.count("promote") >= 15


def test_a_regression_of_2_percent_is_found_within_two_ticks_of_400_documents() -> None:
    found = [decided(TrialPolicy(), pairs(0.02, seed, 800)) == "return" for seed in range(CANARIES)]
    assert np.mean(found) >= 0.99


def test_ticks_do_not_change_the_decision() -> None:
    """A canary found worse stays so, whatever comes later; looking in between is looking at a beginning."""
    bad, good = pairs(0.04, 3), pairs(-0.2, 4)
    looks = [decided(TrialPolicy(), (bad + good)[:upto]) for upto in range(50, 1000, 50)]
    first = looks.index("return")
    assert 0 < first < 10
    assert set(looks[first:]) == {"return"}


def test_the_pair_that_decided_is_the_first_at_which_one_would_have_decided() -> None:
    values = pairs(0.04, 3) + pairs(-0.2, 4)
    at = judge(TrialPolicy(), [PairedStream("web", values)]).streams[0].decided_at
    assert at is not None
    assert (decided(TrialPolicy(), values[:at]), decided(TrialPolicy(), values[: at - 1])) == ("return", "continue")


def test_one_bad_stream_gives_the_canary_back_and_is_named() -> None:
    good, bad = PairedStream("web", pairs(0, 5, 4000)), PairedStream("code", pairs(0.05, 6), place=2, role="guard")
    trial = judge(TrialPolicy(), [good, bad])
    assert trial.decision == "return"
    assert trial.reason.startswith("code: worse than the margin after 500")
    levels = [one.worse.level for one in trial.streams if one.worse]
    assert levels == pytest.approx([1 - 0.05 / 2, 1 - 0.05 / 6])


def test_what_is_not_signed_keeps_a_canary_or_gives_it_back_and_never_makes_it_champion() -> None:
    """A metric that anyone may have written: as good as can be, it promotes nothing."""
    within = pairs(-0.2, 5, 4000)
    metric = PairedStream("latency", within, place=2, role="metric")
    guard = PairedStream("held-out text: bucket web", within, place=3, role="guard")
    assert judge(TrialPolicy(), [metric, guard]).decision == "continue"
    signed = PairedStream("held-out text", within)
    assert judge(TrialPolicy(), [signed, metric, guard]).decision == "promote"
    assert judge(TrialPolicy(), [signed, metric._replace(values=[])]).decision == "continue"
    assert judge(TrialPolicy(), [signed, metric._replace(values=pairs(0.05, 6))]).decision == "return"
    assert judge(TrialPolicy(), [signed, guard._replace(values=pairs(0, 6, 120))]).decision == "promote"


def test_the_curve_ends_where_the_judgement_stands() -> None:
    stream = PairedStream("web", pairs(0.02, 9, 800))
    points, found = evidence_curve(TrialPolicy(), stream), judge(TrialPolicy(), [stream]).streams[0].worse
    assert found is not None
    assert len(points) <= POINTS
    assert (points[0].pairs, points[-1]) == (100, (800, found.value, found.low, found.high))
    assert evidence_curve(TrialPolicy(), PairedStream("web", [])) == ()
    at = judge(TrialPolicy(), [stream]).streams[0].decided_at
    (decided_point,) = [one for one in evidence_curve(TrialPolicy(), stream, at) if one.pairs == at]
    assert decided_point.low > 0
    assert [one.pairs for one in evidence_curve(TrialPolicy(), PairedStream("web", pairs(0, 1, 3)))] == [3]


def test_more_is_better_where_the_policy_or_the_stream_says_so() -> None:
    policy = TrialPolicy(higher_is_better=("web",))
    assert decided(policy, pairs(0.05, 7)) == "promote"
    assert decided(policy, pairs(-0.05, 7)) == "return"
    assert judge(TrialPolicy(), [PairedStream("x", pairs(-0.05, 7), higher_is_better=True)]).decision == "return"


def test_too_little_and_what_does_not_vary_decide_nothing() -> None:
    assert judge(TrialPolicy(), []) == Trial(decision="continue")
    assert decided(TrialPolicy(), pairs(0.5, 8, 99)) == "continue"
    assert decided(TrialPolicy(), pairs(0.5, 8, 100)) == "return"
    for margin in (0, 0.005):
        assert decided(TrialPolicy(margin=margin), [(1.0, 1.0)] * 500) == "continue"
    with pytest.raises(ValueError, match="finite"):
        decided(TrialPolicy(), [(float("nan"), 1.0)])
