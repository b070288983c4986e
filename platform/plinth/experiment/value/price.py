"""What a source costs for each effective token, and for each bit per byte that it gains.

    price per effective token   P / (N rho_parse rho_quality (1 - r_dup)), N the tokens of all its text
    price per bit per byte      P / gain

Both fall as what is bought rises, so that the ends of an interval change places. Padding (r_pad) is of a run, not of a
source, and is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.evaluation.statistics import Estimate
from plinth.records import Frozen


class PriceRange(Frozen):
    """A price with its interval; None where it has no bound, because nothing may be bought."""

    value: float | None
    low: float | None
    high: float | None


class TokenPrice(Frozen):
    """Effective tokens of a whole source, what they are made of, and their price.

    Args:
        nominal_tokens: of all its text, also what does not parse.
        rho_parse, rho_quality, r_dup: as of D_eff.
        tokens, low, high: effective tokens with their interval.
        per_token: the price of one.
    """

    nominal_tokens: float
    rho_parse: float
    rho_quality: float
    r_dup: float
    tokens: float
    low: float
    high: float
    per_token: PriceRange


def ranged(price: float, value: float, low: float, high: float) -> PriceRange:
    """The price of one of what there are `value` of, `low` to `high`; amounts of 0 or less have no price."""
    cheap, middle, dear = (price / one if one > 0 else None for one in (high, value, low))
    return PriceRange(value=middle, low=cheap, high=dear)


def of_gain(price: float, gain: Estimate | None) -> PriceRange | None:
    """Price of a bit per byte gained; None where the gain could be none."""
    if gain is None or not gain.excludes() or gain.value <= 0:
        return None
    return ranged(price, gain.value, gain.low, gain.high)


def of_tokens(price: float, found: Mapping[str, Any]) -> TokenPrice:
    """Price of an effective token by what a sample showed (`value.assess`)."""
    factors, tokens = found["effective"]["factors"], found["effective"]["tokens"]
    ends = {name: float(tokens.get(name, 0.0)) for name in ("value", "low", "high")}
    return TokenPrice(
        **{name: factors[name] for name in ("nominal_tokens", "rho_parse", "rho_quality", "r_dup")},
        tokens=ends["value"], low=ends["low"], high=ends["high"], per_token=ranged(price, **ends),
    )  # fmt: skip


def amount(money: float) -> str:
    """Money in four digits, or whole where it has more."""
    return f"{money:,.0f}" if money >= 1000 else f"{money:,.4g}"


def priced(price: PriceRange | None, currency: str, scale: float = 1.0) -> str:
    """A price with its interval in words; `no bound` where nothing may be bought for it."""
    if price is None:
        return "–"
    ends = (price.value, price.low, price.high)
    if not any(ends):
        return "no bound" if price.value is None else f"0 {currency}"
    value, low, high = ("no bound" if one is None else amount(one * scale) for one in ends)
    return f"{value} {currency} ({low} to {high})"
