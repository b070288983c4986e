"""Scores of probe items from likelihoods, and their noise. Pure: the loop and the offline job call the same functions.

Bits are -log2 p of an answer after its context, summed over its tokens; per byte they are over its UTF-8 bytes, so that
models with different tokenizers can be compared. An answer is chosen by bits per byte (lm-evaluation-harness calls it
`acc_norm`), so that the shortest does not win for being short.
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
        bytes: UTF-8 bytes of the right answer.
        bits: of the right answer after the prompt.
        control_bits: of the right answer after the control.
        margin: bits per byte of the best wrong answer less those of the right one; not a number without wrong ones.
        centred: accuracy centered on chance, (correct - r) / (1 - r) with r = 1 / answers: 1 or -1 / (answers - 1); not
            a number without wrong answers. With shuffled answers (each wrong one in turn taken for the right one) a
            model is correct in (1 - correct) / (answers - 1) of them: the difference to that control is this number.
    """

    bytes: int
    bits: float
    control_bits: float
    margin: float
    centred: float

    @property
    def correct(self) -> bool:
        """True if the right answer is the likeliest; a tie is none."""
        return self.margin > 0


def requests(items: Iterable[ProbeItem]) -> list[tuple[str, str]]:
    """(context, continuation) of every likelihood that the items need, item by item."""
    return [pair for one in items for pair in pairs(one)]


def scored(items: Sequence[ProbeItem], bits: Sequence[float]) -> list[ItemScore]:
    """Return the scores of items, from the bits of their `requests` in order.

    Raises:
        TrainingError: bits are missing or not finite.
    """
    wanted = sum(2 + len(one.wrong) for one in items)
    if len(bits) != wanted or not all(map(math.isfinite, bits)):
        raise TrainingError(
            "the probes were not scored",
            found=f"{sum(map(math.isfinite, bits))} likelihoods that are numbers",
            expected=f"{wanted}",
            remedy="the run diverged: look at its loss curve, and roll back to an earlier checkpoint",
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
    """A probe at one checkpoint, in numbers without intervals.

    Attributes:
        items: how many were scored.
        bits_per_byte: of right answers, the ratio of the sums; the score that noise is measured of.
        signal: bits per byte of right answers after the control, less `bits_per_byte`: what the context is worth.
        margin: mean over items with wrong answers; not a number without any.
        accuracy: the same of accuracy centered on chance.
    """

    items: int
    bits_per_byte: float
    signal: float
    margin: float
    accuracy: float


def by_probe(items: Sequence[ProbeItem], scores: Sequence[ItemScore]) -> dict[str, ProbeScore]:
    """Every probe at one checkpoint, by name."""
    groups: dict[str, list[ItemScore]] = {}
    for one, score in zip(items, scores, strict=True):
        groups.setdefault(one.probe, []).append(score)
    return {name: summed(own) for name, own in sorted(groups.items())}


def summed(scores: Sequence[ItemScore]) -> ProbeScore:
    """One probe out of its items."""
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
    """Return the items that are not contaminated, which scores may use.

    Args:
        statuses: by probe and item (`probe_sets.statuses`); an item without one counts as undecided.
    """
    return [one for one in items if statuses.get((one.probe, one.item)) not in EXCLUDED]


def fitting(items: Sequence[ProbeItem], lengths: Sequence[int], most: int) -> list[bool]:
    """Return True for each item that fits the training length.

    Longer requests lose their beginning, which may contain the answer.

    Args:
        items: the items.
        lengths: tokens that the model reads for each of their `requests`, in order.
        most: the training length.
    """
    found, at = [], 0
    for one in items:
        last = at + 2 + len(one.wrong)
        found.append(max(lengths[at:last]) <= most)
        at = last
    return found


#: Statuses of the comparison with training text whose items are reported apart.
EXCLUDED = frozenset({"contaminated", "suspected", "common"})
