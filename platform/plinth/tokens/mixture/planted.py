"""Streams that a run reads once from beginning to end, beside the shares of the recipe.

Their sequences are spread evenly: every leg takes the part of them that falls into its stretch of the run, and the
shares of its text shrink by the factor that this needs. So the text of a run with canaries is the text of the same
run of so many fewer sequences, in the recipe's shares to the fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from plinth.errors import RecipeError
from plinth.tokens.mixture.curriculum import Leg

#: Most share of a run that planted text may take: it measures the run and should not shape it.
MOST_SHARE = Fraction(1, 10)


def require_room(planted: Mapping[str, int], sequences: int, sequence_tokens: int) -> None:
    """Refuse planted text that would take more than `MOST_SHARE` of the run.

    Raises:
        RecipeError: with the share.
    """
    total = sum(planted.values())
    if total > MOST_SHARE * sequences:
        raise RecipeError(
            f"{', '.join(sorted(planted))} would take {total / sequences:.1%} of the run",
            found=f"{total * sequence_tokens:,} of {sequences * sequence_tokens:,} tokens",
            expected=f"at most {float(MOST_SHARE):.0%}",
            remedy="lower corpus.canaries.count, or raise mixture.total_tokens",
        )


def widened(legs: Sequence[Leg], planted: Mapping[str, int]) -> list[Leg]:
    """The legs of a run's text with the planted sequences among them; the counts of a planted stream add up."""
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
