"""Effects of the arms of an experiment: each arm against the base at each size, paired by seed and document.

Every difference is arm minus base. Whether an effect was found follows from the interval over seeds and documents and
from p, corrected by Holm over the arms of a size: over wholes, and over all slices. With one seed nothing is found:
training the same recipe again could change more than what is seen. No run is left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, RequestError
from plinth.evaluation import statistics
from plinth.evaluation.statistics import DOCUMENTS_ONLY, Estimate
from plinth.experiment.scores import ArmScores
from plinth.records import Frozen

__all__ = ["ARM", "BASE", "NONE", "WHOLE", "ArmScores", "Effect", "by_run", "effects"]

WHOLE = "all"
ARM, BASE, NONE = "arm", "base", ""
LEVEL = 0.95
#: Slices with fewer documents have no line.
FEWEST_DOCUMENTS = 10

#: Runs of an arm at a size, by seed.
Runs = Mapping[int, ArmScores]


class Effect(Frozen):
    """An arm against the base at one size, on the whole test text (`all`) or on a slice of it.

    `seeds` are those that both finished, and the pairs; `lacking` names every run of either that gave no scores, with
    its reason, and seeds that one of the two lacks. Without a pair there is no difference. `adjusted` is p by Holm;
    `better` is `arm`, `base`, or empty; `smallest` is the effect that four of five such experiments would have found;
    `finding` says it in words.
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
    """Effects of every arm but the base, by size as they first come: the whole text, then its slices by name.

    Args:
        scores: of all runs, those that failed too.
        base: the arm that the others are compared with.
        measure, fewer_is_better: what `bits` are.
        seed: of the intervals' draws.

    Raises:
        RequestError: no run is of the base.
        IntegrityError: two runs are of one arm, size and seed, or runs were scored on different text.
    """
    if base not in {one.arm for one in scores}:
        raise RequestError(
            "the base of the experiment has no run", found=", ".join(sorted({one.arm for one in scores})) or "no run",
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
    """Runs by size, arm and seed, in the order in which sizes and arms first come.

    Raises:
        IntegrityError: two runs are of one arm, size and seed.
    """
    found: dict[str, dict[str, dict[int, ArmScores]]] = {}
    for one in scores:
        runs = found.setdefault(one.size, {}).setdefault(one.arm, {})
        if one.seed in runs:
            raise IntegrityError("an experiment has one run twice", found=one.name)
        runs[one.seed] = one
    return found


def require_same_text(scores: Sequence[ArmScores]) -> None:
    """Refuse runs that were not scored on the same documents, in the same order, of the same length and slice.

    Raises:
        IntegrityError: as said, naming the two runs.
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
    """Lines of an arm, not corrected yet; the measure is set by the caller."""
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
    """The whole, then slices that are large enough and not the whole, by name, as numbers of documents."""
    yield WHOLE, np.arange(len(slices))
    for name in np.unique(slices).tolist():
        rows = np.flatnonzero(slices == name)
        if FEWEST_DOCUMENTS <= len(rows) < len(slices):
            yield str(name), rows


def lacking(arm: str, base: str, ours: Runs, theirs: Runs) -> Iterator[str]:
    """Every run of either arm that gave no scores, with its reason, and seeds that one of the two lacks."""
    for at in sorted(set(ours) | set(theirs)):
        for name, runs in ((arm, ours), (base, theirs)):
            if at not in runs:
                yield f"{name}, seed {at}: no run"
            elif runs[at].trouble:
                yield f"{name}, seed {at}: {runs[at].trouble}"


def _corrected(lines: Sequence[Effect]) -> list[Effect]:
    """Lines of one size with Holm's p over its wholes and over its slices, and what may be said of them."""
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
    """Whether the interval is of other seeds and other documents: only then does a claim follow."""
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
        return "not known: nothing varies, or too few documents"
    if not _testable(line):
        return f"seeds too few: training noise is not known; over documents alone {gap.value:+.3g} ({_interval(gap)})"
    if gap.excludes():
        return f"undecided among so many arms or slices: {gap.value:+.3g} ({_interval(gap)})"
    seen = "" if line.smallest is None else f"; {line.smallest:.2g} would have been seen"
    return f"no difference larger than {max(abs(gap.low), abs(gap.high)):.2g} ({gap.level:.0%}{seen})"


def _interval(gap: Estimate, size: bool = False) -> str:
    """The interval; of the size of the effect, a decrease by 0.02 is `95%: 0.01 to 0.03`."""
    low, high = (-gap.high, -gap.low) if size and gap.value < 0 else (gap.low, gap.high)
    return f"{gap.level:.0%}: {low:.3g} to {high:.3g}"
