"""Anytime-valid test for slices whose newer documents differ from the reference."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from plinth.evaluation import statistics
from plinth.evaluation.parameters import BUILT_IN
from plinth.evaluation.slices.tables import AXIS
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.tokens.mixture.parameters import Phase

LEVEL = 0.95
#: Minimum reference documents of a slice.
LEAST = 30
#: Bootstrap draws of intervals, which are only shown.
DRAWS = 1_000
#: Number of documents listed for a slice that drifts.
NAMED = 20
WHOLE = "all"


class MovedDocument(Frozen):
    """Newer document in a slice that drifts. `excess_bits` is the number of bits above the rate of the reference
    documents."""

    id: str
    uri: str
    bucket: str
    snapshot: str
    bytes: int
    model: float
    excess_bits: float


class SliceDrift(Frozen):
    """Drift of a slice of held-out text.

    `reference` and `latest` are bits per byte with intervals. `latest` comes from the last analysis with documents in
    the slice. `p` is valid over all analyses so far; `adjusted` is also corrected for the number of slices. `look` is
    the number of the first analysis that found drift, and `bucket` is the bucket with the largest change.
    """

    axis: str
    slice: str
    documents: int
    later: int
    reference: tuple[float, float, float]
    latest: tuple[float, float, float] | None
    p: float
    adjusted: float
    drifts: bool
    look: int | None = None
    bucket: str = ""
    moved: tuple[MovedDocument, ...] = ()

    @property
    def label(self) -> str:
        """Name of the slice."""
        return WHOLE if self.axis == WHOLE else f"{self.axis} {self.slice}"


def judged(table: pa.Table) -> list[SliceDrift]:
    """Test every slice with enough reference documents for drift.

    Slices that drift come first, and buckets come before other axes.

    Args:
        table: rows of `job.SCHEMA`; analysis 0 is the reference.
    """
    table = table.take(pa.array(_order(table)))
    looks: NDArray[np.int64] = table["look"].to_numpy()
    chosen = [(axis, name, own) for axis, name, own in _slices(table) if int((looks[own] == 0).sum()) >= LEAST]
    found = [_judged(axis, name, table.take(pa.array(own)), len(chosen)) for axis, name, own in chosen]
    return sorted(found, key=lambda one: (not one.drifts, one.axis != "bucket", one.adjusted, one.label))


def _order(table: pa.Table) -> list[int]:
    """Return the row indices of the score table, sorted by analysis, then by document ID.

    IDs are hashes, so this order does not depend on the content of the documents.
    """
    keys = list(zip(table["look"].to_pylist(), table["id"].to_pylist(), strict=True))
    return sorted(range(len(keys)), key=keys.__getitem__)


def _slices(table: pa.Table) -> list[tuple[str, str, NDArray[np.int64]]]:
    """Return axis, name and row indices of every slice in the score table. The slice of all documents comes first."""
    found = [(WHOLE, WHOLE, np.arange(table.num_rows))]
    axes = {name: name for name in BUILT_IN if name in table.schema.names}
    axes |= {name.removeprefix(AXIS): name for name in table.schema.names if name.startswith(AXIS)}
    for axis, column in axes.items():
        labels = np.array(table[column].to_pylist(), dtype=object)
        found += [(axis, str(name), np.flatnonzero(labels == name)) for name in sorted(set(labels.tolist()))]
    return found


def _judged(axis: str, name: str, rows: pa.Table, slices: int) -> SliceDrift:
    looks: NDArray[np.int64] = rows["look"].to_numpy()
    sizes: NDArray[np.float64] = rows["bytes"].to_numpy().astype(np.float64)
    bits: NDArray[np.float64] = rows["bits"].to_numpy()
    first = int((looks == 0).sum())
    reference, later = _interval(bits[:first], sizes[:first]), len(looks) - first
    if not later:
        return SliceDrift(axis=axis, slice=name, documents=first, later=0, reference=reference, latest=None,
                          p=1.0, adjusted=1.0, drifts=False)  # fmt: skip
    after = looks[first:]
    p = always_valid(bits / sizes, looks, rows["id"].to_pylist())
    crossed = np.flatnonzero(p * slices <= 1 - LEVEL)
    last = looks == looks[-1]
    made = SliceDrift(
        axis=axis,
        slice=name,
        documents=first,
        later=later,
        reference=reference,
        latest=_interval(bits[last], sizes[last]),
        p=float(p[-1]),
        adjusted=min(1.0, float(p[-1]) * slices),
        drifts=bool(len(crossed)),
    )
    if not made.drifts:
        return made
    look = int(after[crossed[0]])
    moved, bucket = _moved(rows, reference[0], looks >= look)
    return made.model_copy(update={"look": look, "moved": moved, "bucket": bucket})


def always_valid(rates: NDArray[np.float64], looks: NDArray[np.int64], ids: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the p-value of the drift test after each newer document, [n - m].

    Args:
        rates: ordered bits per byte [n]; the first m are reference documents.
        looks: analysis of each document; 0 for the reference.
        ids: document IDs, for tie-breaking.
    """
    first = int((looks == 0).sum())
    starts = np.flatnonzero(np.diff(looks[first:], prepend=-1)).tolist()
    return statistics.exchangeable_p(rates[:first], rates[first:], _draws(ids[first:]), starts)


