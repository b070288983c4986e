"""Bits per token by position in the document: whether a longer context helps, and up to where.

Every token has a position, so the bins add up to the whole. Late positions exist in long documents only, and long
documents are other text than short ones: `long` is the same curve over documents that fill the context alone, in which
every bin is of the same documents. A token at a position below the context length is predicted from all tokens before
it, one beyond from at least an eighth of the context (`evaluation.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.evaluation import statistics
from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.slices.totals import SEED, exact_sum

#: Where the second bin begins; each later one begins at twice the position of the one before.
FIRST = 8


def by_position(tokens: Sequence[TokenBits], context_tokens: int) -> dict[str, Any]:
    """Loss by position.

    Args:
        tokens: of every document.
        context_tokens: tokens that the model takes at once.

    Returns:
        `context_tokens`, `all` and `long`: rows with `start` and `end` of the bin (positions from 0, half open),
        `tokens`, `bits` (exact), `value` in bits per token with `low`, `high`, `n` documents and `seed`. `long` is
        empty where no document fills the context.
    """
    edges = bins(max((len(one.bits) for one in tokens), default=0))
    long = [one for one in tokens if len(one.bits) >= context_tokens]
    within = bins(context_tokens)
    return {
        "context_tokens": context_tokens,
        "all": _rows(tokens, edges),
        "long": _rows([TokenBits(one.ends[:context_tokens], one.bits[:context_tokens]) for one in long], within),
    }


def bins(longest: int) -> NDArray[np.int64]:
    """Edges of the bins that positions up to a length fall into: 0, 8, 16, 32, …, length."""
    doublings = FIRST * 2 ** np.arange(0, 63 - 3, dtype=np.int64)
    return np.concatenate(([0], doublings[doublings < longest], [longest])).astype(np.int64)


def _rows(tokens: Sequence[TokenBits], edges: NDArray[np.int64]) -> list[dict[str, Any]]:
    if not tokens or edges[-1] == 0:
        return []
    sums, counts = (np.array(each) for each in zip(*(_binned(one.bits, edges) for one in tokens), strict=True))
    return [_row(edges[at], edges[at + 1], sums[:, at], counts[:, at]) for at in range(len(edges) - 1)]


def _binned(bits: NDArray[np.float64], edges: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Bits and tokens of one document in each bin; its sums are of multiples of a grid, so differences are exact."""
    upto = np.minimum(edges, len(bits))
    return np.diff(np.concatenate(([0.0], np.cumsum(bits)))[upto]), np.diff(upto)


def _row(start: int, end: int, bits: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, Any]:
    there = counts > 0
    found, total = statistics.ratio(bits[there], counts[there], seed=SEED), exact_sum(bits)
    numbers = {"value": total / int(counts.sum()), "low": found.low, "high": found.high}
    return {
        "start": int(start),
        "end": int(end),
        "tokens": int(counts.sum()),
        "bits": total,
        **{name: round(value, 6) for name, value in numbers.items()},
        "n": found.n,
        "seed": found.seed,
    }
