"""Conversion of a phase's weights to the exact share of every stream, at the beginning and end of the phase.

    keys -> streams          each stream takes the most precise key that names it
    weight of a key          divided over the key's streams, in proportion to their text
    upsample, temperature    a factor, then an exponent, on these shares
    epochs, tokens           allocated first, in sequences; weights divide the rest

Shares are exact fractions, so counts do not depend on floating-point rounding. Text is counted in whole training
sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from plinth.errors import RecipeError
from plinth.tokens.mixture import parameters
from plinth.tokens.mixture.parameters import Curriculum, Phase, Selector, Weights, nearest
from plinth.tokens.shards.parameters import Stream, parse

#: `epochs` and `tokens` without `weights` may miss the phase's size by this much; they are then stretched to it.
SLACK = Fraction(1, 100)

Text = Mapping[str, int]
Shares = dict[str, Fraction]


def used_streams(phases: Sequence[Phase], names: Sequence[str]) -> list[str]:
    """Return the streams that have a share in any phase, including streams without text.

    Raises:
        RecipeError: a key names no stream, or two keys of the same precision match a stream.
    """
    found: set[str] = set()
    for phase in phases:
        for weights in (phase.weights, phase.to_weights):
            claimed = _phase_streams_by_key(phase, weights or {}, names, complete=True)
            fixed = {*phase.epochs, *phase.tokens}
            found |= {n for key, own in claimed.items() if key in fixed or (weights or {}).get(key, 0) > 0 for n in own}
        streams_by_key(f"phases.{phase.name}.upsample", phase.upsample, names)
    return sorted(found)


def shares_at_ends(phase: Phase, text: Text, size: int, sequence_tokens: int) -> tuple[Shares, Shares]:
    """Return the shares of the streams at the beginning and end of a phase of `size` sequences; both add up to 1.

    Args:
        text: number of sequences of each stream.

    Raises:
        RecipeError: a key names no stream, two keys of the same precision match a stream, or the amounts of `epochs`
            and `tokens` do not fit the phase.
    """
    start = _shares(phase, phase.weights, text, size, sequence_tokens)
    if phase.to_weights is None:
        return start, start
    return start, _shares(phase, phase.to_weights, text, size, sequence_tokens)


def without_text(phases: Sequence[Phase], empty: Collection[str]) -> tuple[Phase, ...]:
    """Return the phases without the weights and amounts of buckets that have no text; their share goes to other
    buckets.

    Raises:
        RecipeError: no bucket of a phase has text.
    """

    def rest(given: Mapping[str, float] | None) -> dict[str, float] | None:
        return None if given is None else {k: v * (parameters.parse(k).bucket not in empty) for k, v in given.items()}

    def kept(given: Mapping[str, float]) -> dict[str, float]:
        return {key: amount for key, amount in (rest(given) or {}).items() if amount}

    found = []
    for phase in phases:
        own = {"weights": rest(phase.weights), "to_weights": rest(phase.to_weights)}
        changed = phase.model_copy(update=own | {"epochs": kept(phase.epochs), "tokens": kept(phase.tokens)})
        if not (changed.epochs or changed.tokens or any((changed.weights or {}).values())):
            raise RecipeError(
                f"mixture.phases.{phase.name} has no text",
                found=f"buckets {', '.join(sorted(empty))} have no tokens",
                expected="text in at least one bucket of the phase",
                remedy="`plinth corpus funnel` shows which rule removed the documents; fix the rule or the weights",
            )
        found.append(changed)
    return tuple(found)


def streams_by_key(
    where: str, listed: Iterable[str], names: Sequence[str], *, complete: bool = True
) -> dict[str, list[str]]:
    """Return the streams of each key: every stream goes to the most precise key that names it.

    Args:
        complete: True if `names` has all streams. If False, unused streams are missing, and a key may name no stream.

    Raises:
        RecipeError: a key is malformed or names no stream, or two equally precise keys name the same stream.
    """
    parsed = [_parsed(where, text) for text in listed]
    claimed: dict[str, list[str]] = {key.text: [] for key in parsed}
    reached = set()
    for name in names:
        stream = parse(name)
        fitting = [key for key in parsed if key.names(stream.bucket, stream.label, stream.values)]
        reached |= {key.text for key in fitting}
        best = sorted(fitting, key=lambda key: key.precision, reverse=True)[:2]
        if len(best) == 2 and best[0].precision == best[1].precision:
            raise RecipeError(
                f"mixture.{where}: {best[0].text!r} and {best[1].text!r} both name {name}",
                expected="one most specific key for every stream",
                remedy=f"add the key `{name}`, or make one of the two more specific",
            )
        if best:
            claimed[best[0].text].append(name)
    unknown = [key.text for key in parsed if key.text not in reached]
    if unknown and complete:
        raise RecipeError(
            f"mixture.{where}: no stream is named {', '.join(unknown)}",
            found=parameters.nearest(unknown[0], {*names, *_selectors(names)}).removeprefix("; "),
            remedy="fix the key: `plinth tokens mixture --streams` lists the streams",
        )
    return claimed


def _parsed(where: str, text: str) -> Selector:
    try:
        return parameters.parse(text)
    except ValueError as error:
        raise RecipeError(f"mixture.{where}: {error}") from error


def _selectors(names: Sequence[str]) -> set[str]:
    streams = [parse(name) for name in names]
    return {stream.bucket for stream in streams} | {f"{a}={v}" for one in streams for a, v in one.values.items()}


def _phase_streams_by_key(
    phase: Phase, weights: Mapping[str, float], names: Sequence[str], *, complete: bool = False
) -> dict[str, list[str]]:
    listed = dict.fromkeys([*weights, *phase.epochs, *phase.tokens])
    return streams_by_key(f"phases.{phase.name}", listed, names, complete=complete)


def _shares(phase: Phase, given: Weights | None, text: Text, size: int, sequence_tokens: int) -> Shares:
    names, weights = sorted(text), given or {}
    claimed = _phase_streams_by_key(phase, weights, names)
    fixed: Shares = {}
    for key, own in claimed.items():
        if key in phase.epochs:
            fixed |= {name: _exact(phase.epochs[key]) * text[name] for name in own}
        elif key in phase.tokens:
            fixed |= {name: _exact(phase.tokens[key]) / sequence_tokens * part for name, part in _by_text(own, text)}
    rest = size - sum(fixed.values(), Fraction(0))
    weighed: Shares = {}
    for key, weight in weights.items():
        if weight > 0:
            weighed |= {name: _exact(weight) * part for name, part in _by_text(claimed[key], text)}
    weighed = _tempered(phase, _upsampled(phase, weighed, names))
    total = sum(weighed.values(), Fraction(0))
    if not total:
        return _stretched(phase, fixed, size, sequence_tokens)
    if rest < 0:
        raise _too_much(phase, size - rest, size, sequence_tokens)
    shares = {name: rest / size * weight / total for name, weight in weighed.items()}
    shares |= {name: amount / size for name, amount in fixed.items()}
    return {name: shares.get(name, Fraction(0)) for name in names}


def _stretched(phase: Phase, fixed: Shares, size: int, sequence_tokens: int) -> Shares:
    whole = sum(fixed.values(), Fraction(0))
    if abs(whole - size) > SLACK * size or not whole:
        raise _too_much(phase, whole, size, sequence_tokens)
    return {name: amount / whole for name, amount in fixed.items()}


def _too_much(phase: Phase, requested: Fraction, size: int, sequence_tokens: int) -> RecipeError:
    return RecipeError(
        f"mixture.phases.{phase.name}: `epochs` and `tokens` do not match the size of the phase",
        found=f"{int(requested * sequence_tokens):,} tokens requested",
        expected=f"{size * sequence_tokens:,} tokens, the phase's fraction of mixture.total_tokens"
        + (", or less" if phase.weights is not None else ""),
        remedy="change the amounts, the phase's fraction or mixture.total_tokens"
        + ("" if phase.weights is not None else ", or add `weights` for the rest"),
    )


def _by_text(own: Sequence[str], text: Text) -> list[tuple[str, Fraction]]:
    """Return the streams of a key, each with its part of the key's weight.

    The parts add up to 1. They are proportional to the streams' text, or equal if no stream has text.
    """
    whole = sum(text[name] for name in own)
    return [(name, Fraction(text[name], whole) if whole else Fraction(1, len(own))) for name in own]


def _upsampled(phase: Phase, weighed: Shares, names: Sequence[str]) -> Shares:
    claimed = streams_by_key(f"phases.{phase.name}.upsample", phase.upsample, names, complete=False)
    factors = {name: _exact(phase.upsample[key]) for key, own in claimed.items() for name in own}
    return {name: weight * factors.get(name, 1) for name, weight in weighed.items()}


def _tempered(phase: Phase, weighed: Shares) -> Shares:
    """Raise each group's share p to p^a, where a is `temperature`; shares within a group keep their proportions.

    Multilingual BERT uses a = 0.7 (Devlin 2018), XLM-R 0.3 (Conneau et al., arXiv:1911.02116). Powers are rounded to
    twelve digits, so they are the same on every machine.
    """
    if phase.temperature == 1.0 or not weighed:
        return weighed
    groups = {name: group_of(parse(name), phase.temperature_over) for name in weighed}
    sums: Shares = {}
    for name, weight in weighed.items():
        sums[groups[name]] = sums.get(groups[name], Fraction(0)) + weight
    whole = sum(sums.values(), Fraction(0))
    factors = {
        group: Fraction(f"{float(own / whole) ** phase.temperature:.12g}") / own for group, own in sums.items() if own
    }
    return {name: weight * factors.get(groups[name], Fraction(0)) for name, weight in weighed.items()}


def group_of(stream: Stream, by: str) -> str:
    """Return the group of a stream: its name, its bucket, or its value on the axis `by` (empty if the stream has no
    value)."""
    return stream.name if by == "stream" else stream.bucket if by == "bucket" else stream.values.get(by, "")


def _exact(value: float) -> Fraction:
    """Return the exact fraction of the decimal number that the recipe states."""
    return Fraction(repr(float(value)))


# A phase as a leg: a stretch whose shares move along a line, or stay.
#
#     weights        stays
#     to_weights     goes from the one to the other
#     curriculum     goes from early to late
#
# A curriculum moves text in time: the two ends of its leg are the phase's shares tilted one way and the other, so over
# all of its tokens the phase has the shares of its weights (curriculum learning: Bengio et al., ICML 2009).


@dataclass(frozen=True)
class Leg:
    """Range of sequence positions `first` to `stop`, with the shares of every stream at both ends."""

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
        """Shares over the whole leg: the means of the shares at its ends."""
        return {name: (share + self.end[name]) / 2 for name, share in self.start.items()}


def legs(phase: Phase, first: int, stop: int, text: Text, sequence_tokens: int) -> list[Leg]:
    """Return the leg of a phase, its positions and shares, as a list.

    The list is empty if the phase is too short for a sequence.

    Raises:
        RecipeError: the phase's keys or amounts are invalid, as in `shares_at_ends`, or a curriculum names a value that
            no stream has.
    """
    start, end = shares_at_ends(phase, text, stop - first, sequence_tokens)
    if phase.curriculum is not None:
        start, end = _curriculum(phase, phase.curriculum, start)
    return [Leg(phase.name, first, stop, start, end)] if first < stop else []


def _curriculum(phase: Phase, plan: Curriculum, shares: Shares) -> tuple[Shares, Shares]:
    """Return the shares at the beginning and end of a phase with a curriculum."""
    values = {name: group_of(parse(name), plan.by) for name in shares}
    _require(phase, plan, set(values.values()))
    ranks = {name: plan.order.index(value) for name, value in values.items() if value in plan.order}
    tilt = _tilt(ranks, shares)
    strength = Fraction(repr(plan.strength))
    early = {name: share * (1 + strength * tilt.get(name, 0)) for name, share in shares.items()}
    late = {name: share * (1 - strength * tilt.get(name, 0)) for name, share in shares.items()}
    return early, late


def _tilt(ranks: dict[str, int], shares: Shares) -> Shares:
    """Return a position for each ranked stream, from 1 (early in the phase) to -1 (late).

    A value's position is the middle of its range in the cumulative shares of the ranked text. Positions depend on
    shares and not on the number of values, so a rare value at one end does not compress the others. The weighted mean
    of the positions is 0, so shares still add up to 1.
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
            remedy=f"list only values that occur; `shards.axes` must contain {plan.by!r}"
            if plan.by != "bucket"
            else "list buckets of the phase",
        )
