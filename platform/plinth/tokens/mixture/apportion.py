"""Numbers of sequences per bucket and block, as exact integers in closed form.

An audit compares these numbers with the recipe's shares, over every 1,000 blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

from plinth.tokens.mixture.weights import Leg

# How many sequences each bucket gives to each block: whole numbers, exact, in closed form.
#
# Over all K blocks bucket j gives M[j] sequences (largest remainder of its weight). Every block gets
# floor(M[j] / K) of them; the rest, E[j] = M[j] mod K, are spread by systematic sampling: with A = cumulative
# sums of E and u(k) = k g mod K, block k gets floor((A[j] + u(k)) / K) - floor((A[j-1] + u(k)) / K) more. So
#
# - every block is full, and each count is the floor or the ceiling of the exact share;
# - over all blocks the counts are exactly M, because u(k) takes every value below K once (Hermite's identity);
# - in between, counts drift from the exact share by the discrepancy of u(k), which for g close to K divided by
#   the golden ratio grows like the logarithm of K: a few sequences, however long the run;
# - the count before any block is a sum of floors of a line, found in O(log K) by Euclid's algorithm.
#
# A ramp is the same with edges that move: the exact shares of block k are linear in k, so their sums of floors are
# such sums too, and a ramp of any length is a row of numbers and costs O(log K) (`Ramp`).

#: 2^64 divided by the golden ratio: the multiplier whose multiples lie most evenly on a circle (Knuth, TAOCP 3, 6.4).
GOLDEN_64 = 0x9E3779B97F4A7C15
STRIDE_REACH = 64


def shares(weights: Sequence[float]) -> list[Fraction]:
    """Return the weights as exact fractions that add up to 1. Each weight is read as a decimal number.

    Raises:
        ValueError: a weight is negative, or no weight is positive.
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    total = sum(exact)
    if total <= 0 or any(weight < 0 for weight in exact):
        raise ValueError(f"weights {list(weights)}; expected none below 0 and at least one above 0")
    return [weight / total for weight in exact]


def largest_remainder(parts: Sequence[Fraction], seats: int) -> list[int]:
    """Distribute `seats` by the largest-remainder method: each result is the floor or ceiling of its exact part.

    The results add up to `seats`. If remainders are equal, the first parts are rounded up.

    Raises:
        ValueError: the parts do not add up to 1.
    """
    if sum(parts) != 1:
        raise ValueError(f"parts add up to {sum(parts)}, expected 1")
    floors = [int(part * seats) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda j: (floors[j] - parts[j] * seats, j))
    for j in by_remainder[: seats - sum(floors)]:
        floors[j] += 1
    return floors


