"""Control models: one that ignores context has no signal anywhere, one that only copies has it where copying is
required, and one that is confident and always wrong has a negative margin."""

import math
from collections import Counter

import pytest

from plinth.evaluation.parameters import FAMILIES, Family
from plinth.evaluation.probes import scoring
from plinth.evaluation.probes.base import PROBES, ProbeItem

#: Characters of context that the copying model looks for.
REACH = 24


def deaf(context: str, answer: str) -> float:
    """-log2 p of an answer for its length and letters alone."""
    return sum(1 + ord(letter) % 7 for letter in answer)


def copying(context: str, answer: str) -> float:
    """-log2 p of an answer: each letter follows what came before it the last times, or is one of 256."""
    bits = 0.0
    for at, letter in enumerate(answer):
        read = context + answer[:at]
        bits -= math.log2(0.1 / 256 + 0.9 * _share(read, letter))
    return bits


def _share(read: str, letter: str) -> float:
    for reach in range(min(REACH, len(read)), 2, -1):
        found: Counter[str] = Counter()
        start = read.find(read[-reach:])
        while 0 <= start < len(read) - reach:
            found[read[start + reach]] += 1
            start = read.find(read[-reach:], start + 1)
        if found:
            return found[letter] / found.total()
    return 0.0


def near(family: Family) -> list[ProbeItem]:
    """Items that are quick to read."""
    return [one for one in PROBES[family].build() if len(one.prompt) < 2000]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_reads_no_context_has_no_signal(family: Family) -> None:
    items = near(family)
    scores = scoring.scored(items, [deaf(*pair) for pair in scoring.requests(items)])
    assert {one.control_bits - one.bits for one in scores} == {0.0}


def test_a_model_that_copies_has_signal_over_every_distance_it_reaches() -> None:
    items = near("long_context")
    scores = scoring.scored(items, [copying(*pair) for pair in scoring.requests(items)])
    by_template: dict[str, list[scoring.ItemScore]] = {}
    for one, score in zip(items, scores, strict=True):
        by_template.setdefault(one.template, []).append(score)
    assert len(by_template) == 8
    for template, own in by_template.items():
        found = scoring.summed(own)
        assert found.signal > 0.5, template
        assert math.isnan(found.accuracy) or found.accuracy > 0.9, template


def test_a_model_that_knows_the_answer_is_right_and_the_opposite_is_wrong() -> None:
    items = [one for one in near("knowledge") if one.wrong]
    sure = [1.0 if answer == one.gold else 50.0 for one in items for _, answer in scoring.requests([one])]
    found = scoring.by_probe(items, scoring.scored(items, sure))["knowledge"]
    assert found.accuracy == pytest.approx(1)
    opposite = [50.0 if answer == one.gold else 1.0 for one in items for _, answer in scoring.requests([one])]
    found = scoring.by_probe(items, scoring.scored(items, opposite))["knowledge"]
    assert found.accuracy == pytest.approx(-1 / 3)
    assert found.margin < 0
