"""The documents of places in a stream: all of them counted, the first ones listed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from plinth.tokens.shards.index import DocumentIndex, DocumentSpan


@dataclass(frozen=True)
class Holder:
    """A document that holds a span.

    Args:
        document: where it lies.
        starts: first tokens of the span's occurrences in it, in its stream, ascending.
    """

    document: DocumentSpan
    starts: tuple[int, ...]


def holders(index: DocumentIndex, starts: NDArray[np.int64], most: int) -> tuple[int, list[Holder]]:
    """How many documents hold these tokens of a stream (ascending), and the first of them in its order."""
    count, listed = 0, list[Holder]()
    for number, part in enumerate(index.parts):
        first = int(part.stats["start"])
        low, high = np.searchsorted(starts, [first, first + int(part.stats["tokens"])]).tolist()
        if low == high:
            continue
        documents = index.part(number)
        rows = np.searchsorted(documents.starts, starts[low:high], side="right") - 1
        distinct, begins = np.unique(rows, return_index=True)
        count += len(distinct)
        edges = [*begins.tolist(), len(rows)]
        for at in islice(range(len(distinct)), max(0, most - len(listed))):
            (span,) = documents.take(distinct[at : at + 1]).records()
            listed.append(Holder(span, tuple(starts[low + edges[at] : low + edges[at + 1]].tolist())))
    return count, listed
