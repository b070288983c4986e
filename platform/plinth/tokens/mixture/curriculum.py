"""A phase as legs: stretches whose shares move along a line, or stay.

    weights                        one leg that stays
    to_weights                     one leg that rises; with `ramp_steps: n`, n that stay
    curriculum, ramp               one leg from early to late
    curriculum, turns              one leg per value, in order

A curriculum moves text in time: the two ends of a leg are the phase's shares tilted one way and the other, so over all
of its tokens the phase has the shares of its weights (curriculum learning: Bengio et al., ICML 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from plinth.errors import RecipeError
from plinth.tokens.mixture.parameters import Curriculum, Phase
from plinth.tokens.mixture.selectors import nearest
from plinth.tokens.mixture.weights import Shares, Text, group_of, shares_at_ends
from plinth.tokens.shards.streams import parse


@dataclass(frozen=True)
class Leg:
    """Positions `first` to `stop`, and the shares of every stream at both ends."""

    phase: str
    name: str
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
    """The legs of a phase, in order; those too short for a sequence are left out.

    Raises:
        RecipeError: as `shares_at_ends`, or a curriculum names a value that no stream has.
    """
    start, end = shares_at_ends(phase, text, stop - first, sequence_tokens)
    if phase.curriculum is not None:
        made = _curriculum(phase, phase.curriculum, start)
    elif phase.ramp_steps:
        made = _stairs(phase.ramp_steps, start, end)
    else:
        made = [(Fraction(1), start, end)]
    edges = [first + int(total * (stop - first) + Fraction(1, 2)) for total in accumulate(part for part, _, _ in made)]
    cut = zip([first, *edges[:-1]], edges, made, strict=True)
    many = len(made) > 1
    return [
        Leg(phase.name, f"{phase.name}/{number}" if many else phase.name, low, high, before, after)
        for number, (low, high, (_, before, after)) in enumerate(cut, 1)
        if low < high
    ]


_Pieces = list[tuple[Fraction, Shares, Shares]]


def _stairs(count: int, start: Shares, end: Shares) -> _Pieces:
    """Equal stretches from `start` to `end`; a single one stays in the middle."""
    made = []
    for step in range(count):
        at = Fraction(step, count - 1) if count > 1 else Fraction(1, 2)
        own = {name: share + (end[name] - share) * at for name, share in start.items()}
        made.append((Fraction(1, count), own, own))
    return made


def _curriculum(phase: Phase, plan: Curriculum, shares: Shares) -> _Pieces:
    values = {name: group_of(parse(name), plan.by) for name in shares}
    _require(phase, plan, set(values.values()))
    ranks = {name: plan.order.index(value) for name, value in values.items() if value in plan.order}
    if plan.manner == "turns":
        return _turns(len(plan.order), ranks, shares)
    tilt = _tilt(ranks, shares)
    strength = Fraction(repr(plan.strength))
    early = {name: share * (1 + strength * tilt.get(name, 0)) for name, share in shares.items()}
    late = {name: share * (1 - strength * tilt.get(name, 0)) for name, share in shares.items()}
    return [(Fraction(1), early, late)]


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


def _turns(count: int, ranks: dict[str, int], shares: Shares) -> _Pieces:
    """One value after the other, each as long as its share; streams without a rank keep theirs throughout."""
    listed = sum((shares[name] for name in ranks), Fraction(0))
    made: _Pieces = []
    for turn in range(count):
        own = sum((shares[name] for name, rank in ranks.items() if rank == turn), Fraction(0))
        if own:
            grown = listed / own
            mixed = {n: s * (grown if ranks.get(n) == turn else 0 if n in ranks else 1) for n, s in shares.items()}
            made.append((own / listed, mixed, mixed))
    return made or [(Fraction(1), shares, shares)]


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
