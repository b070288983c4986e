"""Which arms of an experiment cannot win any more: a test that may be looked at after every seed.

An arm is compared with every other on the same test text, a difference a seed. It stops where the mixture SPRT
(`statistics.Sequential`) rules out that it is at least as good as one of them, at 5% over the rivals (Bonferroni): the
truly best arm is stopped in at most 5% of experiments, however often one looks. With A arms that is a level of
5% / (A - 1) for each pair. Arms differ by many standard deviations of training noise or not at all, hence `SHARPEST`.

Seeds are what varies: the decision is about this test text. Two seeds never suffice, because the largest likelihood
ratio that two can give is (1 + 2 SHARPEST^2)^(1/2), 7. Three suffice for up to four arms, four for up to 51.

Of 200 simulated experiments of five arms and eight seeds, looked at after every seed, the best arm was stopped in none
where the others are worse by 1 to 20 standard deviations of training noise, and in one (0.5%) where all are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plinth.evaluation.statistics import Estimate, Sequential
from plinth.experiment.effects import by_run, require_same_text
from plinth.experiment.scores import ArmScores
from plinth.records import Frozen

ALPHA = 0.05
FEWEST_SEEDS = 2
#: Effects, in standard deviations of the difference of two runs, that the test is sharpest for.
SHARPEST = 5.0


class StopDecision(Frozen):
    """Whether an arm stops at a size. `rival` is the arm by which it is beaten, or comes closest to it.

    `difference` is arm minus rival over `seeds` pairs, with an interval that holds at all looks; `p` is of "the arm is
    at least as good as every rival", at all looks, corrected for the rivals. `saved_runs` are planned and need not
    start.
    """

    size: str
    arm: str
    stop: bool
    rival: str = ""
    seeds: int = 0
    difference: Estimate | None = None
    p: float | None = None
    saved_runs: int = 0
    reason: str


def stopping(
    scores: Sequence[ArmScores], base: str, seeds: Sequence[int], *, fewer_is_better: bool = True
) -> list[StopDecision]:
    """A decision for every arm but the base, which all others are read against, at every size.

    Args:
        scores: of the runs so far, those that failed too.
        base: the arm that never stops.
        seeds: planned for every arm and size.
        fewer_is_better: as of bits.

    Raises:
        IntegrityError: two runs are one, or were scored on different text.
    """
    require_same_text(scores)
    found = []
    for size, arms in by_run(scores).items():
        means = {arm: _means(runs) for arm, runs in arms.items()}
        for arm, runs in arms.items():
            if arm != base:
                found.append(_decision(size, arm, means, len(set(seeds) - set(runs)), 1 if fewer_is_better else -1))
    return found


def _means(runs: Mapping[int, ArmScores]) -> dict[int, float]:
    """Bits over bytes of every run that can be used, by seed."""
    usable = {seed: one for seed, one in runs.items() if not one.trouble}
    return {seed: float(one.bits.sum() / one.bytes.sum()) for seed, one in usable.items()}


def _decision(size: str, arm: str, means: Mapping[str, Mapping[int, float]], left: int, sign: int) -> StopDecision:
    rivals = [other for other in means if other != arm]
    level = 1 - ALPHA / max(1, len(rivals))
    tests = {rival: _test(means[arm], means[rival], level, sign) for rival in rivals}
    tests = {rival: test for rival, test in tests.items() if test.n >= FEWEST_SEEDS}
    if not tests:
        most = len(means[arm])
        reason = f"seeds too few: training noise is not known from fewer than {FEWEST_SEEDS} pairs of runs"
        return StopDecision(size=size, arm=arm, stop=False, seeds=most, reason=reason)
    rival = min(tests, key=lambda name: (tests[name].above, -tests[name].mean))
    test = tests[rival]
    p = min(1.0, test.above * len(rivals))
    worse = f"{abs(test.mean):.3g} {'worse' if test.mean > 0 else 'better'} than {rival} over {test.n} seeds"
    reason = f"{worse}; p = {p:.3g} at all looks, " + (f"below {ALPHA:g}" if test.exceeded else f"not below {ALPHA:g}")
    gap = test.estimate if sign > 0 else _turned(test.estimate)
    return StopDecision(
        size=size, arm=arm, stop=test.exceeded, rival=rival, seeds=test.n, difference=gap, p=p,
        saved_runs=left if test.exceeded else 0, reason=reason,
    )  # fmt: skip


def _test(ours: Mapping[int, float], theirs: Mapping[int, float], level: float, sign: int) -> Sequential:
    """Looks after every seed that both have, in their order; above 0 is worse."""
    gaps = [sign * (ours[seed] - theirs[seed]) for seed in sorted(set(ours) & set(theirs))]
    return Sequential(effect=SHARPEST, level=level).add(gaps)


def _turned(gap: Estimate) -> Estimate:
    return gap.model_copy(update={"value": -gap.value, "low": -gap.high, "high": -gap.low})
