"""Claims about training text, counted from the text's own sidecars and not from the statistics of the stages:
the gates of a release read these numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow.compute as pc

from plinth.records import Manifest
from plinth.storage.parts import iter_batches, read_table
from plinth.storage.store import Store


def licences(store: Store, curated: Mapping[str, Manifest]) -> dict[str, int]:
    """Training documents by the licence they carry, over all buckets."""
    counts: Counter[str] = Counter()
    for manifest in curated.values():
        for part in manifest.named("part-"):
            for batch in iter_batches(store, part, ["licence"]):
                for row in pc.value_counts(batch.column("licence")).to_pylist():
                    counts[row["values"]] += row["counts"]
    return dict(sorted(counts.items()))


def contaminated(store: Store, verdicts: Mapping[str, Manifest], contamination: Manifest) -> int:
    """Training documents that overlap the held-out set beyond the bound; 0 unless a stage ignored a decision.

    Raises:
        ValueError: verdicts and contamination do not have the same parts.
    """
    total = 0
    for bucket, manifest in sorted(verdicts.items()):
        flagged = contamination.named(f"{bucket}/part-")
        for decided, marked in zip(manifest.named("part-"), flagged, strict=True):
            decision = read_table(store, decided, ["decision"]).column("decision")
            mark = read_table(store, marked, ["contaminated"]).column("contaminated")
            both = pc.and_(pc.equal(decision, "train"), pc.fill_null(mark, False))
            total += pc.sum(both).as_py() or 0
    return total
