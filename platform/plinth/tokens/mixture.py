"""Phases and weights to exact counts of sequences: what the run will see, decided before it starts.

The run has `total_tokens // sequence_tokens` sequences. Phases divide them by cumulative rounding; each phase
is cut into blocks of `block_sequences` and a shorter tail, and gets whole counts per bucket (see `apportion`).
Everything `order` needs is in the statistics of the manifest, which has no parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from plinth.compute.stage import manifest
from plinth.context import Context
from plinth.errors import RecipeError
from plinth.recipe import tokens as recipe
from plinth.records import Manifest, Step
from plinth.tokens.apportion import largest_remainder, shares
from plinth.tokens.packing import Packing, measure
from plinth.tokens.reader import ShardReader

ASSET = "mixture"
VERSION = "1"


def run(ctx: Context, params: recipe.Mixture, shards: Mapping[str, Manifest]) -> Manifest:
    """Fix what every block of the run takes from every bucket; stats only.

    Stats: `sequences`, `tokens`, `sequence_tokens`, `block_sequences`, `seed`; `phases` (name, first,
    sequences, blocks, and by bucket: weights, block_totals, tail, counts, shares); `buckets` (sequences,
    needed, epochs, packing); `packing` of the whole run (shares of padding, masked targets, document starts,
    dropped tokens and split documents; r_pad).

    Raises:
        RecipeError: a weighted bucket has no shards, or is needed for more epochs than the recipe allows, or a
            phase has no sequence.
    """
    wanted = {bucket for phase in params.phases for bucket, weight in phase.weights.items() if weight > 0}
    names = sorted(wanted)
    _require(wanted - set(shards))
    packed = {name: measure(ShardReader(ctx.store, shards[name]), params.sequence_tokens) for name in names}
    available = {name: packing.sequences for name, packing in packed.items()}
    stats = plan(params, available)
    for name, packing in packed.items():
        stats["buckets"][name]["packing"] = packing.model_dump(mode="json")
    stats["packing"] = _overall(stats, packed)
    step = Step(name="tokens.mixture", version=VERSION, params=params.model_dump(mode="json"))
    return manifest(ASSET, step, {f"{name}/shards": shards[name] for name in names}, [], stats)


def plan(params: recipe.Mixture, available: Mapping[str, int]) -> dict[str, Any]:
    """The mixture as arithmetic, from the sequences that each bucket has.

    Raises:
        RecipeError: as `run`.
    """
    names = sorted(available)
    sequences = params.total_tokens // params.sequence_tokens
    phases = [_phase(params, phase, names, first, stop) for phase, first, stop in _cut(params, sequences)]
    needed = {name: sum(phase["counts"][name] for phase in phases) for name in names}
    _check_epochs(params, needed, available)
    return {
        "sequences": sequences,
        "tokens": sequences * params.sequence_tokens,
        "sequence_tokens": params.sequence_tokens,
        "block_sequences": params.block_sequences,
        "seed": params.seed,
        "phases": phases,
        "buckets": {
            name: {
                "sequences": available[name],
                "needed": needed[name],
                "epochs": needed[name] / available[name] if available[name] else 0.0,
            }
            for name in names
        },
    }


def rows(mixture: Manifest) -> list[dict[str, Any]]:
    """A row per phase and bucket: weight asked, share realised, and the difference; for checks and plots."""
    stats = mixture.stats
    return [
        {
            "phase": phase["name"],
            "bucket": name,
            "weight": phase["weights"][name],
            "share": phase["shares"][name],
            "share_error": abs(phase["shares"][name] - phase["weights"][name]),
            "sequences": phase["counts"][name],
            "tokens": phase["counts"][name] * stats["sequence_tokens"],
            "epochs": stats["buckets"][name]["epochs"],
        }
        for phase in stats["phases"]
        for name in stats["buckets"]
    ]


def _cut(params: recipe.Mixture, sequences: int) -> list[tuple[recipe.Phase, int, int]]:
    """Phases with their first and last + 1 sequence: the rounded running sums of their fractions."""
    fractions = shares([phase.fraction for phase in params.phases])
    ends = [int(total * sequences + Fraction(1, 2)) for total in accumulate(fractions)]
    cut = list(zip(params.phases, [0, *ends[:-1]], ends, strict=True))
    empty = [phase.name for phase, first, stop in cut if first == stop]
    if empty:
        raise RecipeError(
            f"mixture.phases: {', '.join(empty)} would have no sequence",
            found=f"{sequences} sequences of {params.sequence_tokens} tokens in the whole run",
            expected="at least one per phase",
            remedy="raise mixture.total_tokens or the phase's fraction",
        )
    return cut


def _phase(params: recipe.Mixture, phase: recipe.Phase, names: Sequence[str], first: int, stop: int) -> dict[str, Any]:
    size = stop - first
    exact = shares([phase.weights.get(name, 0.0) for name in names])
    blocks = size // params.block_sequences
    totals = largest_remainder(exact, blocks * params.block_sequences)
    rest = _tail(exact, totals, size)
    counts = [total + more for total, more in zip(totals, rest, strict=True)]
    return {
        "name": phase.name,
        "first": first,
        "sequences": size,
        "blocks": blocks,
        "weights": {name: float(share) for name, share in zip(names, exact, strict=True)},
        "block_totals": dict(zip(names, totals, strict=True)),
        "tail": dict(zip(names, rest, strict=True)),
        "counts": dict(zip(names, counts, strict=True)),
        "shares": {name: count / size for name, count in zip(names, counts, strict=True)},
    }


def _tail(exact: Sequence[Fraction], totals: Sequence[int], size: int) -> list[int]:
    """What the shorter block at the end gives: what makes the whole phase exact, where that asks for no
    negative count, else its own share."""
    rest = [whole - total for whole, total in zip(largest_remainder(exact, size), totals, strict=True)]
    return rest if min(rest) >= 0 else largest_remainder(exact, size - sum(totals))


def _require(absent: set[str]) -> None:
    if absent:
        raise RecipeError(
            f"mixture.phases: buckets {sorted(absent)} have weights but no shards",
            expected="names of corpus.buckets",
            remedy="correct the name, or give the bucket no weight",
        )


def _check_epochs(params: recipe.Mixture, needed: Mapping[str, int], available: Mapping[str, int]) -> None:
    """Every bucket at once, so that one edit of the recipe can mend them all."""
    over = [name for name in needed if needed[name] > params.max_epochs * available[name]]
    if over:
        lines = [
            f"{name}: {needed[name]:,} sequences needed, {available[name]:,} available"
            + (f" = {needed[name] / available[name]:.2f} epochs" if available[name] else "")
            for name in over
        ]
        raise RecipeError(
            f"the mixture repeats {', '.join(over)} more often than mixture.max_epochs allows",
            found="; ".join(lines),
            expected=f"at most {params.max_epochs} epochs of every bucket",
            remedy="lower the bucket's weight or mixture.total_tokens, add text, or raise mixture.max_epochs",
        )


def _overall(stats: Mapping[str, Any], packed: Mapping[str, Packing]) -> dict[str, float]:
    """Packing over the run: each bucket's rates, weighted by the sequences it gives."""
    weights = {name: stats["buckets"][name]["needed"] / stats["sequences"] for name in packed}

    def share(field: str, of: str) -> float:
        rates = {name: getattr(p, field) / getattr(p, of) for name, p in packed.items() if getattr(p, of)}
        return float(sum(weights[name] * rate for name, rate in rates.items()))

    padding, masked = share("padding", "targets"), share("masked", "targets")
    return {
        "padding_share": padding,
        "masked_share": masked,
        "r_pad": padding + masked,
        "start_share": share("starts", "targets"),
        "dropped_share": share("dropped", "tokens"),
        "split_document_share": share("split_documents", "documents"),
        "dropped_tokens": sum(packing.dropped for packing in packed.values()),
    }
