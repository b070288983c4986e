"""How much of a bucket is damaged, and the bound on it. Exclusions are counted and bounded by nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plinth.compute.stage import add_stats
from plinth.corpus.sources.fields import NO_FIELD
from plinth.corpus.sources.parameters import Documents
from plinth.corpus.sources.record import EXCLUSIONS, SEEN_BEFORE, damage
from plinth.errors import RejectRateError, SourceError
from plinth.records import Part
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store


def counted(parts: Iterable[Part], files: int) -> dict[str, Any]:
    """Counts of all parts; `reject_rate` is the share of damage in what should be documents, exclusions left out."""
    total = {"documents": 0, "text_bytes": 0, "source_bytes": 0, "rejects": {}, **add_stats(parts)}
    damaged = damage(total["rejects"])
    seen = damaged + total["rejects"].get(SEEN_BEFORE, 0) + total["documents"]
    return {**total, "files": files, "reject_rate": round(damaged / seen, 6) if seen else 0.0}


def require_whole(
    store: Store, label: str, params: Documents, made: Sequence[tuple[Part, ...]], tolerance: float = 1.0
) -> None:
    """Fail where parts and their rejects, as tasks made them, hold more damage than the bound times `tolerance`."""
    stats = counted((part for one in made for part in one[:2]), 0)
    if stats["reject_rate"] <= params.max_reject_rate * tolerance:
        return
    damaged = [pair for pair in stats["rejects"].items() if pair[0] not in EXCLUSIONS]
    reasons = sorted(damaged, key=lambda pair: (-pair[1], pair[0]))
    example = _example(store, (one[1] for one in made), reasons[0][0])
    elsewhere = "name the field in the source (`fields: {text: NAME}`), " if NO_FIELD in example else ""
    raise RejectRateError(
        f"{label}: {stats['reject_rate']:.1%} of the records are damaged"
        + (f", of the {len(made)} parts read first" if tolerance > 1 else ""),
        found=", ".join(f"{reason} {count}" for reason, count in reasons[:5])
        + f"; for example {example}",
        expected=f"at most {params.max_reject_rate:.1%} (corpus.documents.max_reject_rate)",
        remedy=f"{elsewhere}repair or remove the source, or raise the bound in the recipe if this is what it holds",
    )


def require_documents(label: str, stats: Mapping[str, Any]) -> None:
    """Fail where there is not one document."""
    if not stats["documents"]:
        raise SourceError(
            f"{label}: there is not one document",
            found=f"{stats['files']} files, rejects {dict(stats['rejects'])}",
            expected="at least one document",
            remedy="correct the sources of the bucket, or remove it from the recipe",
        )


def _example(store: Store, rejects: Iterable[Part], reason: str) -> str:
    for part in rejects:
        for batch in iter_batches(store, part):
            for row in batch.to_pylist():
                if row["reason"] == reason:
                    return f"{row['uri']} ({row['where']}): {row['detail']}"
    return "none kept"
