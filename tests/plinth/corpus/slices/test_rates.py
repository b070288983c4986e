"""Rates and intervals by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.slices.rates import LabelledOutcome, by_slice, table, wilson


def test_wilson_of_published_examples() -> None:
    low, high = wilson(81, 263)  # Newcombe 1998, table I: 0.2553 to 0.3662
    assert (low, high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))
    low, high = wilson(0, 20)
    assert (low, high) == (0.0, pytest.approx(0.1611, abs=5e-5))
    with pytest.raises(ValueError, match="trials"):
        wilson(0, 0)


@given(st.integers(1, 500), st.data())
def test_an_interval_holds_its_share(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    low, high = wilson(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1
    other_low, other_high = wilson(trials - hits, trials)
    assert (1 - other_high, 1 - other_low) == (pytest.approx(low), pytest.approx(high))


def test_rates_by_slice() -> None:
    outcomes = [
        LabelledOutcome("law", True, True, 10),
        LabelledOutcome("law", True, False, 10),
        LabelledOutcome("law", False, True, 30),
        LabelledOutcome("law", False, False, 10),
        LabelledOutcome("code", False, False, 100),
    ]
    made = by_slice(outcomes)
    assert list(made) == ["all", "code", "law"]
    assert (made["law"]["recall"], made["law"]["false_positive"], made["law"]["over_removal"]) == (0.5, 0.5, 0.75)
    assert made["code"]["recall"] is None
    assert made["all"]["over_removal"] == pytest.approx(30 / 140, abs=1e-6)
    assert (made["all"]["good"], made["all"]["bad"]) == (3, 2)
    assert table({"slices": made})[1][:4] == ["code", 1, 0, "-"]
    assert by_slice([]) == {}
