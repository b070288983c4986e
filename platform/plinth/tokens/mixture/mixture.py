"""Mixture stage: converts phases and weights to exact counts of sequences before the run starts.

    recipe  -> shares of streams (`weights`)          -> one leg per phase      (`weights`)
    legs    -> within the limits on epochs (`caps`)   -> counts per block       (`apportion`)
    counts  -> compared with the recipe at every 1,000 blocks                   (`apportion`)

The run has `total_tokens // sequence_tokens` sequences, which are divided over the phases by cumulative rounding. Each
leg of a phase is cut into blocks of `block_sequences` and a shorter tail, with a whole number of sequences per stream.
The manifest has no parts: its statistics contain everything that `order` needs, with one row per leg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import Any

from plinth.compute.context import Context, manifest
from plinth.errors import RecipeError
from plinth.records import Manifest, Step
from plinth.tokens.mixture import caps, parameters
from plinth.tokens.mixture.apportion import Ramp, audit, largest_remainder, shares
from plinth.tokens.mixture.caps import require_room, widened
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.mixture.weights import Leg, legs, streams_by_key, used_streams, without_text
from plinth.tokens.packing import PackingCounts, counts_of, measure
from plinth.tokens.shards.parameters import Stream, streams_of_all
from plinth.tokens.shards.reader import ShardReader

ASSET = "mixture"
VERSION = "3"

#: Rounds in which a bound is lowered by the excess of whole counts.
ROUNDS = 8


def run(
    ctx: Context,
    params: Mixture,
    shards: Mapping[str, Manifest],
    packed: Mapping[str, Manifest] | None = None,
    planted: Sequence[str] = (),
    replayed: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """Compute the number of sequences that each block takes from each stream; the manifest has only statistics.

    Args:
        shards: shards of each bucket.
        packed: with `packing: best-fit`, the packed indexes of the same buckets.
        planted: buckets that no key of the recipe names; they are read once, spread over the run.
        replayed: number of sequences by stream, for streams that no key of the recipe names; spread over the run too.

    Stats:
        sequences, tokens, sequence_tokens, block_sequences, seed: size of the run, and its seed.
        phases: one row per leg (phase, name, first, sequences, blocks), with values by stream (weights, block_totals,
            tail, counts, shares), and `ramp` if the shares change.
        buckets: values by stream (sequences, needed, epochs, max_epochs, packing), with the tokens and parts of the
            stream's index.
        realised: comparison with the recipe, see `apportion.audit`.
        capped: number of sequences that limits on epochs took from streams.
        packing: rates over the run's text (padding, masked targets, document starts, dropped tokens, split documents,
            r_pad).
        planted, replayed: planted streams, and sequences of replayed streams, if there are any.
        empty: buckets with a weight but without tokens, if there are any; their share goes to other buckets.

    Raises:
        RecipeError: a key names no stream, a stream needs more epochs than the recipe allows, a phase has no sequence,
            or planted text takes too much of the run.
    """
    streams = {stream.name: stream for stream in streams_of_all(shards)}
    _require_buckets(params, shards)
    empty = _without_tokens(params, shards)
    asked = params.model_copy(update={"phases": without_text(params.phases, empty)}) if empty else params
    streams_by_key("epoch_caps", params.epoch_caps, sorted(streams))
    own_text = sorted(name for name, stream in streams.items() if stream.bucket in planted)
    given = {*own_text, *replayed}
    names = sorted([*used_streams(asked.phases, sorted(streams.keys() - given)), *given])
    packing = {name: _packing(ctx, params, streams[name], shards, packed or {}) for name in names}
    stats = plan(asked, {name: own.sequences for name, own in packing.items()}, own_text, replayed)
    for name, own in packing.items():
        stats["buckets"][name]["packing"] = own.model_dump(mode="json")
        stats["buckets"][name]["index"] = _index(streams[name], shards)
    stats["packing"] = _overall(stats, {name: own for name, own in packing.items() if name not in own_text})
    more = {"replayed": dict(replayed)} if replayed else {}
    step = Step(name="tokens.mixture", version=VERSION, params=params.model_dump(mode="json") | more)
    buckets = sorted({streams[name].bucket for name in names}.union(empty))
    inputs = {f"{bucket}/shards": shards[bucket] for bucket in buckets}
    inputs |= {f"{bucket}/packed": packed[bucket] for bucket in buckets if packed}
    return manifest(ASSET, step, inputs, [], stats | ({"empty": empty} if empty else {}))


def plan(
    params: Mixture,
    available: Mapping[str, int],
    planted: Sequence[str] = (),
    replayed: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the statistics of the mixture, computed from the number of sequences that each stream has.

    The run reads all sequences of the streams in `planted`. `replayed` maps streams to the number of sequences that the
    run reads from them.

    Raises:
        RecipeError: a key names no stream, a stream needs more epochs than the recipe allows, a phase has no sequence,
            or planted text takes too much of the run.
    """
    names = sorted(available)
    sequences = params.total_tokens // params.sequence_tokens
    text = {name: available[name] for name in names if name not in planted and name not in replayed}
    limits = caps.bounds(params, sorted(text))
    asked = {name: available[name] for name in planted}
    require_room(asked, sequences, params.sequence_tokens)
    asked |= replayed
    for _ in range(ROUNDS):
        requested = [
            leg
            for phase, first, stop in _cut(params, sequences - sum(asked.values()))
            for leg in legs(phase, first, stop, text, params.sequence_tokens)
        ]
        narrow, made, rows = _within(params, requested, caps.max_sequences(limits, text), asked, names)
        needed = {name: sum(row["counts"][name] for row in rows) for name in names}
        short = {name: available[name] - needed[name] for name in planted if needed[name] < available[name]}
        if not short:
            break
        asked |= {name: asked[name] + lacking for name, lacking in short.items()}  # a ramp's counts are near, not exact
    own = text | {name: available[name] for name in replayed}
    limits |= dict.fromkeys(replayed, params.max_epochs)
    caps.require_within(params, {name: needed[name] for name in own}, own, limits)
    limits |= {name: float(math.ceil(needed[name] / available[name])) for name in planted if available[name]}
    before, after = caps.requested_sequences(requested), caps.requested_sequences(narrow)
    taken = {name: float(before[name] - amount) for name, amount in after.items() if amount < before[name]}
    return {
        "sequences": sequences,
        "tokens": sequences * params.sequence_tokens,
        "sequence_tokens": params.sequence_tokens,
        "block_sequences": params.block_sequences,
        "seed": params.seed,
        "phases": rows,
        "buckets": {
            name: {
                "sequences": available[name],
                "needed": needed[name],
                "epochs": needed[name] / available[name] if available[name] else 0.0,
                "max_epochs": limits[name],
            }
            for name in names
        },
        "capped": taken,
        "realised": audit(made, rows, params.block_sequences, names),
        **({"planted": list(planted)} if planted else {}),
        **({"replayed": dict(replayed)} if replayed else {}),
    }


