"""Limits on the epochs of streams, and redistribution of shares that exceed them.

The rule is water-filling over the whole run. If a stream needs more epochs than its limit, all its shares are scaled
down by one factor, so that it reaches exactly its limit. In each phase, the freed share goes to the streams below their
limits, in proportion to their weights in the phase. Each round fixes the shares of at least one stream, so the process
ends. If all streams of a phase reach their limits, the recipe is rejected: there is too little text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from plinth.errors import RecipeError
from plinth.tokens.mixture.parameters import Mixture
from plinth.tokens.mixture.weights import Leg, Shares, Text, streams_by_key


def bounds(params: Mixture, names: list[str]) -> dict[str, float]:
    """Return the maximum number of epochs of each stream.

    Raises:
        RecipeError: a key of `epoch_caps` names no stream.
    """
    found = dict.fromkeys(names, params.max_epochs)
    for key, own in streams_by_key("epoch_caps", params.epoch_caps, names, complete=False).items():
        found |= dict.fromkeys(own, params.epoch_caps[key])
    return found


def max_sequences(limits: Mapping[str, float], text: Text) -> dict[str, int]:
    """Return the maximum number of sequences of each stream in the whole run."""
    return {name: int(Fraction(repr(float(limit))) * text[name]) for name, limit in limits.items()}


def requested_sequences(legs: list[Leg]) -> Shares:
    """Return the number of sequences that the phases request from each stream by their shares, before rounding."""
    sums: Shares = {}
    for leg in legs:
        for name, share in leg.middle.items():
            sums[name] = sums.get(name, Fraction(0)) + share * leg.size
    return sums


def redistribute(legs: list[Leg], limits: Mapping[str, int], sequence_tokens: int) -> list[Leg]:
    """Change the shares of the legs (one per phase) so that no stream exceeds its limit, and return the new legs.

    The limits are in sequences.

    Raises:
        RecipeError: all streams of a leg are at their limits.
    """
    requested, settled = legs, set[str]()
    while True:
        wanted = requested_sequences(legs)
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
            for leg, first in zip(legs, requested, strict=True)
        ]


def require_within(params: Mixture, needed: Mapping[str, int], available: Text, limits: Mapping[str, float]) -> None:
    """Check that no stream exceeds its maximum number of epochs, after rounding to whole sequences.

    The error lists all streams, so that one edit of the recipe can fix them.

    Raises:
        RecipeError: streams need more epochs than their limits allow.
    """
    over = [name for name in needed if needed[name] > Fraction(repr(float(limits[name]))) * available[name]]
    if not over:
        return
    lines = [
        f"{name}: {needed[name]:,} sequences needed, {available[name]:,} available"
        + (f" = {needed[name] / available[name]:.2f} epochs" if available[name] else "")
        for name in over
    ]
    expected = "; ".join(f"at most {limits[name]} epochs of {name}" for name in over)
    raise RecipeError(
        f"the mixture repeats {', '.join(over)} more often than mixture.max_epochs allows",
        found="; ".join(lines),
        expected=expected,
        remedy=_remedy(params, over[0], needed, available, limits),
    )


def _remedy(params: Mixture, name: str, needed: Mapping[str, int], available: Text, limits: Mapping[str, float]) -> str:
    """Return changes to the recipe that would give stream `name` enough text."""
    most = int(Fraction(repr(float(limits[name]))) * available[name])
    short = needed[name] - most
    per_epoch = max(1.0, limits[name])
    text = -(-short * params.sequence_tokens // int(per_epoch))
    total = int(params.total_tokens * most / needed[name]) // params.sequence_tokens * params.sequence_tokens
    return (
        f"for {name}: add {text:,} tokens of text, multiply its weights by {most / needed[name]:.3g}, lower "
        f"mixture.total_tokens to {total:,}, or raise max_epochs or epoch_caps; "
        "`over_cap: redistribute` moves the excess to other streams"
    )


def _level(
    leg: Leg,
    shares: Shares,
    requested: Shares,
    factors: Mapping[str, Fraction],
    settled: set[str],
    sequence_tokens: int,
) -> Shares:
    kept = {name: share * factors.get(name, 1) for name, share in shares.items() if name in settled}
    open_to = {name: requested[name] for name in shares if name not in settled}
    rest, weight = 1 - sum(kept.values(), Fraction(0)), sum(open_to.values(), Fraction(0))
    if rest and not weight:
        lacking = int(rest * leg.size * sequence_tokens)
        raise RecipeError(
            f"mixture.phases.{leg.phase}: all streams reach their epoch limits before the phase is full",
            found=f"about {lacking:,} tokens are missing; streams at their limits: "
            f"{', '.join(sorted(n for n in kept if requested[n]))}",
            expected="a stream with text left in every phase",
            remedy="add text, give another bucket a weight in this phase, raise max_epochs or epoch_caps, or lower "
            "mixture.total_tokens",
        )
    return kept | {name: rest * own / weight if rest else Fraction(0) for name, own in open_to.items()}


# Streams that a run reads once from beginning to end, in addition to the shares of the recipe.
#
# Their sequences are spread evenly: every leg takes the part of them that falls into its stretch of the run, and the
# shares of its text shrink by the factor that this needs. So the text of a run with canaries is the text of the same
# run with fewer sequences, in exactly the recipe's shares.

#: Most share of a run that planted text may take: it measures the run and should not shape it.
MOST_SHARE = Fraction(1, 10)


def require_room(planted: Mapping[str, int], sequences: int, sequence_tokens: int) -> None:
    """Check that planted text takes at most `MOST_SHARE` of the run.

    Raises:
        RecipeError: planted text would take a larger share; the error states the share.
    """
    total = sum(planted.values())
    if total > MOST_SHARE * sequences:
        raise RecipeError(
            f"{', '.join(sorted(planted))} would take {total / sequences:.1%} of the run's tokens",
            found=f"{total * sequence_tokens:,} of {sequences * sequence_tokens:,} tokens",
            expected=f"at most {float(MOST_SHARE):.0%} of the run",
            remedy="lower corpus.canaries.count, or raise mixture.total_tokens",
        )


def widened(legs: Sequence[Leg], planted: Mapping[str, int]) -> list[Leg]:
    """Return the run's legs (one per phase) with planted sequences spread evenly among the text.

    The counts of a planted stream over all legs add up to its number of sequences.
    """
    if not planted:
        return list(legs)
    total, first, made = legs[-1].stop, 0, []
    for leg in legs:
        own = {name: n * leg.stop // total - n * leg.first // total for name, n in planted.items()}
        size = leg.size + sum(own.values())
        factor = Fraction(leg.size, size)
        more = {name: Fraction(n, size) for name, n in own.items()}
        start, end = ({name: share * factor for name, share in at.items()} | more for at in (leg.start, leg.end))
        made.append(Leg(leg.phase, first, first + size, start, end))
        first += size
    return made
