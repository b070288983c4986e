"""Effects of the arms of an experiment, from the scores of its runs, and detection of arms that can no longer win.

D  documents of the test text

*Effects*: each arm is compared with the base at each size, paired by seed and document; every difference is arm minus
base. An effect is significant if its interval over seeds and documents excludes 0, and if its p-value is small after
Holm correction. The correction covers the arms at a size, separately for the whole text and for all slices. With one
seed no effect is significant, because another training run of the same recipe could change the score by more. Every run
that is left out is reported.

*Stopping*: an arm is compared with every other arm on the same test text, with one difference per seed. The arm is
stopped if the mixture SPRT (`statistics.Sequential`) shows that it is worse than a rival, at 5% over all rivals
(Bonferroni). The truly best arm is stopped in at most 5% of experiments, at any number of interim analyses. With A
arms, the level for each pair is 5% / (A - 1). `SHARPEST` is large because two arms either differ by many standard
deviations of training noise or do not differ at all.

The decision applies to this test text only, because only seeds vary. Two seeds are never enough, because the largest
likelihood ratio with two seeds is (1 + 2 SHARPEST^2)^(1/2), about 7. Three seeds are enough for up to four arms, four
seeds for up to 51 arms.

In a simulation, 200 experiments with five arms and eight seeds were analyzed after every seed. When the other arms were
worse by 1 to 20 standard deviations of training noise, the best arm was never stopped. When all arms were alike, the
best arm was stopped in one experiment (0.5%).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, RequestError
from plinth.evaluation import statistics
from plinth.evaluation.statistics import DOCUMENTS_ONLY, Estimate, Sequential
from plinth.records import Frozen

Floats = NDArray[np.float64]
Status = Literal["finished", "failed", "diverged", "stopped"]

FINISHED: Status = "finished"


@dataclass(frozen=True)
class ArmScores:
    """Scores and cost of one run: an arm at a size with a seed.

    Args:
        arm, size, seed: names and number that identify the run.
        status: `finished`, or the kind of failure, with the cause in `reason`.
        documents: identifiers of the test documents, 32 hexadecimal digits each, [D].
        slices: the slice of each document, [D].
        bytes: bytes of each document, [D], or 1 if a score is averaged instead of divided by length.
        bits: loss of each document under the model in bits, [D]. Empty if the run did not finish.
        tokens, flops, seconds: cost of the run, in tokens, FLOPs and rank-seconds.
        curve: points of optimizer step, tokens so far and bits per byte.

    Raises:
        IntegrityError: columns have different lengths, a document occurs twice, or a document's size is not above 0.
    """

    arm: str
    size: str
    seed: int
    status: Status
    reason: str = ""
    documents: NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    slices: NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    bytes: Floats = field(default_factory=lambda: np.empty(0))
    bits: Floats = field(default_factory=lambda: np.empty(0))
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    curve: Sequence[tuple[int, int, float]] = ()

    def __post_init__(self) -> None:
        columns = {"documents": self.documents, "slices": self.slices, "bytes": self.bytes}
        if self.status == FINISHED or len(self.bits):
            columns["bits"] = self.bits
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise IntegrityError(
                f"the scores of {self.name} have columns of different lengths",
                found=", ".join(f"{count} {name}" for name, count in lengths.items()),
                expected="columns of equal length",
            )
        if len(np.unique(self.documents)) < len(self.documents):
            raise IntegrityError(f"the scores of {self.name} have a duplicate document")
        if len(self.bytes) and not (np.isfinite(self.bytes) & (self.bytes > 0)).all():
            raise IntegrityError(f"the scores of {self.name} have a document without bytes", expected="at least 1 each")

    @property
    def name(self) -> str:
        """Description of the run: arm, size and seed."""
        return f"arm {self.arm}, size {self.size}, seed {self.seed}"

    @property
    def trouble(self) -> str:
        """Reason why the scores of this run cannot be used, or an empty string.

        For example, a score may not be a finite number.
        """
        if self.status != FINISHED:
            return f"{self.status}: {self.reason}" if self.reason else self.status
        if not len(self.bits):
            return "failed: no document was scored"
        bad = int((~np.isfinite(self.bits)).sum())
        return f"diverged: the loss of {bad} of {len(self.bits)} documents is not a number" if bad else ""


WHOLE = "all"
ARM, BASE, NONE = "arm", "base", ""
LEVEL = 0.95
#: Minimum number of documents per reported slice.
FEWEST_DOCUMENTS = 10

#: Runs of an arm at a size, by seed.
Runs = Mapping[int, ArmScores]


class Effect(Frozen):
    """Effect of an arm compared with the base at one size, on the whole test text (`all`) or on a slice of it.

    `seeds` are the seeds that both arms finished; each seed gives one pair. `lacking` lists the runs of the two arms
    without scores, with the reason, and the seeds that only one arm has. If there is no pair, `difference` is None.
    `adjusted` is the Holm-corrected p-value; `better` is `arm`, `base`, or empty. `smallest` is the effect that an
    experiment of this kind detects with a probability of 80%. `finding` is the result as a sentence.
    """

    arm: str
    base: str
    size: str
    slice: str = WHOLE
    measure: str
    fewer_is_better: bool
    seeds: tuple[int, ...] = ()
    documents: int = 0
    arm_value: float | None = None
    base_value: float | None = None
    difference: Estimate | None = None
    adjusted: float | None = None
    better: str = NONE
    smallest: float | None = None
    lacking: tuple[str, ...] = ()
    finding: str = ""


def effects(
    scores: Sequence[ArmScores],
    base: str,
    *,
    measure: str = "bits per byte",
    fewer_is_better: bool = True,
    seed: int = 0,
) -> list[Effect]:
    """Return the effects of every arm except the base. Sizes are in the order of their first appearance.

    For each arm and size, the effect on the whole text comes first, then the effects on slices by name.

    Args:
        scores: scores of all runs, including failed runs.
        base: the arm that the others are compared with.
        measure, fewer_is_better: name and direction of the values in `bits`.
        seed: random seed for the bootstrap.

    Raises:
        RequestError: the base has no run.
        IntegrityError: two runs have the same arm, size and seed, or runs were scored on different text.
    """
    if base not in {one.arm for one in scores}:
        raise RequestError(
            "the base arm has no run", found=", ".join(sorted({one.arm for one in scores})) or "no run",
            expected=f"runs of {base}",
        )  # fmt: skip
    require_same_text(scores)
    every = dict.fromkeys(one.arm for one in scores if one.arm != base)
    lines: list[Effect] = []
    for size, arms in by_run(scores).items():
        lines += _corrected([
            line.model_copy(update={"measure": measure, "fewer_is_better": fewer_is_better})
            for arm in every
            for line in _of_arm(arm, base, size, arms.get(arm, {}), arms.get(base, {}), seed)
        ])  # fmt: skip
    return lines


def by_run(scores: Sequence[ArmScores]) -> dict[str, dict[str, dict[int, ArmScores]]]:
    """Group runs by size, arm and seed. Sizes and arms are in the order of their first appearance.

    Raises:
        IntegrityError: two runs have the same arm, size and seed.
    """
    found: dict[str, dict[str, dict[int, ArmScores]]] = {}
    for one in scores:
        runs = found.setdefault(one.size, {}).setdefault(one.arm, {})
        if one.seed in runs:
            raise IntegrityError("an experiment has a duplicate run", found=one.name)
        runs[one.seed] = one
    return found


def require_same_text(scores: Sequence[ArmScores]) -> None:
    """Require that all runs were scored on the same documents, in the same order, with the same lengths and slices.

    Raises:
        IntegrityError: two runs differ; the message names them.
    """
    scored = [one for one in scores if len(one.bits)]
    for one in scored[1:]:
        for column in ("documents", "bytes", "slices"):
            if not np.array_equal(getattr(scored[0], column), getattr(one, column)):
                raise IntegrityError(
                    f"two runs were scored on different text: {scored[0].name}, and {one.name}",
                    found=f"other {column}: {len(scored[0].documents)} and {len(one.documents)} documents",
                    expected="the same documents in the same order",
                    remedy="score every arm on the test text that was fixed before any arm ran",
                )


def _of_arm(arm: str, base: str, size: str, ours: Runs, theirs: Runs, seed: int) -> Iterator[Effect]:
    """Yield the effects of one arm. The caller sets the measure and corrects the p-values."""
    without = tuple(lacking(arm, base, ours, theirs))
    pairs = [at for at in sorted(set(ours) & set(theirs)) if not (ours[at].trouble or theirs[at].trouble)]
    common = {"arm": arm, "base": base, "size": size, "measure": "", "fewer_is_better": True, "lacking": without}
    if not pairs:
        yield Effect.model_validate(common)
        return
    a, b = (np.stack([runs[at].bits for at in pairs]) for runs in (ours, theirs))
    first = ours[pairs[0]]
    for label, rows in _slices(first.slices):
        below = first.bytes[rows]
        total = len(pairs) * float(below.sum())
        yield Effect.model_validate(
            common | {
                "slice": label, "seeds": tuple(pairs), "documents": len(below),
                "arm_value": float(a[:, rows].sum()) / total, "base_value": float(b[:, rows].sum()) / total,
                "difference": statistics.crossed_difference(a[:, rows], b[:, rows], below, seed=seed, level=LEVEL),
            }
        )  # fmt: skip


def _slices(slices: NDArray[np.str_]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield name and document indices of each slice with enough test documents. The whole text comes first."""
    yield WHOLE, np.arange(len(slices))
    for name in np.unique(slices).tolist():
        rows = np.flatnonzero(slices == name)
        if FEWEST_DOCUMENTS <= len(rows) < len(slices):
            yield str(name), rows