def rows(mixture: Manifest) -> list[dict[str, Any]]:
    """Return one row per phase and stream, with weight, actual share and their difference; for checks and plots."""
    stats = mixture.stats
    made: list[dict[str, Any]] = []
    for phase, group in groupby(stats["phases"], key=lambda leg: leg["phase"]):
        legs_of = list(group)
        size = sum(leg["sequences"] for leg in legs_of)
        for name, own in stats["buckets"].items():
            weight = sum(leg["weights"][name] * leg["sequences"] for leg in legs_of) / size
            count = sum(leg["counts"][name] for leg in legs_of)
            made.append(
                {
                    "phase": phase,
                    "bucket": name,
                    "weight": weight,
                    "share": count / size,
                    "share_error": abs(count / size - weight),
                    "sequences": count,
                    "tokens": count * stats["sequence_tokens"],
                    "epochs": own["epochs"],
                    "max_epochs": own["max_epochs"],
                    "phase_sequences": size,
                    "legs": len(legs_of),
                }
            )
    return made


def _cut(params: Mixture, sequences: int) -> list[tuple[Phase, int, int]]:
    """Return each phase with its first sequence and its end (exclusive).

    The ends are the rounded running sums of the phases' fractions.
    """
    fractions = shares([phase.fraction for phase in params.phases])
    edges = [int(total * sequences + Fraction(1, 2)) for total in accumulate(fractions)]
    cut = list(zip(params.phases, [0, *edges[:-1]], edges, strict=True))
    empty = [phase.name for phase, first, stop in cut if first == stop]
    if empty:
        raise RecipeError(
            f"mixture.phases: {', '.join(empty)} would have no sequences",
            found=f"{sequences} sequences of {params.sequence_tokens} tokens in the whole run",
            expected="at least one sequence per phase",
            remedy="raise mixture.total_tokens or the phase's fraction",
        )
    return cut


def _within(
    params: Mixture,
    requested: list[Leg],
    most: Mapping[str, int],
    planted: Mapping[str, int],
    names: Sequence[str],
) -> tuple[list[Leg], list[Leg], list[dict[str, Any]]]:
    """Return three lists with one element per phase: legs of the text, legs with planted sequences, and rows with
    counts.

    If the recipe sets `redistribute`, counts are within the epoch limits. Rounding may exceed a limit by a sequence or
    two; the limit is then lowered by the excess, and the shares are redistributed again.
    """
    if params.over_cap == "refuse":
        made = widened(requested, planted)
        return requested, made, [_row(params, leg, names) for leg in made]
    limits = dict(most)
    for _ in range(ROUNDS):
        narrow = caps.redistribute(requested, limits, params.sequence_tokens)
        made = widened(narrow, planted)
        rows = [_row(params, leg, names) for leg in made]
        over = {name: sum(row["counts"][name] for row in rows) - bound for name, bound in most.items()}
        if max(over.values()) <= 0:
            break
        limits = {name: max(0, limit - max(0, over[name])) for name, limit in limits.items()}
    return narrow, made, rows


