"""Values of canary and champion on held-out text and probes, out of what the evaluator has signed for.

The canary's own comparison with this champion is taken where there is one: there both were measured alike. Else the
measurements of both are paired. A document or template is one pair: bits per byte of the document, the mean of the
template. They come in the order of the SHA-256 of their names, in which no bucket and no length stands first, and which
is the same whoever looks. Held-out text as a whole is asked for a promotion; its slices and the probes are guards.

Signed evidence that replaces other in the middle of a trial begins its streams again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.comparison import readers
from plinth.evaluation.comparison.job import ASSET as COMPARISON
from plinth.evaluation.comparison.job import FILE
from plinth.evaluation.comparison.pairs import ROWS, Pairs, largest_slices
from plinth.evaluation.measurement import UNREADABLE
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_registry import attestations, measured
from plinth_registry.canary.judgement import PairedStream

KINDS: Final = ("slices", "probes")
WHOLE: Final = "held-out text"
#: Slices of an axis, by their bytes.
MOST_SLICES = 8


class MeasuredPairs(NamedTuple):
    """Streams out of signed evidence. `small` have too few pairs ever to be judged; `missing` says why there is none;
    `manifests` are the digests of what was read, by asset, the champion's with `champion `."""

    streams: tuple[PairedStream, ...] = ()
    small: tuple[str, ...] = ()
    missing: str = ""
    manifests: Mapping[str, str] = {}


def measured_pairs(ctx: Context, canary: str, champion: str, least: int) -> MeasuredPairs:
    """What the evaluator has measured of both checkpoints, pair by pair.

    Args:
        canary, champion: digests of checkpoints.
        least: pairs of a stream below which it is listed and not judged.

    Raises:
        SignatureError: no root of trust is pinned.
    """
    ours, theirs = (measured.of(ctx, one, attestations.about(ctx, one).valid) for one in (canary, champion))
    try:
        pairs, manifests = _read(ctx, ours, theirs, champion)
        found = _streams(pairs)
    except (PlinthError, *UNREADABLE) as error:
        return MeasuredPairs(missing=f"the signed measurements cannot be paired: {error}")
    judged = [one for one in found if len(one.values) >= least]
    streams = tuple(one._replace(place=2 * place - 1) for place, one in enumerate(judged, start=1))
    small = tuple(f"{one.name} ({len(one.values)})" for one in found if len(one.values) < least)
    missing = "" if streams else f"nothing of at least {least} documents or templates is signed for both"
    return MeasuredPairs(streams, small, missing, manifests)


def _read(
    ctx: Context, ours: Mapping[str, Manifest], theirs: Mapping[str, Manifest], champion: str
) -> tuple[Iterator[Pairs], dict[str, str]]:
    made = ours.get(COMPARISON)
    if made is not None and made.stats["models"].get("b", {}).get("checkpoint") == champion:
        return _compared(ctx, made), {COMPARISON: made.digest}
    both = sorted(set(ours) & set(theirs) & {"evaluation", "probes"})
    digests = {name: ours[name].digest for name in both} | {f"champion {name}": theirs[name].digest for name in both}
    return readers.read(ctx.store, {name: ours[name] for name in both}, theirs), digests


def _compared(ctx: Context, made: Manifest) -> Iterator[Pairs]:
    """The pairs of a comparison, whose lines say which way is better."""
    (part,) = made.named(FILE)
    rows = read_table(ctx.store, part)
    fewer = {(line["kind"], line["measure"]): bool(line["fewer_is_better"]) for line in made.stats["lines"]}
    for (kind, measure), better in sorted(fewer.items()):
        own = rows.filter(pc.and_(pc.equal(rows["kind"], kind), pc.equal(rows["measure"], measure)))
        yield Pairs(kind, measure, own.select(ROWS.names), fewer_is_better=better, ratio=True)


def _streams(pairs: Iterable[Pairs]) -> list[PairedStream]:
    """The whole of held-out text first, then its slices, then probes, each by name."""
    found: list[tuple[int, PairedStream]] = []
    for one in pairs:
        if one.kind not in KINDS or not one.rows.num_rows:
            continue
        whole = one.kind == "slices"
        if not whole:
            more = not one.fewer_is_better
            name = f"probe {one.measure}"
            found.append((2, PairedStream(name, _values(one.rows), role="guard", higher_is_better=more)))
            continue
        found.append((0, PairedStream(WHOLE, _values(one.rows))))
        for label, rows in largest_slices(one, MOST_SLICES)[0].items():
            found.append((1, PairedStream(f"{WHOLE}: {label}", _values(one.rows, rows), role="guard")))
    return [one for _, one in sorted(found, key=lambda each: (each[0], each[1].name))]


def _values(rows: pa.Table, taken: NDArray[np.int64] | None = None) -> list[tuple[float, float]]:
    """Of each cluster the canary's and the champion's sum over the sum of weights, clusters by the digest of names."""
    own = rows if taken is None else rows.take(pa.array(taken))
    sums = own.group_by("cluster").aggregate([(name, "sum") for name in ("a", "b", "weight")])
    names: list[str] = sums["cluster"].to_pylist()
    order = sorted(range(len(names)), key=lambda at: hashlib.sha256(names[at].encode()).digest())
    a, b, weight = (sums[f"{name}_sum"].to_numpy()[order] for name in ("a", "b", "weight"))
    return list(zip((a / weight).tolist(), (b / weight).tolist(), strict=True))
