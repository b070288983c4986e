"""A test that later values come from where earlier ones came from, which may be looked at after every value.

A conformal test martingale (Vovk, Nouretdinov and Gammerman 2003): the rank of every later value among all values so
far, ties broken by a fair draw, is uniform and independent of the ranks before it as long as all values are
exchangeable, whatever their distribution. Who bets against uniform ranks has a wealth that is a martingale, so it ever
reaches 1 / alpha with a probability of at most alpha (Ville 1939). The reference may be small: it is ranked among, not
estimated from.

The bet is the mean of epsilon p^(epsilon - 1) over epsilons, once on values that are larger and once on smaller ones:
wealth grows where ranks crowd at either end. Of the stake, 1 / (k (k + 1)) is kept until the k-th place where a change
may begin, so that quiet years before do not hide it.

    m  values of reference
    n  later values
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from plinth.evaluation.statistics.estimate import Floats, checked

#: Bets against uniform ranks, from bold to cautious.
EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def ranks(reference: ArrayLike, later: ArrayLike, draws: ArrayLike) -> Floats:
    """Share of all values so far that are larger than each later one, [n]: small where a value is large.

    Args:
        draws: uniform on [0, 1), [n]: of ties, and of the value itself, the part that counts as larger. They must not
            depend on the values.

    Raises:
        ValueError: no reference, no later value, one that is not finite, or another number of draws.
    """
    held, new = sorted(checked(reference).tolist()), checked(later)
    shares = checked(draws, new)
    found = np.empty(len(new))
    for at, (value, share) in enumerate(zip(new.tolist(), shares.tolist(), strict=True)):
        insort(held, value)
        first, last = bisect_left(held, value), bisect_right(held, value)
        found[at] = (len(held) - last + share * (last - first)) / len(held)
    return np.clip(found, 1e-12, 1.0)


def wealth(uniform: ArrayLike, starts: Sequence[int] = (0,)) -> Floats:
    """Natural logarithm of the wealth after each rank, [n].

    Args:
        starts: places where a change may begin, rising from 0; fixed without a look at the ranks.

    Raises:
        ValueError: no rank, one outside of 0 to 1, or starts that do not rise from 0.
    """
    found = checked(uniform)
    if found.min() < 0 or found.max() > 1 or list(starts) != sorted({0, *starts}) or starts[-1] >= len(found):
        raise ValueError("ranks are between 0 and 1, and changes begin at places that rise from 0")
    total = np.full(len(found), -np.log(len(starts) + 1))  # what is kept for changes that begin later
    for k, start in enumerate(starts, 1):
        own = np.concatenate([np.zeros(start), _bet(found[start:])])
        total = np.logaddexp(total, own - np.log(k * (k + 1)))
    return total


def _bet(found: Floats) -> Floats:
    """The same of one bet that begins with the first rank."""
    bets = np.array(EPSILONS)[:, None]
    sides = [np.log(bets) + (bets - 1) * np.log(np.clip(one, 1e-12, 1.0)) for one in (found, 1 - found)]
    paths = np.concatenate([np.cumsum(one, axis=1) for one in sides])
    top = paths.max(axis=0)
    return np.asarray(top + np.log(np.exp(paths - top).mean(axis=0)))


def exchangeable_p(reference: ArrayLike, later: ArrayLike, draws: ArrayLike, starts: Sequence[int] = (0,)) -> Floats:
    """The always-valid p after each later value, [n]: the smallest so far, whoever looks when.

    Raises:
        ValueError: as `ranks` and `wealth`.
    """
    return np.minimum(1.0, np.exp(-np.maximum.accumulate(wealth(ranks(reference, later, draws), starts))))
