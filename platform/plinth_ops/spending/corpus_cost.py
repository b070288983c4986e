"""What the corpus costs: storage of what is published, requests and core hours of its last making, by bucket.

Of a blob that several assets hold one pays: a bucket's, before one that is common, the first by key. Requests are the
files of the store that tasks opened and wrote, as recorded (`plinth.compute.context`); assets without a record count
with their bytes alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plinth.operation.planning.prices import CorpusPrices
    from plinth.storage.state import State

#: The row of what belongs to no bucket.
COMMON = "-"


@dataclass(frozen=True, kw_only=True)
class CorpusRow:
    """One bucket. Money as the prices state it."""

    bucket: str
    stored_bytes: int
    reads: int
    writes: int
    core_hours: float
    storage_month: float
    requests: float
    cores: float


def corpus_costs(state: State, prices: CorpusPrices) -> list[CorpusRow]:
    """Costs by bucket, the most expensive to store first."""
    from plinth.compute import context
    from plinth.records import bucket_of

    refs = list(state.refs.all())
    buckets = {bucket_of(ref.asset) for ref in refs if ref.asset.endswith("/documents")}
    refs.sort(key=lambda ref: (bucket_of(ref.asset) not in buckets, ref.asset))
    stored, seen = defaultdict[str, int](int), set[str]()
    reads, writes, core_s = defaultdict[str, int](int), defaultdict[str, int](int), defaultdict[str, float](float)
    for ref in refs:
        bucket = bucket_of(ref.asset) if bucket_of(ref.asset) in buckets else COMMON
        for part in state.refs.load(ref.digest).parts:
            if part.blob.md5 not in seen:
                seen.add(part.blob.md5)
                stored[bucket] += part.blob.bytes
        cost = context.load(state.workspace, ref.asset)
        if cost is not None:
            reads[bucket] += cost.tasks.opened
            writes[bucket] += cost.tasks.written
            core_s[bucket] += cost.tasks.cpu_s + cost.driver_cpu_s
    rows = [
        CorpusRow(
            bucket=bucket,
            stored_bytes=stored[bucket],
            reads=reads[bucket],
            writes=writes[bucket],
            core_hours=core_s[bucket] / 3600,
            storage_month=stored[bucket] / 1e9 * prices.gigabyte_month,
            requests=prices.requests(reads[bucket], writes[bucket]),
            cores=core_s[bucket] / 3600 * prices.core_hour,
        )
        for bucket in {*stored, *core_s}
    ]
    return sorted(rows, key=lambda row: (-row.stored_bytes, row.bucket))
