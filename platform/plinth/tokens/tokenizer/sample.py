"""Capped sample of the buckets: the same documents on any number of workers, in the order of the documents.

Documents are ranked by a hash of their id. The first pass over the parts sums bytes in logarithmic bins of the hash
range, so a small sample is cut as precisely as a large one. The second pass keeps the documents below the cut. Memory
use is one row group, and every part is cached separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, run_items
from plinth.errors import RecipeError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_table, write_batches, write_table
from plinth.storage.store import Store

VERSION = "1"
WEIGH = Step(name="tokens.sample.weigh", version=VERSION)

#: Bytes of a document in a sample at most: one giant document must not decide the vocabulary.
MAX_DOCUMENT_BYTES = 2**20

_SALT = np.uint64(0x73616D706C65)  # so that no other choice by id has this order
_WEIGHTS = pa.schema([pa.field("bin", pa.int32()), pa.field("bytes", pa.int64())])
_TEXTS = pa.schema([pa.field("text", pa.large_string(), nullable=False)])


@dataclass(frozen=True)
class BucketSample:
    """Sample of one bucket: the first `budget_bytes` of text in `parts`, which have a `text` column."""

    bucket: str
    parts: tuple[Part, ...]
    budget_bytes: int


@dataclass(frozen=True)
class _Pick:
    part: Part
    cut: int


def sample(
    ctx: Context,
    curated: Mapping[str, Manifest],
    budget_bytes: int,
    label: str,
    weights_of: Mapping[str, float] | None = None,
) -> list[BucketSample]:
    """Return a sample of at most `budget_bytes` of text, with one entry per bucket in order of names.

    Buckets divide the budget by weight; a bucket that is not in `weights_of` has the weight 1.

    Raises:
        RecipeError: a weight is given for a bucket that does not exist.
    """
    unknown = sorted(set(weights_of or {}) - set(curated))
    if unknown:
        raise RecipeError(
            f"tokenizer.sample_weights: no bucket {', '.join(unknown)}", expected=f"buckets among {sorted(curated)}"
        )
    parts = {bucket: manifest.named("part-") for bucket, manifest in sorted(curated.items())}
    items = [Item((part.blob.sha256,), part, part.rows) for bucket in parts.values() for part in bucket]
    found = iter(run_items(ctx, WEIGH, _weigh, items, label=f"{label}: weigh"))
    weights = {bucket: _sum(ctx.store, [next(found)[0] for _ in own]) for bucket, own in parts.items()}
    budgets = shares({bucket: bins.total() for bucket, bins in weights.items()}, budget_bytes, weights_of)
    return [_sampled(ctx, bucket, parts[bucket], weights[bucket], budgets[bucket], label) for bucket in parts]


def shares(available: Mapping[str, int], budget: int, weights: Mapping[str, float] | None = None) -> dict[str, int]:
    """Divide the budget by weight. The share that a small bucket cannot fill goes to the other buckets, by weight."""
    exact = {bucket: Fraction((weights or {}).get(bucket, 1.0)) for bucket in available}
    granted = {bucket: 0 for bucket in available if not exact[bucket]}
    waiting = sorted(set(available) - set(granted), key=lambda bucket: (available[bucket] / exact[bucket], bucket))
    for position, bucket in enumerate(waiting):
        share = exact[bucket] / sum(exact[other] for other in waiting[position:])
        granted[bucket] = min(available[bucket], int(budget * share))
        budget -= granted[bucket]
    return granted


def sampled_texts(store: Store, sampled: BucketSample) -> Iterator[str]:
    """Yield the texts of a sample in order, exactly up to the budget. The last text may be cut between characters."""
    left = sampled.budget_bytes
    for part in sampled.parts:
        for batch in iter_batches(store, part, ["text"]):
            for text in batch.column("text").to_pylist():
                if left <= 0:
                    return
                data = text.encode()[: min(MAX_DOCUMENT_BYTES, left)]
                left -= len(data)
                yield data.decode(errors="ignore")


def sample_keys(ids: pa.Array) -> NDArray[np.uint64]:
    """Return the sampling rank of documents: a hash of their 16-byte ids."""
    words = np.frombuffer(ids.buffers()[1], dtype="<u8")[2 * ids.offset : 2 * (ids.offset + len(ids)) : 2]
    return mix64(words ^ _SALT)


def _bins(ids: pa.Array) -> NDArray[np.int32]:
    """Return the hash bin of each id, low hashes first. Every halving of the hash range has 64 bins."""
    floats = sample_keys(ids).astype(np.float64).astype(np.float32)
    return (floats.view(np.uint32) >> np.uint32(17)).astype(np.int32)  # exponent and six bits of mantissa


def _sampled(
    ctx: Context, bucket: str, parts: Iterable[Part], bins: Mapping[int, int], budget: int, label: str
) -> BucketSample:
    cut = _cut(bins, budget)
    step = Step(name="tokens.sample.pick", version=VERSION, params={"cut": cut})
    items = [Item((part.blob.sha256,), _Pick(part, cut), part.rows) for part in parts]
    picked = run_items(ctx, step, _pick, items, label=f"{label}: {bucket}")
    return BucketSample(bucket, tuple(part for (part,) in picked), budget)


def _weigh(store: Store, part: Part) -> tuple[Part, ...]:
    total: Counter[int] = Counter()
    for batch in iter_batches(store, part, ["id", "text"]):
        sizes = np.minimum(np.asarray(pc.binary_length(batch.column("text"))), MAX_DOCUMENT_BYTES)
        for key, size in zip(_bins(batch.column("id")).tolist(), sizes.tolist(), strict=True):
            total[key] += size
    rows = sorted(total.items())
    table = pa.table([[key for key, _ in rows], [size for _, size in rows]], schema=_WEIGHTS)
    return (write_table(store, "weights.parquet", table),)


def _pick(store: Store, task: _Pick) -> tuple[Part, ...]:
    def kept() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, task.part, ["id", "text"]):
            chosen = batch.filter(pa.array(_bins(batch.column("id")) <= task.cut))
            yield pa.RecordBatch.from_arrays([chosen.column("text")], schema=_TEXTS)

    return (write_batches(store, "sample.parquet", _TEXTS, kept()),)


def _sum(store: Store, parts: Iterable[Part]) -> Counter[int]:
    total: Counter[int] = Counter()
    for part in parts:
        table = read_table(store, part)
        total.update(dict(zip(table["bin"].to_pylist(), table["bytes"].to_pylist(), strict=True)))
    return total


def _cut(bins: Mapping[int, int], budget: int) -> int:
    """Return the number of the last bin that is needed to fill the budget, or -1 if there is no text."""
    cut = -1
    for key, size in sorted(bins.items()):
        if budget <= 0:
            break
        cut, budget = key, budget - size
    return cut


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64-bit words with a bijection in which every output bit depends on every input bit (Steele, Lea and Flood
    2014)."""
    mixed = values >> np.uint64(30)
    mixed ^= values
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