def lacking(arm: str, base: str, ours: Runs, theirs: Runs) -> Iterator[str]:
    """Yield a line for every run of two arms that has no scores, and for every seed that only one of the arms has."""
    for at in sorted(set(ours) | set(theirs)):
        for name, runs in ((arm, ours), (base, theirs)):
            if at not in runs:
                yield f"{name}, seed {at}: no run"
            elif runs[at].trouble:
                yield f"{name}, seed {at}: {runs[at].trouble}"


def _corrected(lines: Sequence[Effect]) -> list[Effect]:
    """Return the effects at one size with Holm-corrected p-values and findings.

    The p-values for the whole text and for the slices are corrected separately.
    """
    found = list(lines)
    for whole in (True, False):
        family = [i for i, line in enumerate(found) if (line.slice == WHOLE) == whole and _testable(line)]
        if family:
            adjusted = statistics.holm([_p(found[i]) for i in family]).tolist()
            verdicts = [_better(found[i], p) for i, p in zip(family, adjusted, strict=True)]
            others = max(1, verdicts.count(NONE))  # Holm tests what is not found at alpha over the number not found
            for i, p, verdict in zip(family, adjusted, verdicts, strict=True):
                gap = found[i].difference
                smallest = gap.smallest_effect(tests=others) if gap else None
                found[i] = found[i].model_copy(update={"adjusted": p, "better": verdict, "smallest": smallest})
    return [line.model_copy(update={"finding": _finding(line)}) for line in found]