def _row(params: Mixture, leg: Leg, names: Sequence[str]) -> dict[str, Any]:
    """Return the manifest row of a phase: whole counts of its full blocks and its tail, as close to its shares as
    possible."""
    exact = [leg.middle[name] for name in names]
    blocks = leg.size // params.block_sequences
    ramp = _ramp(params, leg, names) if leg.start != leg.end and blocks else None
    totals = ramp.before(blocks) if ramp else largest_remainder(exact, blocks * params.block_sequences)
    rest = _tail(exact, totals, leg.size)
    counts = [total + more for total, more in zip(totals, rest, strict=True)]
    row = {
        "phase": leg.phase,
        "name": leg.phase,
        "first": leg.first,
        "sequences": leg.size,
        "blocks": blocks,
        "weights": {name: float(share) for name, share in zip(names, exact, strict=True)},
        "block_totals": dict(zip(names, totals, strict=True)),
        "tail": dict(zip(names, rest, strict=True)),
        "counts": dict(zip(names, counts, strict=True)),
        "shares": {name: count / leg.size for name, count in zip(names, counts, strict=True)},
    }
    if ramp:
        row |= {
            "from_weights": {name: float(leg.start[name]) for name in names},
            "to_weights": {name: float(leg.end[name]) for name in names},
            "ramp": {
                "start": dict(zip(names, ramp.start, strict=True)),
                "end": dict(zip(names, ramp.end, strict=True)),
            },
        }
    return row


def _ramp(params: Mixture, leg: Leg, names: Sequence[str]) -> Ramp:
    start, end = ([at[name] for name in names] for at in (leg.start, leg.end))
    return Ramp.between(start, end, params.block_sequences, leg.size)


def _tail(exact: Sequence[Fraction], totals: Sequence[int], size: int) -> list[int]:
    """Return the counts of the shorter block at the end of a phase.

    With these counts, the counts of the whole phase are exact. If one of the tail's counts would be negative, the tail
    follows the phase's shares instead.
    """
    rest = [whole - total for whole, total in zip(largest_remainder(exact, size), totals, strict=True)]
    return rest if min(rest) >= 0 else largest_remainder(exact, size - sum(totals))


def _require_buckets(params: Mixture, shards: Mapping[str, Manifest]) -> None:
    named = {parameters.parse(key).bucket or "" for phase in params.phases for _, key in phase.named()} - {"", *shards}
    absent = sorted(bucket for bucket in named if _weighs(params, bucket))
    if absent:
        raise RecipeError(
            f"mixture.phases: buckets {absent} have weights but no shards",
            expected="names of corpus.buckets",
            remedy="fix the name, or remove the bucket's weight",
        )


def _without_tokens(params: Mixture, shards: Mapping[str, Manifest]) -> list[str]:
    """Return the buckets that have a weight but no tokens, because the policy dropped every document."""
    return sorted(bucket for bucket, made in shards.items() if not made.stats["tokens"] and _weighs(params, bucket))


def _weighs(params: Mixture, bucket: str) -> bool:
    listed = [{**phase.epochs, **phase.tokens} for phase in params.phases]
    listed += [dict(w) for p in params.phases for w in (p.weights, p.to_weights) if w]
    return any(weight > 0 and parameters.parse(key).bucket == bucket for own in listed for key, weight in own.items())


def _packing(
    ctx: Context, params: Mixture, stream: Stream, shards: Mapping[str, Manifest], packed: Mapping[str, Manifest]
) -> PackingCounts:
    if params.packing == "best-fit":
        return counts_of(params.sequence_tokens, shards[stream.bucket], stream, packed.get(stream.bucket))
    return measure(ShardReader(ctx.store, shards[stream.bucket], stream.name), params.sequence_tokens)


def _index(stream: Stream, shards: Mapping[str, Manifest]) -> dict[str, Any]:
    """Return the number of tokens of a stream and the parts of its document index.

    With the parts, a step's documents can be listed without opening the manifests of all shards.
    """
    parts = shards[stream.bucket].named(f"{stream.folder}index-")
    return {"tokens": stream.tokens, "parts": [part.model_dump(mode="json") for part in parts]}


def _overall(stats: Mapping[str, Any], packed: Mapping[str, PackingCounts]) -> dict[str, float]:
    """Return the packing rates over the run's text: the mean over streams, weighted by their sequences in the run."""
    sequences = sum(stats["buckets"][name]["needed"] for name in packed)
    weights = {name: stats["buckets"][name]["needed"] / sequences for name in packed}

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
