"""Prices: exact quotients, ends of intervals in their places, and no price of nothing."""

import pytest

from plinth.evaluation import statistics
from plinth_lab.source_value.verdict import PriceRange, of_gain, of_tokens, priced, ranged


def test_ends_change_places() -> None:
    assert ranged(1000, 20, 10, 40) == PriceRange(value=50, low=25, high=100)
    assert ranged(0, 20, 10, 40) == PriceRange(value=0, low=0, high=0)


def test_what_may_be_nothing_has_no_bound() -> None:
    assert ranged(1000, 20, 0, 40) == PriceRange(value=50, low=25, high=None)
    assert ranged(1000, 0, 0, 0) == PriceRange(value=None, low=None, high=None)
    assert priced(ranged(1000, 20, 0, 40), "EUR") == "50 EUR (25 to no bound)"
    assert priced(ranged(1000, 0, 0, 0), "EUR") == "no bound"
    assert priced(ranged(0, 20, 10, 40), "EUR") == "0 EUR"
    assert priced(ranged(1000, 20, 10, 40), "EUR", 0.001) == "0.05 EUR (0.025 to 0.1)"
    assert priced(None, "EUR") == "–"


def test_a_gain_has_a_price_where_it_excludes_0() -> None:
    gain = statistics.paired_difference([1.1, 1.2, 1.3, 1.25], [1.0, 1.0, 1.1, 1.0])
    price = of_gain(300, gain)
    assert price is not None
    assert (price.value, price.low, price.high) == (300 / gain.value, 300 / gain.high, 300 / gain.low)
    assert of_gain(300, statistics.paired_difference([1.0, 1.2, 0.7], [1.1, 1.0, 0.8])) is None
    assert of_gain(300, statistics.paired_difference([1.0, 1.0, 1.1, 1.0], [1.1, 1.2, 1.3, 1.25])) is None
    assert of_gain(300, None) is None


def test_effective_tokens_are_the_product_of_their_factors() -> None:
    factors = {"nominal_tokens": 1e6, "rho_parse": 0.9, "rho_quality": 0.5, "r_dup": 0.2}
    tokens = {"value": 360_000.0, "low": 300_000.0, "high": 450_000.0}
    found = of_tokens(900, {"effective": {"factors": factors, "tokens": tokens}})
    assert found.nominal_tokens * found.rho_parse * found.rho_quality * (1 - found.r_dup) == pytest.approx(found.tokens)
    assert found.per_token == PriceRange(value=900 / 360_000, low=900 / 450_000, high=900 / 300_000)
    nothing = of_tokens(900, {"effective": {"factors": factors | {"rho_quality": 0.0}, "tokens": {}}})
    assert (nothing.tokens, nothing.per_token.value, nothing.per_token.high) == (0.0, None, None)