def _interval(bits: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the bits per byte of documents, and the lower and upper end of the confidence interval."""
    found = statistics.ratio(bits, sizes, draws=DRAWS)
    return found.value, found.low, found.high


def _draws(ids: Sequence[bytes]) -> NDArray[np.float64]:
    """Return a random tie-breaker for each document, derived from its ID."""
    digests = (hashlib.sha256(b"drift" + id_).digest()[:7] for id_ in ids)
    return np.array([int.from_bytes(one, "big") / 2**56 for one in digests])


def _moved(rows: pa.Table, rate: float, after: NDArray[np.bool_]) -> tuple[tuple[MovedDocument, ...], str]:
    """Return the documents that changed most since the analysis that found drift, and the bucket with the largest
    change.

    Only documents that changed in the direction of the drift are listed. The largest change comes first.
    """
    own = rows.filter(pa.array(after)).select(["id", "uri", "bucket", "snapshot", "bytes", "bits"]).to_pylist()
    excess = [row["bits"] - row["bytes"] * rate for row in own]
    side = 1 if sum(excess) >= 0 else -1
    by_bucket: dict[str, float] = defaultdict(float)
    for row, bits in zip(own, excess, strict=True):
        by_bucket[row["bucket"]] += side * bits
    order = sorted(range(len(own)), key=lambda at: (-side * excess[at], own[at]["id"]))
    moved = tuple(
        MovedDocument(
            id=own[at]["id"].hex(),
            uri=own[at]["uri"],
            bucket=own[at]["bucket"],
            snapshot=own[at]["snapshot"],
            bytes=own[at]["bytes"],
            model=round(own[at]["bits"] / own[at]["bytes"], 6),
            excess_bits=round(excess[at], 1),
        )
        for at in order[:NAMED]
        if side * excess[at] > 0
    )
    return moved, max(sorted(by_bucket), key=lambda name: by_bucket[name])


#: Factor on the share of a bucket that drifts, and the share of replayed tokens against forgetting.
FACTOR: Final = 2.0
REPLAY: Final = 0.1


def overlay(recipe: Recipe, base: str, found: Iterable[SliceDrift]) -> str:
    """Return the YAML of a recipe that starts from the champion and raises the share of buckets that drift.

    Args:
        base: path or packaged name of the recipe to extend.

    Raises:
        RecipeError: the recipe has no release.
        ValueError: no slice drifts, or the recipe has no mixture.
    """
    drifting = [one for one in found if one.drifts]
    if not drifting or recipe.mixture is None:
        raise ValueError("no slice drifts, or the recipe has no mixture to change")
    own = [one for one in drifting if one.axis == "bucket"] or drifting
    buckets = sorted({one.bucket for one in own if one.bucket in recipe.corpus.buckets})
    release = recipe.required_release().name
    data = {
        "extends": base,
        "training": {"initial": {"release": f"{release}@champion", "replay": REPLAY}},
        "mixture": {"phases": [_more(phase, buckets) for phase in recipe.mixture.phases]},
    }
    said = "".join(f"# {in_words(one)}\n" for one in drifting)
    head = f"# Proposed because held-out text has drifted from {release}; not confirmed by a run yet.\n"
    return head + said + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110))


def in_words(one: SliceDrift) -> str:
    """Return a sentence about the drift of a slice, for the command line and alarms."""
    now = "" if one.latest is None else f" to {one.latest[0]:.3f}"
    change = f"bits per byte changed from {one.reference[0]:.3f}{now}"
    named = ", ".join(document.uri for document in one.moved[:3])
    return f"{one.label}: {change} (anytime-valid p {one.adjusted:.2g}); documents: {named or 'none'}"


def _more(phase: Phase, buckets: Sequence[str]) -> dict[str, Any]:
    """Return the mixture phase with higher weights for some buckets. A bucket without a weight gets an upsampling
    factor."""
    data: dict[str, Any] = phase.model_dump(mode="json", exclude_unset=True)
    weights, factors = dict(data.get("weights") or {}), dict(data.get("upsample") or {})
    for bucket in buckets:
        own = [key for key in weights if key == bucket or key.startswith(f"{bucket}/")]
        for key in own:
            weights[key] = weights[key] * FACTOR
        if not own:
            factors[bucket] = factors.get(bucket, 1.0) * FACTOR
    return data | ({"weights": weights} if weights else {}) | ({"upsample": factors} if factors else {})