def floor_sum(n: int, modulus: int, slope: int, offset: int) -> int:
    """Return the sum of floor((slope * i + offset) / modulus) for i in range(n), in O(log modulus).

    The function counts lattice points under a line by Euclid's algorithm (Graham, Knuth and Patashnik, "Concrete
    Mathematics", section 3.5). `modulus` must be positive, and the other arguments must not be negative.
    """
    total = 0
    while n > 0:
        total += (slope // modulus) * (n * (n - 1) // 2) + (offset // modulus) * n
        slope, offset = slope % modulus, offset % modulus
        n, offset = divmod(slope * n + offset, modulus)
        modulus, slope = slope, modulus
    return total


def even_stride(modulus: int) -> int:
    """Return a number g coprime to the modulus K, such that the first multiples of g are spread evenly modulo K.

    Candidates are the integers near K / φ (golden ratio). The result is the candidate whose fraction g / K
    has the smallest sum of partial quotients. This sum bounds the discrepancy of the multiples (Niederreiter 1992,
    "Random Number Generation and Quasi-Monte Carlo Methods", chapter 3).
    """
    golden = modulus * GOLDEN_64 >> 64
    near = range(max(1, golden - STRIDE_REACH), max(2, min(modulus, golden + STRIDE_REACH)))
    return min((g for g in near if gcd(g, modulus) == 1), key=lambda g: (_quotient_sum(g, modulus), g))


def _quotient_sum(slope: int, modulus: int, reach: int | None = None) -> int:
    """Return the sum of the partial quotients of slope / modulus.

    If `reach` is given, count only the quotients that affect the first `reach` multiples.
    """
    total, before, denominator = 0, 0, 1
    while slope:
        quotient = modulus // slope
        if reach is not None and denominator > reach:
            break
        total += quotient if reach is None else min(quotient, reach // denominator + 1)
        before, denominator = denominator, quotient * denominator + before
        modulus, slope = slope, modulus % slope
    return total


@dataclass(frozen=True)
class Blocks:
    """Number of sequences per bucket, in `blocks` blocks of equal size.

    Args:
        blocks: number of blocks K.
        totals: sequences M of each bucket in all blocks together; their sum is a multiple of K.
    """

    blocks: int
    totals: tuple[int, ...]

    def counts(self, block: int) -> list[int]:
        """Return the number of sequences per bucket in a block; the counts add up to the block's size."""
        offset = block * self._stride % self.blocks
        bounds = [(edge + offset) // self.blocks for edge in self._edges]
        return [total // self.blocks + bounds[j + 1] - bounds[j] for j, total in enumerate(self.totals)]

    def before(self, block: int) -> list[int]:
        """Return the number of sequences per bucket in all blocks before `block`.

        If `block` is the number of blocks, all blocks are counted.
        """
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


#: Parts into which a ramp divides one sequence of a block: weights are rounded to these, far below any count.
RAMP_UNIT = 2**32
RAMP_STRIDES = 64


@dataclass(frozen=True)
class Ramp:
    """Number of sequences per bucket in equal blocks, if the shares change linearly from the first sequence to the
    last.

    F(k) are the running sums, over buckets, of block k's exact counts. Block k has floor(F[j](k) + u(k)) -
    floor(F[j-1](k) + u(k)) sequences of bucket j, with u(k) = k g / Q mod 1. This is systematic sampling, as in
    `Blocks`: every block is full, and each count is the floor or ceiling of the exact count. F is linear in k, so the
    counts before a block are sums of floors of lines. Over all blocks, the counts are exact to a few sequences.

    Args:
        blocks: number of blocks K.
        size: sequences per block B.
        sequences: sequences of the whole ramp, including its tail; at the tail's end, the shares have their end values.
        start, end: by bucket, running sums of the shares at the start and end, in units of 1 / RAMP_UNIT of a sequence
            of a block; the last sum is B RAMP_UNIT.
    """

    blocks: int
    size: int
    sequences: int
    start: tuple[int, ...]
    end: tuple[int, ...]

    @classmethod
    def between(cls, start: Sequence[Fraction], end: Sequence[Fraction], size: int, sequences: int) -> Ramp:
        """Return the ramp between the shares `start` and `end`, each of which adds up to 1."""
        edges = [
            tuple(int(total * size * RAMP_UNIT + Fraction(1, 2)) for total in accumulate(at)) for at in (start, end)
        ]
        return cls(sequences // size, size, sequences, edges[0], edges[1])

    def counts(self, block: int) -> list[int]:
        """Return the number of sequences per bucket in a block; the counts add up to the block's size."""
        bounds = [(offset + slope * block) // self._modulus for offset, slope in self._lines]
        return [high - low for low, high in pairwise(bounds)]

    def before(self, block: int) -> list[int]:
        """Return the number of sequences per bucket in all blocks before `block`.

        If `block` is the number of blocks, all blocks are counted.
        """
        bounds = [_line_sum(block, self._modulus, slope, offset) for offset, slope in self._lines]
        return [high - low for low, high in pairwise(bounds)]

    @property
    def _modulus(self) -> int:
        return 2 * self.sequences * RAMP_UNIT

    @cached_property
    def _edges(self) -> list[tuple[int, int]]:
        """Running sums of the shares in the middle of a block, as lines (offset, slope) over the block number.

        Both numbers of a line are in units of 1 / `_modulus`.
        """
        lines = [(0, 0)]
        for start, end in zip(self.start, self.end, strict=True):
            rise = (end - start) * self.size
            lines.append((2 * self.sequences * start + rise, 2 * rise))
        return lines

    @cached_property
    def _lines(self) -> list[tuple[int, int]]:
        return [(offset, slope + self._stride) for offset, slope in self._edges]

    @cached_property
    def _stride(self) -> int:
        """Stride that spreads the rounding of the worst running sum most evenly over the blocks.

        Candidates are the first `RAMP_STRIDES` multiples of the golden ratio.
        """
        modulus = self._modulus
        near = [((GOLDEN_64 * n & (2**64 - 1)) * modulus >> 64) for n in range(1, RAMP_STRIDES + 1)]
        slopes = {slope for _, slope in self._edges}

        def worst(stride: int) -> int:
            return max(_quotient_sum((slope + stride) % modulus, modulus, self.blocks) for slope in slopes)

        return min(near, key=lambda stride: (worst(stride), stride))


def _line_sum(n: int, modulus: int, slope: int, offset: int) -> int:
    """Return `floor_sum` for a slope that may be negative."""
    turns = -(slope // modulus) if slope < 0 else 0
    return floor_sum(n, modulus, slope + turns * modulus, offset) - turns * (n * (n - 1) // 2)


# Compare the mixture's counts with the recipe's shares, at every 1,000 blocks.
#
# Counts before any block cost O(log blocks), so a run of a million blocks is measured without walking through it.

EVERY_BLOCKS = 1000
#: Largest difference of a stream's share from the recipe's, in any 1,000 blocks.
TOLERANCE = 0.001


def blocks_of(row: Mapping[str, Any], block_sequences: int, names: Sequence[str]) -> Blocks | Ramp:
    """Return the counts of a phase's full blocks, from its row (leg) in the manifest."""
    if "ramp" in row:
        start, end = (tuple(row["ramp"][at][name] for name in names) for at in ("start", "end"))
        return Ramp(row["blocks"], block_sequences, row["sequences"], start, end)
    return Blocks(row["blocks"], tuple(row["block_totals"][name] for name in names))


def audit(
    legs: Sequence[Leg], rows: Sequence[Mapping[str, Any]], block_sequences: int, names: Sequence[str]
) -> dict[str, Any]:
    """Compare the mixture's counts with the exact shares, over every 1,000 blocks and the rest at the end of a phase.

    Returns:
        every_blocks: blocks per comparison.
        stretches: number of comparisons.
        max_share_error: largest error over comparisons of 1,000 blocks, with its `stream` and its `first` position.
        rest_share_error: largest error over the shorter comparisons at the ends of phases.
        max_drift_sequences: largest difference between cumulative and exact counts in a phase.
        within: True if `max_share_error` is within the tolerance.
    """
    worst: dict[str, Any] = {"max_share_error": 0.0, "stream": None, "first": None}
    rest = drift = 0.0
    stretches = 0
    for leg, row in zip(legs, rows, strict=True):
        given = blocks_of(row, block_sequences, names)
        before, wanted, at = [0] * len(names), [Fraction(0)] * len(names), 0
        for stop in [*range(EVERY_BLOCKS, row["blocks"] + 1, EVERY_BLOCKS), None]:
            end = leg.size if stop is None else stop * block_sequences
            if end == at:
                continue
            now = given.before(stop) if stop is not None else [row["counts"][name] for name in names]
            exact = [_exact(leg, name, end) for name in names]
            errors = [abs(float(n - b - e + w)) for n, b, e, w in zip(now, before, exact, wanted, strict=True)]
            drift = max(drift, *(abs(float(n - e)) for n, e in zip(now, exact, strict=True)))
            error, number = max((error / (end - at), number) for number, error in enumerate(errors))
            stretches += 1
            if stop is None:
                rest = max(rest, error)
            elif error > worst["max_share_error"]:
                worst = {"max_share_error": error, "stream": names[number], "first": leg.first + at}
            before, wanted, at = now, exact, end
    return {
        "every_blocks": EVERY_BLOCKS,
        "stretches": stretches,
        **worst,
        "rest_share_error": rest,
        "max_drift_sequences": drift,
        "within": worst["max_share_error"] <= TOLERANCE,
    }


def shares_over_run(stats: Mapping[str, Any], points: int = 60) -> list[dict[str, Any]]:
    """Return the shares of the streams along the run, in about `points` intervals, for plots.

    Returns:
        one row per interval: first and stop position in sequences, phase, the recipe's shares (`asked`), and the actual
        shares (`realised`).
    """
    names = sorted(stats["buckets"])
    wide = max(1, stats["sequences"] // points)
    made = []
    for row in stats["phases"]:
        given = blocks_of(row, stats["block_sequences"], names)
        start, end = row.get("from_weights", row["weights"]), row.get("to_weights", row["weights"])
        count = max(1, min(row["blocks"], round(row["sequences"] / wide)))
        before, at = [0] * len(names), 0
        for number in range(1, count + 1):
            last = number == count
            block = row["blocks"] * number // count
            stop = row["sequences"] if last else block * stats["block_sequences"]
            now = [row["counts"][name] for name in names] if last else given.before(block)
            middle = (at + stop) / 2 / row["sequences"]
            made.append(
                {
                    "first": row["first"] + at,
                    "stop": row["first"] + stop,
                    "phase": row["phase"],
                    "asked": {name: start[name] + (end[name] - start[name]) * middle for name in names},
                    "realised": {n: (b - a) / (stop - at) for n, a, b in zip(names, before, now, strict=True)},
                }
            )
            before, at = now, stop
    return made


def _exact(leg: Leg, name: str, count: int) -> Fraction:
    """Return the exact number of a stream's sequences among the first `count` sequences of a phase.

    This number is the integral of the stream's share.
    """
    start, end = leg.start[name], leg.end[name]
    return start * count + (end - start) * Fraction(count * count, 2 * leg.size)


#: Repeating text up to about this often is almost as good as new text, beyond it is worth less and less
#: (Muennighoff et al., "Scaling Data-Constrained Language Models", arXiv:2305.16264).
GOOD_EPOCHS = 4.0
NEAR = 0.9
RARELY = 0.01


def advice(stats: Mapping[str, Any]) -> list[str]:
    """Return recommendations for the mixture, most important first; empty if none applies."""
    return [*_capped(stats), *_repeated(stats), *_near(stats), *_rarely_used(stats), *_inexact(stats)]


def _capped(stats: Mapping[str, Any]) -> Iterator[str]:
    width = stats["sequence_tokens"]
    for name, sequences in stats["capped"].items():
        own = stats["buckets"][name]
        lacking = sequences / max(own["max_epochs"], 1.0)
        yield (
            f"{name} reached its limit of {own['max_epochs']:g} epochs, so other streams supply "
            f"{sequences * width:,.0f} tokens of its share. To give {name} its full share, add {lacking * width:,.0f} "
            f"tokens of text, or raise the limit to {_epochs_asked(own, sequences):.2f} epochs."
        )


def _epochs_asked(own: Mapping[str, Any], sequences: float) -> float:
    return float((own["needed"] + sequences) / own["sequences"]) if own["sequences"] else float("inf")


def _repeated(stats: Mapping[str, Any]) -> Iterator[str]:
    width = stats["sequence_tokens"]
    for name, own in stats["buckets"].items():
        if own["epochs"] > GOOD_EPOCHS:
            text = (own["needed"] / GOOD_EPOCHS - own["sequences"]) * width
            yield (
                f"{name} is repeated {own['epochs']:.1f} times; returns diminish above {GOOD_EPOCHS:g} epochs. To stay "
                f"at {GOOD_EPOCHS:g} epochs, add {text:,.0f} tokens of text, or multiply its weights by "
                f"{GOOD_EPOCHS / own['epochs']:.2f}."
            )


def _near(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, own in stats["buckets"].items():
        if name in stats.get("planted", ()):
            continue
        if NEAR * own["max_epochs"] < own["epochs"] <= GOOD_EPOCHS and name not in stats["capped"]:
            slack = own["max_epochs"] / own["epochs"] - 1
            yield (
                f"{name} needs {own['epochs']:.2f} of at most {own['max_epochs']:g} epochs. A run {slack:.0%} longer "
                "would exceed the limit."
            )


def _rarely_used(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, own in stats["buckets"].items():
        if own["sequences"] and 0 < own["epochs"] < RARELY:
            yield (
                f"{name} is rarely used: the run reads {own['epochs']:.2%} of its text. Raise its weight, or train "
                "longer."
            )


def _inexact(stats: Mapping[str, Any]) -> Iterator[str]:
    realised = stats["realised"]
    if not realised["within"]:
        yield (
            f"{realised['stream']} differs by {realised['max_share_error']:.3%} from its share in the 1,000 blocks "
            f"that start at sequence {realised['first']:,}. Raise mixture.block_sequences to reduce the error."
        )
