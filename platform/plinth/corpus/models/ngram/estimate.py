"""Interpolated modified Kneser–Ney (Chen and Goodman 1998), computed as Heafield et al. (2013) do.

    adjusted count    of the highest order and of n-grams that begin a sentence: the count; of the others: how many
                      different words precede the n-gram
    discounts         of each order, from how many n-grams have adjusted counts 1 to 4
    p(w | c)          (adjusted − discount) / Σ adjusted  +  backoff(c) · p(w | c without its first word)
    p(w)              the same, with 1 / vocabulary at the bottom

An n-gram that is pruned gives its discounted mass to the back-off of its context, so probabilities of a context
still sum to one; what is kept keeps its suffix and its context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plinth_text.scoring.kneser_ney import BEGIN
from plinth_text.words.ngrams import I64, U64

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WORD_BITS = np.uint64(16)
#: Where an order is too small to estimate discounts from, those that lmplz falls back to.
FALLBACK = (0.5, 1.0, 1.5)
#: A context whose words were all kept undiscounted would back off with log10 of zero.
LEAST = 1e-30


@dataclass(frozen=True)
class OrderEstimate:
    """One order: sorted keys, log10 probabilities and log10 back-offs, [n] each, and its discounts."""

    keys: U64
    logp: F64
    backoff: F64
    discounts: tuple[float, float, float]


def estimate(keys: list[U64], counts: list[I64], prune: tuple[int, ...]) -> list[OrderEstimate]:
    """The model from raw counts.

    Args:
        keys, counts: by order from 1; keys sorted, those of order 1 every word of the vocabulary once, `BEGIN` and
            words that were not seen with count 0.
        prune: by order from 1, n-grams with at most this adjusted count are left out; the first is 0.
    """
    adjusted = [_adjusted(keys, counts, n) for n in range(len(keys))]
    discounts = [_discounts(one) for one in adjusted]
    kept = _kept(keys, adjusted, prune)
    made: list[OrderEstimate] = []
    p = np.empty(0)
    predicted = keys[0].size - 1  # all words but the one that begins a sentence
    for n in range(len(keys)):
        less = adjusted[n] - np.asarray([0.0, *discounts[n]])[np.minimum(adjusted[n], 3)]
        contexts, where = _contexts(keys[n], n)
        total = np.bincount(where, adjusted[n], contexts.size)
        share = np.where(kept[n], less, 0.0) / total[where]
        backoff = 1.0 - np.bincount(where, share, contexts.size)
        lower = np.full(keys[n].size, 1.0 / predicted) if n == 0 else p[_find(keys[n - 1], keys[n] >> WORD_BITS)]
        p = share + backoff[where] * lower
        if n:
            made[-1].backoff[_find(keys[n - 1], contexts)] = np.log10(np.maximum(backoff, LEAST))
        made.append(OrderEstimate(keys[n], np.log10(p), np.zeros(p.size), discounts[n]))
    return [_only(one, keep) for one, keep in zip(made, kept, strict=True)]


def _adjusted(keys: list[U64], counts: list[I64], n: int) -> I64:
    """Adjusted counts of order n + 1."""
    if n + 1 == len(keys):
        return counts[n]
    found = np.zeros(keys[n].size, dtype=np.int64)
    np.add.at(found, _find(keys[n], keys[n + 1] >> WORD_BITS), 1)
    begins = (keys[n] & np.uint64(0xFFFF)) == BEGIN
    return np.where(begins, counts[n], found)


def _discounts(adjusted: I64) -> tuple[float, float, float]:
    t1, t2, t3, t4 = (int((adjusted == k).sum()) for k in (1, 2, 3, 4))
    if not (t1 and t2 and t3 and t4):
        return FALLBACK
    y = t1 / (t1 + 2 * t2)
    found = (1 - 2 * y * t2 / t1, 2 - 3 * y * t3 / t2, 3 - 4 * y * t4 / t3)
    return found if all(0 <= d <= k for k, d in enumerate(found, start=1)) else FALLBACK


def _kept(keys: list[U64], adjusted: list[I64], prune: tuple[int, ...]) -> list[Bools]:
    """The n-grams that stay: above the threshold, or needed as suffix or context by something longer that stays."""
    kept = [count > limit for count, limit in zip(adjusted, prune, strict=True)]
    for n in range(len(keys) - 1, 0, -1):
        longer = keys[n][kept[n]]
        kept[n - 1][_find(keys[n - 1], longer >> WORD_BITS)] = True
        kept[n - 1][_find(keys[n - 1], longer & _mask(n))] = True
    kept[0][:] = True
    return kept


def _contexts(keys: U64, n: int) -> tuple[U64, I64]:
    """Distinct contexts, sorted, and which of them each key has."""
    if n == 0:
        return np.zeros(1, dtype=np.uint64), np.zeros(keys.size, dtype=np.int64)
    distinct, where = np.unique(keys & _mask(n), return_inverse=True)
    return distinct, where


def _only(one: OrderEstimate, keep: Bools) -> OrderEstimate:
    return OrderEstimate(one.keys[keep], one.logp[keep], one.backoff[keep], one.discounts)


def _mask(words: int) -> np.uint64:
    return np.uint64((1 << (16 * words)) - 1)


def _find(keys: U64, wanted: U64) -> I64:
    """Positions of keys that are there."""
    return np.searchsorted(keys, wanted)
