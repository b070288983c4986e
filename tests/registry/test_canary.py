"""A canary is given back when it is worse than the margin, and seldom when it is not, however often one looks."""

from __future__ import annotations

import numpy as np
import pytest

from registry.canary import PairedValue, Trial, judge
from registry.gates import TrialPolicy

CANARIES, LOOKS = 200, 500


def pairs(worse: float, seed: int, n: int = LOOKS, stream: str = "web") -> list[PairedValue]:
    """Bits per byte of documents: around 1, both models together by document, 5% of noise between them."""
    rng = np.random.default_rng(seed)
    champion = rng.lognormal(0, 0.25, n)
    canary = champion * (1 + worse + rng.normal(0, 0.05, n))
    return [PairedValue(stream, *both) for both in zip(canary.tolist(), champion.tolist(), strict=True)]


@pytest.mark.parametrize(("margin", "worse"), [(0.0, 0.0), (0.005, 0.005)])
def test_canaries_at_the_limit_watched_at_every_observation_are_seldom_given_back(margin: float, worse: float) -> None:
    """Identical models at margin 0, and canaries that are worse by the whole margin: the hardest that must stay."""
    policy = TrialPolicy(margin=margin)
    given_back = [judge(policy, pairs(worse, seed)).decision == "return" for seed in range(CANARIES)]
    assert np.mean(given_back) <= 0.05


def test_identical_canaries_become_champion_and_none_is_given_back_by_the_defaults() -> None:
    decisions = [judge(TrialPolicy(), pairs(0, seed, 4000)).decision for seed in range(20)]
    assert set(decisions) <= {"promote", "continue"}
    assert decisions.count("promote") >= 15


def test_a_regression_of_2_percent_is_found_within_two_ticks_of_400_documents() -> None:
    found = [judge(TrialPolicy(), pairs(0.02, seed, 800)).decision == "return" for seed in range(CANARIES)]
    assert np.mean(found) >= 0.99


def test_ticks_do_not_change_the_decision() -> None:
    """A canary found worse stays so, whatever comes later; looking in between is looking at a beginning."""
    bad, good = pairs(0.04, 3), pairs(-0.2, 4)
    looks = [judge(TrialPolicy(), (bad + good)[:upto]).decision for upto in range(50, 1000, 50)]
    first = looks.index("return")
    assert 0 < first < 10
    assert set(looks[first:]) == {"return"}


def test_one_bad_stream_gives_the_canary_back_and_is_named() -> None:
    trial = judge(TrialPolicy(), [*pairs(0, 5, 4000), *pairs(0.05, 6, stream="code")])
    assert trial.decision == "return"
    assert trial.reason.startswith("code: worse than the margin after 500")
    assert [one.worse.level for one in trial.streams] == pytest.approx([1 - 0.05 / 2, 1 - 0.05 / 6])


def test_more_is_better_where_the_policy_says_so() -> None:
    policy = TrialPolicy(higher_is_better=("web",))
    assert judge(policy, pairs(0.05, 7)).decision == "promote"
    assert judge(policy, pairs(-0.05, 7)).decision == "return"


def test_too_little_and_what_does_not_vary_decide_nothing() -> None:
    assert judge(TrialPolicy(), []) == Trial(decision="continue")
    assert judge(TrialPolicy(), pairs(0.5, 8, 99)).decision == "continue"
    assert judge(TrialPolicy(), pairs(0.5, 8, 100)).decision == "return"
    assert judge(TrialPolicy(margin=0), [PairedValue("web", 1.0, 1.0)] * 500).decision == "continue"
    assert judge(TrialPolicy(), [PairedValue("web", 1.0, 1.0)] * 500).decision == "continue"
    with pytest.raises(ValueError, match="finite"):
        judge(TrialPolicy(), [PairedValue("web", float("nan"), 1.0)])