def _testable(line: Effect) -> bool:
    """Return True if the interval covers both seeds and documents. Only then can an effect be significant."""
    return line.difference is not None and DOCUMENTS_ONLY not in line.difference.flags


def _p(line: Effect) -> float:
    return 1.0 if line.difference is None or line.difference.p is None else line.difference.p


def _better(line: Effect, p: float) -> str:
    gap = line.difference
    if gap is None or not gap.excludes() or p >= 1 - LEVEL:
        return NONE
    return ARM if (gap.value < 0) == line.fewer_is_better else BASE


def _finding(line: Effect) -> str:
    gap = line.difference
    if gap is None:
        return "not measured: " + ("; ".join(line.lacking) or "no run")
    if line.better != NONE:
        return f"{'better' if line.better == ARM else 'worse'} by {abs(gap.value):.3g} ({_interval(gap, size=True)})"
    if gap.low == gap.high:
        return "effect unknown: no variation, or too few documents"
    if not _testable(line):
        return (
            f"too few seeds to estimate training noise; the interval covers documents only: {gap.value:+.3g} "
            f"({_interval(gap)})"
        )
    if gap.excludes():
        return f"not significant after correction: {gap.value:+.3g} ({_interval(gap)})"
    seen = "" if line.smallest is None else f"; minimum detectable effect {line.smallest:.2g}"
    return f"no difference larger than {max(abs(gap.low), abs(gap.high)):.2g} ({gap.level:.0%}{seen})"


