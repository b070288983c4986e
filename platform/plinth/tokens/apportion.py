"""How many sequences each bucket gives to each block: whole numbers, exact, in closed form.

Over all K blocks bucket j gives M[j] sequences (largest remainder of its weight). Every block gets
floor(M[j] / K) of them; the rest, E[j] = M[j] mod K, are spread by systematic sampling: with A = cumulative
sums of E and u(k) = k g mod K, block k gets floor((A[j] + u(k)) / K) - floor((A[j-1] + u(k)) / K) more. So

- every block is full, and each count is the floor or the ceiling of the exact share;
- over all blocks the counts are exactly M, because u(k) takes every value below K once (Hermite's identity);
- in between, counts drift from the exact share by the discrepancy of u(k), which for g close to K divided by
  the golden ratio grows like the logarithm of K: a few sequences, however long the run;
- the count before any block is a sum of floors of a line, found in O(log K) by Euclid's algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import gcd

#: 2^64 divided by the golden ratio: the multiplier whose multiples lie most evenly on a circle (Knuth, TAOCP 3, 6.4).
GOLDEN_64 = 0x9E3779B97F4A7C15
STRIDE_REACH = 64


def shares(weights: Sequence[float]) -> list[Fraction]:
    """Weights as exact fractions that add up to 1, read as the decimals they were written as.

    Raises:
        ValueError: when a weight is negative or none is positive.
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    total = sum(exact)
    if total <= 0 or any(weight < 0 for weight in exact):
        raise ValueError(f"weights {list(weights)}; expected none below 0 and one above")
    return [weight / total for weight in exact]


def largest_remainder(parts: Sequence[Fraction], seats: int) -> list[int]:
    """Whole numbers that add up to `seats`, each the floor or ceiling of its exact part; ties go to the first.

    Raises:
        ValueError: when the parts do not add up to 1.
    """
    if sum(parts) != 1:
        raise ValueError(f"parts add up to {sum(parts)}, expected 1")
    floors = [int(part * seats) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda j: (floors[j] - parts[j] * seats, j))
    for j in by_remainder[: seats - sum(floors)]:
        floors[j] += 1
    return floors


def floor_sum(n: int, modulus: int, slope: int, offset: int) -> int:
    """Sum of floor((slope * i + offset) / modulus) for i in range(n), in O(log modulus).

    Counts lattice points under a line by Euclid's algorithm (Graham, Knuth and Patashnik, "Concrete
    Mathematics", section 3.5). Arguments are not negative, `modulus` is positive.
    """
    total = 0
    while n > 0:
        total += (slope // modulus) * (n * (n - 1) // 2) + (offset // modulus) * n
        slope, offset = slope % modulus, offset % modulus
        n, offset = divmod(slope * n + offset, modulus)
        modulus, slope = slope, modulus
    return total


def even_stride(modulus: int) -> int:
    """A number g coprime to the modulus K whose multiples fill the circle evenly from the first on.

    Near K divided by the golden ratio, the one whose g / K has the smallest sum of partial quotients: that sum
    bounds the discrepancy of its multiples (Niederreiter 1992, "Random Number Generation and Quasi-Monte Carlo
    Methods", chapter 3).
    """
    golden = modulus * GOLDEN_64 >> 64
    near = range(max(1, golden - STRIDE_REACH), max(2, min(modulus, golden + STRIDE_REACH)))
    return min((g for g in near if gcd(g, modulus) == 1), key=lambda g: (_quotient_sum(g, modulus), g))


def _quotient_sum(slope: int, modulus: int) -> int:
    total = 0
    while slope:
        total += modulus // slope
        modulus, slope = slope, modulus % slope
    return total


@dataclass(frozen=True)
class Blocks:
    """Counts of buckets in `blocks` blocks of equal size.

    Args:
        blocks: K, how many blocks there are.
        totals: M, how many sequences each bucket gives to all of them; their sum is a multiple of K.
    """

    blocks: int
    totals: tuple[int, ...]

    def counts(self, block: int) -> list[int]:
        """Sequences of each bucket in a block; they add up to the block's size."""
        offset = block * self._stride % self.blocks
        bounds = [(edge + offset) // self.blocks for edge in self._edges]
        return [total // self.blocks + bounds[j + 1] - bounds[j] for j, total in enumerate(self.totals)]

    def before(self, block: int) -> list[int]:
        """Sequences of each bucket in all blocks before this one; `block` may be K."""
        if not self.blocks:
            return [0] * len(self.totals)
        line = floor_sum(block, self.blocks, self._stride, 0)
        bounds = [floor_sum(block, self.blocks, self._stride, edge) - line for edge in self._edges]
        return [block * (total // self.blocks) + bounds[j + 1] - bounds[j] for j, total in enumerate(self.totals)]

    @cached_property
    def _edges(self) -> list[int]:
        return [0, *accumulate(total % self.blocks for total in self.totals)]

    @cached_property
    def _stride(self) -> int:
        return even_stride(self.blocks)
