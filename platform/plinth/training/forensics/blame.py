"""Blame: the documents, sources and buckets that a step's loss came from.

    excess of a document = (its loss - the typical loss of its bucket) x its share of the batch's targets

so that excesses add up to the batch's mean loss less that of a typical batch of the same buckets, in nats. Typical is
the median over documents of earlier steps under the same parameters; for a bucket that earlier steps lack, the median
over all of their documents.

Pure functions of numbers and names. Does not belong here: computing losses (step_losses).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.training.step_documents import StepDocument

#: Tokens of a span that is shown, and spans of a document.
SPAN, SPANS = 16, 3


@dataclass(frozen=True)
class ScoredDocument:
    """A document's tokens in one row, with their losses.

    Attributes:
        losses: of the targets that are its tokens, NaN where one is not scored.
        start: place of the first of these targets in the row.
        gradient: gradient norm of the whole row.
    """

    seen: StepDocument
    losses: npt.NDArray[np.float32]
    start: int
    gradient: float | None = None

    @property
    def targets(self) -> int:
        return int((~np.isnan(self.losses)).sum())

    @property
    def loss(self) -> float:
        """Mean over its targets; NaN without any."""
        return float(np.nanmean(self.losses)) if self.targets else math.nan


def scored(seen: StepDocument, row: npt.NDArray[np.float32], gradient: float | None = None) -> ScoredDocument:
    """A document's part of a row of losses [S]; target t of the row is token t + 1."""
    start = max(0, seen.first - 1)
    return ScoredDocument(seen, row[start : max(start, seen.first + seen.tokens - 1)], start, gradient)


def typical(documents: Iterable[ScoredDocument]) -> dict[str, float]:
    """Median loss by bucket; the empty name has that of all documents."""
    by_bucket: dict[str, list[float]] = defaultdict(list)
    for document in documents:
        if document.targets:
            by_bucket[document.seen.bucket].append(document.loss)
            by_bucket[""].append(document.loss)
    return {bucket: median(values) for bucket, values in sorted(by_bucket.items())}


def rank(
    documents: Sequence[ScoredDocument],
    usual: Mapping[str, float],
    text: Callable[[ScoredDocument, int, int], str] | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Documents, sources and buckets by excess, the largest first.

    Args:
        usual: as `typical` gives it.
        text: the text of targets `first` to `last` of a document, for its worst spans.
        most: documents that are listed; all when None.
    """
    targets = max(1, sum(document.targets for document in documents))
    counted = [document for document in documents if document.targets]
    rows = sorted((_row(document, usual, targets) for document in counted), key=lambda row: -row["excess"])
    by_place = {(document.seen.row, document.seen.first): document for document in counted}
    for row in rows[:most]:
        document = by_place[row["row"], row["first"]]
        row["spans"] = worst_spans(document, text)
    return {
        "loss": round(sum(document.loss * document.targets for document in counted) / targets, 6),
        "excess": round(sum(row["excess"] for row in rows), 6),
        "typical": {bucket or "all": round(value, 6) for bucket, value in usual.items()},
        "sources": _grouped(rows, ("bucket", "source")),
        "buckets": _grouped(rows, ("bucket",)),
        "documents_count": len(rows),
        "documents": rows[:most],
    }


def worst_spans(
    document: ScoredDocument, text: Callable[[ScoredDocument, int, int], str] | None
) -> list[dict[str, Any]]:
    """The spans of `SPAN` targets with the largest mean loss, which do not overlap."""
    losses = np.nan_to_num(document.losses, nan=0.0)
    width = min(SPAN, len(losses))
    means = np.convolve(losses, np.ones(width) / width, mode="valid")
    spans = []
    for _ in range(SPANS):
        at = int(means.argmax())
        if means[at] <= 0:
            break
        span: dict[str, Any] = {"first": document.start + at + 1, "tokens": width, "loss": round(float(means[at]), 4)}
        if text is not None:
            span["text"] = text(document, document.start + at + 1, document.start + at + 1 + width)
        spans.append(span)
        means[max(0, at - width + 1) : at + width] = 0.0
    return spans


def _row(document: ScoredDocument, usual: Mapping[str, float], targets: int) -> dict[str, Any]:
    seen = document.seen
    expected = usual.get(seen.bucket, usual.get("", document.loss))
    row: dict[str, Any] = {
        "row": seen.row,
        "first": seen.first,
        "tokens": seen.tokens,
        "id": seen.id,
        "bucket": seen.bucket,
        "source": seen.source,
        "uri": seen.uri,
        "loss": round(document.loss, 6),
        "typical": round(expected, 6),
        "excess": (document.loss - expected) * document.targets / targets,
    }
    if document.gradient is not None:
        row["row_gradient_norm"] = round(document.gradient, 6)
    return row


def _grouped(rows: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Sums over documents of one source or bucket, the largest excess first."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    found = []
    for key, members in groups.items():
        tokens = sum(row["tokens"] for row in members)
        found.append(
            {
                **dict(zip(names, key, strict=True)),
                "documents": len(members),
                "tokens": tokens,
                "loss": round(sum(row["loss"] * row["tokens"] for row in members) / tokens, 6),
                "excess": sum(row["excess"] for row in members),
            }
        )
    return sorted(found, key=lambda group: -group["excess"])
