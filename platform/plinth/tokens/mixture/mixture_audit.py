"""Compare the mixture's counts with the recipe's shares, at every 1,000 blocks.

Counts before any block cost O(log blocks), so a run of a million blocks is measured without walking through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from plinth.tokens.mixture.apportion import Blocks, Ramp
from plinth.tokens.mixture.weights import Leg

EVERY_BLOCKS = 1000
#: Largest difference of a stream's share from the recipe's, in any 1,000 blocks.
TOLERANCE = 0.001


def blocks_of(row: Mapping[str, Any], block_sequences: int, names: Sequence[str]) -> Blocks | Ramp:
    """The full blocks of a leg, from its row in the manifest."""
    if "ramp" in row:
        start, end = (tuple(row["ramp"][at][name] for name in names) for at in ("start", "end"))
        return Ramp(row["blocks"], block_sequences, row["sequences"], start, end)
    return Blocks(row["blocks"], tuple(row["block_totals"][name] for name in names))


def audit(
    legs: Sequence[Leg], rows: Sequence[Mapping[str, Any]], block_sequences: int, names: Sequence[str]
) -> dict[str, Any]:
    """Compare every stretch of 1,000 blocks, and the rest at the end of a leg, with the exact shares there.

    Returns:
        every_blocks; stretches (how many were compared); max_share_error over the whole stretches, with `stream` and
        `first` (position of that stretch); rest_share_error over the shorter ones at the ends of legs;
        max_drift_sequences, the largest difference of cumulative counts in a leg from the exact ones; within.
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
    """The mixture along the run in about `points` stretches: the recipe's shares (`asked`), the actual (`realised`).

    Returns:
        rows of first, stop (sequences), phase, asked, realised.
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
    """Exact sequences of a stream among the first `count` of a leg: the area under its line."""
    start, end = leg.start[name], leg.end[name]
    return start * count + (end - start) * Fraction(count * count, 2 * leg.size)


#: Repeating text up to about this often is almost as good as new text, beyond it is worth less and less
#: (Muennighoff et al., "Scaling Data-Constrained Language Models", arXiv:2305.16264).
GOOD_EPOCHS = 4.0
NEAR = 0.9
RARELY = 0.01


def advice(stats: Mapping[str, Any]) -> list[str]:
    """Sentences for people, the most important first; empty where none applies."""
    return [*_capped(stats), *_repeated(stats), *_near(stats), *_rarely_used(stats), *_inexact(stats)]


def _capped(stats: Mapping[str, Any]) -> Iterator[str]:
    width = stats["sequence_tokens"]
    for name, sequences in stats["capped"].items():
        own = stats["buckets"][name]
        lacking = sequences / max(own["max_epochs"], 1.0)
        yield (
            f"{name} reached its bound of {own['max_epochs']:g} epochs: {sequences * width:,.0f} tokens of its weight "
            f"went to other streams. {lacking * width:,.0f} more tokens of text, or a bound of "
            f"{_epochs_asked(own, sequences):.2f} epochs, would give it its full weight."
        )


def _epochs_asked(own: Mapping[str, Any], sequences: float) -> float:
    return float((own["needed"] + sequences) / own["sequences"]) if own["sequences"] else float("inf")


def _repeated(stats: Mapping[str, Any]) -> Iterator[str]:
    width = stats["sequence_tokens"]
    for name, own in stats["buckets"].items():
        if own["epochs"] > GOOD_EPOCHS:
            text = (own["needed"] / GOOD_EPOCHS - own["sequences"]) * width
            yield (
                f"{name} is repeated {own['epochs']:.1f} times; beyond {GOOD_EPOCHS:g} repetition teaches less and "
                f"less. {text:,.0f} more tokens of text, or weights lowered to {GOOD_EPOCHS / own['epochs']:.2f} of "
                "what they are, would keep it there."
            )


def _near(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, own in stats["buckets"].items():
        if name in stats.get("planted", ()):
            continue
        if NEAR * own["max_epochs"] < own["epochs"] <= GOOD_EPOCHS and name not in stats["capped"]:
            slack = own["max_epochs"] / own["epochs"] - 1
            yield (
                f"{name} needs {own['epochs']:.2f} of at most {own['max_epochs']:g} epochs: a run {slack:.0%} longer, "
                "or as much less text, would be refused."
            )


def _rarely_used(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, own in stats["buckets"].items():
        if own["sequences"] and 0 < own["epochs"] < RARELY:
            yield f"{name} is hardly seen: {own['epochs']:.2%} of its text. More weight or a longer run would use it."


def _inexact(stats: Mapping[str, Any]) -> Iterator[str]:
    realised = stats["realised"]
    if not realised["within"]:
        yield (
            f"{realised['stream']} is {realised['max_share_error']:.3%} from its share in the 1,000 blocks from "
            f"sequence {realised['first']:,} on; a larger mixture.block_sequences brings it nearer."
        )