def _interval(gap: Estimate, size: bool = False) -> str:
    """Format the interval of an effect.

    Args:
        size: True to show the size of the effect without its sign: a decrease by 0.02 has `95%: 0.01 to 0.03`.
    """
    low, high = (-gap.high, -gap.low) if size and gap.value < 0 else (gap.low, gap.high)
    return f"{gap.level:.0%}: {low:.3g} to {high:.3g}"


ALPHA = 0.05
FEWEST_SEEDS = 2
#: Effect for which the test is most powerful, in standard deviations of the difference of two runs.
SHARPEST = 5.0


class StopDecision(Frozen):
    """Decision to stop or continue an arm at a size. `rival` is the arm that beats it or comes closest to beating it.

    `difference` is arm minus rival over `seeds` pairs, with an always-valid interval. `p` is the p-value of "the arm is
    at least as good as every rival", always valid and corrected for the number of rivals. `saved_runs` is the number of
    planned runs that need not start.
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
    """Return a decision to stop or continue for every arm except the base, at every size.

    The base is never stopped, because all other arms are compared with it.

    Args:
        scores: scores of the runs so far, including failed runs.
        base: the arm that is never stopped.
        seeds: planned seeds of each arm and size.
        fewer_is_better: True if lower scores are better, as for bits.

    Raises:
        IntegrityError: two runs have the same arm, size and seed, or runs were scored on different text.
    """
    require_same_text(scores)
    found = []
    for size, arms in by_run(scores).items():
        means = {arm: means_of(runs) for arm, runs in arms.items()}
        for arm, runs in arms.items():
            if arm != base:
                found.append(_decision(size, arm, means, len(set(seeds) - set(runs)), 1 if fewer_is_better else -1))
    return found


def means_of(runs: Mapping[int, ArmScores]) -> dict[int, float]:
    """Return the bits per byte of every run with usable scores, by seed."""
    usable = {seed: one for seed, one in runs.items() if not one.trouble}
    return {seed: float(one.bits.sum() / one.bytes.sum()) for seed, one in usable.items()}


def _decision(size: str, arm: str, means: Mapping[str, Mapping[int, float]], left: int, sign: int) -> StopDecision:
    rivals = [other for other in means if other != arm]
    level = 1 - ALPHA / max(1, len(rivals))
    tests = {rival: _test(means[arm], means[rival], level, sign) for rival in rivals}
    tests = {rival: test for rival, test in tests.items() if test.n >= FEWEST_SEEDS}
    if not tests:
        most = len(means[arm])
        reason = f"too few seeds: training noise needs at least {FEWEST_SEEDS} pairs of runs"
        return StopDecision(size=size, arm=arm, stop=False, seeds=most, reason=reason)
    rival = min(tests, key=lambda name: (tests[name].above, -tests[name].mean))
    test = tests[rival]
    p = min(1.0, test.above * len(rivals))
    worse = f"{abs(test.mean):.3g} {'worse' if test.mean > 0 else 'better'} than {rival} over {test.n} seeds"
    reason = f"{worse}; anytime-valid p = {p:.3g}, " + (f"below {ALPHA:g}" if test.exceeded else f"not below {ALPHA:g}")
    gap = test.estimate if sign > 0 else _turned(test.estimate)
    return StopDecision(
        size=size, arm=arm, stop=test.exceeded, rival=rival, seeds=test.n, difference=gap, p=p,
        saved_runs=left if test.exceeded else 0, reason=reason,
    )  # fmt: skip


def _test(ours: Mapping[int, float], theirs: Mapping[int, float], level: float, sign: int) -> Sequential:
    """Run the sequential test over all seeds that both arms have, in order.

    If the differences are above 0, the first arm is worse.
    """
    gaps = [sign * (ours[seed] - theirs[seed]) for seed in sorted(set(ours) & set(theirs))]
    return Sequential(effect=SHARPEST, level=level).add(gaps)


def _turned(gap: Estimate) -> Estimate:
    return gap.model_copy(update={"value": -gap.value, "low": -gap.high, "high": -gap.low})
