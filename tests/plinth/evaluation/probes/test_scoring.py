"""Exact scores on tiny inputs, and what holds for any."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import TrainingError
from plinth.evaluation.probes import scoring
from plinth.evaluation.probes.base import ProbeItem, from_table, to_table

PARIS = ProbeItem(
    "1", "knowledge", "knowledge", "capitals", "The capital of France is", " Paris", (" Rome", " Oslo"), "It is", "Q: "
)
FREE = ProbeItem("2", "copy", "long_context", "copy", "a b a", " b", (), "a c a")


def test_every_likelihood_is_asked_once_and_the_control_last() -> None:
    context = "Q: The capital of France is"
    assert scoring.requests([PARIS, FREE]) == [
        (context, " Paris"),
        (context, " Rome"),
        (context, " Oslo"),
        ("Q: It is", " Paris"),
        ("a b a", " b"),
        ("a c a", " b"),
    ]


def test_scores_of_an_item() -> None:
    first, second = scoring.scored([PARIS, FREE], [6, 10, 15, 18, 1, 4])
    assert (first.bytes, first.bits, first.control_bits) == (6, 6, 18)
    assert first.margin == 10 / 5 - 6 / 6
    assert first.centred == 1
    assert math.isnan(second.margin)
    assert math.isnan(second.centred)


def test_a_tie_is_not_correct() -> None:
    (one,) = scoring.scored([PARIS], [6, 5, 50, 6])
    assert one.margin == 0
    assert not one.correct
    assert one.centred == pytest.approx(-0.5)  # (0 - 1/3) / (1 - 1/3)


def test_a_probe_is_the_ratio_of_its_sums() -> None:
    other = PARIS._replace(item="3", gold=" Ulan Bator")
    scores = scoring.scored([PARIS, other, FREE], [6, 10, 15, 18, 22, 5, 5, 33, 1, 4])
    found = scoring.by_probe([PARIS, other, FREE], scores)
    assert list(found) == ["copy", "knowledge"]
    assert found["knowledge"].items == 2
    assert found["knowledge"].bits_per_byte == 28 / 17
    assert found["knowledge"].signal == (51 - 28) / 17
    assert found["knowledge"].accuracy == (1 - 0.5) / 2
    assert math.isnan(found["copy"].accuracy)


@pytest.mark.parametrize("bits", [[6, 10, 15], [6, 10, 15, 18, 1], [6, 10, math.nan, 18], [6, math.inf, 1, 18]])
def test_missing_likelihoods_are_an_error(bits: list[float]) -> None:
    with pytest.raises(TrainingError, match="could not be scored"):
        scoring.scored([PARIS], bits)


@given(st.lists(st.floats(0.1, 100), min_size=4, max_size=4))
def test_centred_accuracy_is_accuracy_less_that_with_shuffled_answers(bits: list[float]) -> None:
    (one,) = scoring.scored([PARIS], bits)
    rates = [bits[0] / 6, bits[1] / 5, bits[2] / 5]
    if len(set(rates)) < 3:
        return
    shuffled = [rates[taken] < min(rates[:taken] + rates[taken + 1 :]) for taken in (1, 2)]
    assert one.centred == pytest.approx(one.correct - sum(shuffled) / 2)


def test_items_held_by_training_text_are_left_out() -> None:
    statuses = {("knowledge", "1"): "contaminated", ("copy", "2"): "undecided"}
    assert scoring.trusted([PARIS, FREE], statuses) == [FREE]


def test_items_survive_a_table() -> None:
    assert from_table(to_table([PARIS, FREE])) == [PARIS, FREE]
    assert to_table([PARIS])["text"].to_pylist() == ["The capital of France is Paris\n Rome\n Oslo"]
