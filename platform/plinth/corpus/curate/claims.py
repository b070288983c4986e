"""Claims about training text, counted from the text's own sidecars and not from the statistics of the stages:
the gates of a release read these numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pyarrow.compute as pc

from plinth.records import Manifest
from plinth.storage.parts import iter_batches, read_table
from plinth.storage.store import Store

#: Uses that an owner permits or not: `plinth.corpus.sources.parameters.Terms`.
USES = ("train", "redistribute", "commercial")


def licences(store: Store, curated: Mapping[str, Manifest]) -> dict[str, int]:
    """Training documents by the licence they carry, over all buckets."""
    counts: Counter[str] = Counter()
    for manifest in curated.values():
        for part in manifest.named("part-"):
            for batch in iter_batches(store, part, ["licence"]):
                for row in pc.value_counts(batch.column("licence")).to_pylist():
                    counts[row["values"]] += row["counts"]
    return dict(sorted(counts.items()))


def terms(
    store: Store, documents: Mapping[str, Manifest], curated: Mapping[str, Manifest]
) -> dict[str, dict[str, int | bool]]:
    """Declared terms of every source by domain and snapshot, and how many training documents are of it.

    Documents of two sources that share domain and snapshot cannot be told apart: the stricter terms hold for both.

    Args:
        documents, curated: by bucket; the terms are those that the documents were read under.
    """
    found: dict[str, dict[str, int | bool]] = {}
    for bucket, manifest in sorted(curated.items()):
        declared = documents[bucket].params.get("sources", ())
        for source in declared:
            name, granted = f"{source.get('domain')} {source.get('snapshot')}", source.get("terms", {})
            row = found.setdefault(name, {"documents": 0, **dict.fromkeys(USES, True)})
            row |= {use: row[use] is True and granted.get(use) is True for use in USES}
        for name, count in _by_source(store, manifest).items():
            row = found.setdefault(name, {"documents": 0, **dict.fromkeys(USES, False)})  # nobody declared it
            row["documents"] += count
    return dict(sorted(found.items()))


def _by_source(store: Store, curated: Manifest) -> Counter[str]:
    """Training documents by domain and snapshot."""
    counts: Counter[str] = Counter()
    for part in curated.named("part-"):
        for batch in iter_batches(store, part, ["snapshot", "extra"]):
            rows = zip(batch.column("snapshot").to_pylist(), batch.column("extra").to_pylist(), strict=True)
            counts.update(f"{json.loads(extra).get('domain')} {snapshot}" for snapshot, extra in rows)
    return counts


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
