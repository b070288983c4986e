"""Bounds on epochs: what they take away, and who gets it.

The rule is water-filling over the whole run. As long as a stream needs more than its bound, its shares are lowered by
one factor everywhere, so that it gives exactly its bound and keeps its course in time; what that frees in a leg goes
to the streams of the same leg that have not reached theirs, in proportion to their weights there. Each round settles
at least one stream, so it ends. Where a leg has no stream left to give, the run is refused: there is too little text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from plinth.errors import RecipeError
from plinth.tokens.mixture.curriculum import Leg
from plinth.tokens.mixture.parameters import Mixture
from plinth.tokens.mixture.weights import Shares, Text, claims


def bounds(params: Mixture, names: list[str]) -> dict[str, float]:
    """Most epochs of each stream.

    Raises:
        RecipeError: a key of `epoch_caps` names no stream.
    """
    found = dict.fromkeys(names, params.max_epochs)
    for key, own in claims("epoch_caps", params.epoch_caps, names).items():
        found |= dict.fromkeys(own, params.epoch_caps[key])
    return found


def most(limits: Mapping[str, float], text: Text) -> dict[str, int]:
    """Sequences that each stream may give in the whole run."""
    return {name: int(Fraction(repr(float(limit))) * text[name]) for name, limit in limits.items()}


def needed(legs: list[Leg]) -> Shares:
    """Sequences that the legs ask of each stream, before they are whole."""
    sums: Shares = {}
    for leg in legs:
        for name, share in leg.middle.items():
            sums[name] = sums.get(name, Fraction(0)) + share * leg.size
    return sums


def fill(legs: list[Leg], limits: Mapping[str, int], sequence_tokens: int) -> list[Leg]:
    """The same legs with no stream above its limit, in sequences.

    Raises:
        RecipeError: a leg has no stream left that may give more.
    """
    asked, settled = legs, set[str]()
    while True:
        wanted = needed(legs)
        over = {name for name, amount in wanted.items() if amount > limits[name]} - settled
        if not over:
            return legs
        factors = {name: limits[name] / wanted[name] for name in over}
        settled |= over
        legs = [
            replace(
                leg,
                start=_level(leg, leg.start, first.start, factors, settled, sequence_tokens),
                end=_level(leg, leg.end, first.end, factors, settled, sequence_tokens),
            )
            for leg, first in zip(legs, asked, strict=True)
        ]


def _level(
    leg: Leg, shares: Shares, asked: Shares, factors: Mapping[str, Fraction], settled: set[str], sequence_tokens: int
) -> Shares:
    kept = {name: share * factors.get(name, 1) for name, share in shares.items() if name in settled}
    open_to = {name: asked[name] for name in shares if name not in settled}
    rest, weight = 1 - sum(kept.values(), Fraction(0)), sum(open_to.values(), Fraction(0))
    if rest and not weight:
        lacking = int(rest * leg.size * sequence_tokens)
        raise RecipeError(
            f"mixture.phases.{leg.phase}: its streams reach their bounds on epochs before the phase is full",
            found=f"about {lacking:,} tokens too few from {', '.join(sorted(name for name in kept if asked[name]))}",
            expected="a stream with text left in every phase",
            remedy="add text, give another bucket a weight in this phase, raise max_epochs or epoch_caps, or lower "
            "mixture.total_tokens",
        )
    return kept | {name: rest * own / weight if rest else Fraction(0) for name, own in open_to.items()}
