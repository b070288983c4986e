"""Scores of probe items from likelihoods, and their noise. The functions are pure; the training loop and the evaluation
use them.

Bits are -log2 p of an answer after its context, summed over its tokens. Bits per byte are these bits divided by the
answer's UTF-8 bytes, so that models with different tokenizers are comparable. The answer with the fewest bits per byte
is chosen (`acc_norm` in lm-evaluation-harness), which gives short answers no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from plinth.errors import TrainingError
from plinth.evaluation.probes.base import ProbeItem, pairs


class ItemScore(NamedTuple):
    """Scores of an item.

    Attributes:
        bytes: UTF-8 bytes of the correct answer.
        bits: bits of the correct answer after the prompt.
        control_bits: bits of the correct answer after the control.
        margin: bits per byte of the best wrong answer minus those of the correct answer; NaN without wrong answers.
        centred: accuracy centered on chance, (correct - r) / (1 - r) with r = 1 / answers: 1 or -1 / (answers - 1); NaN
            without wrong answers. If each wrong answer in turn is taken as correct, the model's accuracy is
            (1 - correct) / (answers - 1). `centred` is the difference from this control.
    """

    bytes: int
    bits: float
    control_bits: float
    margin: float
    centred: float

    @property
    def correct(self) -> bool:
        """True if the correct answer is the most probable one; False on a tie."""
        return self.margin > 0


def requests(items: Iterable[ProbeItem]) -> list[tuple[str, str]]:
    """Return (context, continuation) for every likelihood that the items need, item by item."""
    return [pair for one in items for pair in pairs(one)]


def scored(items: Sequence[ProbeItem], bits: Sequence[float]) -> list[ItemScore]:
    """Return the scores of items, from the bits of their `requests` in the same order.

    Raises:
        TrainingError: bits are missing or not finite.
    """
    wanted = sum(2 + len(one.wrong) for one in items)
    if len(bits) != wanted or not all(map(math.isfinite, bits)):
        raise TrainingError(
            "the probes could not be scored",
            found=f"{sum(map(math.isfinite, bits))} finite likelihoods",
            expected=f"{wanted}",
            remedy="the run diverged: check its loss curve and roll back to an earlier checkpoint",
        )
    found, at = [], 0
    for one in items:
        last = at + 2 + len(one.wrong)
        found.append(_score(one, [float(value) for value in bits[at:last]]))
        at = last
    return found


def _score(item: ProbeItem, bits: Sequence[float]) -> ItemScore:
    gold, *wrong, control = bits
    size = len(item.gold.encode())
    if not wrong:
        return ItemScore(size, gold, control, math.nan, math.nan)
    rates = [value / len(answer.encode()) for value, answer in zip(wrong, item.wrong, strict=True)]
    margin = min(rates) - gold / size
    centred = ((margin > 0) - item.chance) / (1 - item.chance)
    return ItemScore(size, gold, control, margin, centred)


class ProbeScore(NamedTuple):
    """Scores of a probe at one checkpoint, without intervals.

    Attributes:
        items: number of scored items.
        bits_per_byte: bits per byte of correct answers, a ratio of sums; a probe's noise is measured on this score.
        signal: bits per byte of correct answers after the control prompt, minus `bits_per_byte`.
        margin: mean margin over items with wrong answers; NaN if there are no such items.
        accuracy: mean accuracy centered on chance, over the same items.
    """

    items: int
    bits_per_byte: float
    signal: float
    margin: float
    accuracy: float


def by_probe(items: Sequence[ProbeItem], scores: Sequence[ItemScore]) -> dict[str, ProbeScore]:
    """Return the scores of every probe at one checkpoint, by probe name."""
    groups: dict[str, list[ItemScore]] = {}
    for one, score in zip(items, scores, strict=True):
        groups.setdefault(one.probe, []).append(score)
    return {name: summed(own) for name, own in sorted(groups.items())}


def summed(scores: Sequence[ItemScore]) -> ProbeScore:
    """Combine the scores of a probe's items."""
    size = sum(one.bytes for one in scores)
    bits, control = (
        math.fsum(values) for values in zip(*((one.bits, one.control_bits) for one in scores), strict=True)
    )
    chosen = [one for one in scores if not math.isnan(one.margin)]
    margin, accuracy = (_mean([getattr(one, name) for one in chosen]) for name in ("margin", "centred"))
    return ProbeScore(len(scores), bits / size, (control - bits) / size, margin, accuracy)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def trusted(items: Iterable[ProbeItem], statuses: Mapping[tuple[str, str], str]) -> list[ProbeItem]:
    """Return the items that are included in scores: all except contaminated, suspected and common items.

    Args:
        statuses: status by probe and item (`probe_sets.statuses`); default: undecided.
    """
    return [one for one in items if statuses.get((one.probe, one.item)) not in EXCLUDED]


def fitting(items: Sequence[ProbeItem], lengths: Sequence[int], most: int) -> list[bool]:
    """Return one flag per item: True if the item fits into the training length.

    The model would see longer requests without their beginning, which may contain the answer.

    Args:
        items: the items.
        lengths: number of tokens of each of the items' `requests`, in order.
        most: the training length.
    """
    found, at = [], 0
    for one in items:
        last = at + 2 + len(one.wrong)
        found.append(max(lengths[at:last]) <= most)
        at = last
    return found


#: Contamination statuses whose items are reported apart.
EXCLUDED = frozenset({"contaminated", "suspected", "common"})
