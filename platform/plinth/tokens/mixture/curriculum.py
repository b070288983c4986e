"""A phase as a leg: a stretch whose shares move along a line, or stay.

    weights        stays
    to_weights     goes from the one to the other
    curriculum     goes from early to late

A curriculum moves text in time: the two ends of its leg are the phase's shares tilted one way and the other, so over
all of its tokens the phase has the shares of its weights (curriculum learning: Bengio et al., ICML 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from plinth.errors import RecipeError
from plinth.tokens.mixture.parameters import Curriculum, Phase
from plinth.tokens.mixture.selectors import nearest
from plinth.tokens.mixture.weights import Shares, Text, group_of, shares_at_ends
from plinth.tokens.shards.streams import parse


@dataclass(frozen=True)
class Leg:
    """Positions `first` to `stop`, and the shares of every stream at both ends."""

    phase: str
    first: int
    stop: int
    start: Shares
    end: Shares

    @property
    def size(self) -> int:
        return self.stop - self.first

    @property
    def middle(self) -> Shares:
        """Shares of the whole leg."""
        return {name: (share + self.end[name]) / 2 for name, share in self.start.items()}


def legs(phase: Phase, first: int, stop: int, text: Text, sequence_tokens: int) -> list[Leg]:
    """The leg of a phase; none where it is too short for a sequence.

    Raises:
        RecipeError: as `shares_at_ends`, or a curriculum names a value that no stream has.
    """
    start, end = shares_at_ends(phase, text, stop - first, sequence_tokens)
    if phase.curriculum is not None:
        start, end = _curriculum(phase, phase.curriculum, start)
    return [Leg(phase.name, first, stop, start, end)] if first < stop else []


def _curriculum(phase: Phase, plan: Curriculum, shares: Shares) -> tuple[Shares, Shares]:
    """Shares at both ends."""
    values = {name: group_of(parse(name), plan.by) for name in shares}
    _require(phase, plan, set(values.values()))
    ranks = {name: plan.order.index(value) for name, value in values.items() if value in plan.order}
    tilt = _tilt(ranks, shares)
    strength = Fraction(repr(plan.strength))
    early = {name: share * (1 + strength * tilt.get(name, 0)) for name, share in shares.items()}
    late = {name: share * (1 - strength * tilt.get(name, 0)) for name, share in shares.items()}
    return early, late


def _tilt(ranks: dict[str, int], shares: Shares) -> Shares:
    """How early each ranked stream is, from 1 to -1: its value's middle place among all ranked text.

    Places are shares, not numbers, so that a rare value at an end does not hold the others together. Their weighted
    mean is the middle, so gains and losses cancel, and shares still add up to 1.
    """
    whole = sum((shares[name] for name in ranks), Fraction(0))
    if not whole:
        return {}
    places, before = {}, Fraction(0)
    for rank in sorted(set(ranks.values())):
        own = sum((shares[name] for name, at in ranks.items() if at == rank), Fraction(0))
        places[rank] = 1 - 2 * (before + own / 2) / whole
        before += own
    reach = max(abs(places[rank]) for name, rank in ranks.items() if shares[name])
    return {name: places[rank] / reach for name, rank in ranks.items() if shares[name]} if reach else {}


def _require(phase: Phase, plan: Curriculum, have: Sequence[str] | set[str]) -> None:
    absent = [value for value in plan.order if value not in have]
    if absent:
        raise RecipeError(
            f"mixture.phases.{phase.name}.curriculum: no stream of the phase has {plan.by} {absent[0]!r}"
            f"{nearest(absent[0], sorted(set(have) - {''}))}",
            remedy=f"list values that occur; shards.axes must contain {plan.by!r}"
            if plan.by != "bucket"
            else "list buckets of the phase",
        )
