"""A part of documents without some of its rows, which become rejects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.corpus.documents.tables import reject_batch
from plinth.corpus.sources.record import Reject
from plinth.records import Part
from plinth.schemas import DOCUMENT_SCHEMA, REJECT_SCHEMA
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store


def drop_rows(
    store: Store,
    part: Part,
    rejects: Part,
    dropped: npt.NDArray[np.int64],
    refuse: Callable[[int, dict[str, Any]], Reject],
) -> tuple[Part, Part, int]:
    """Write a part again without some rows, and its rejects with them.

    Args:
        dropped: [rows] to drop, ascending.
        refuse: the reject of a row, by its number in the part and its id, uri, source_bytes and text.

    Returns:
        The part, its rejects, and the bytes of text that are gone.
    """
    counts, refused = Counter[str](), list[Reject]()

    def kept() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in iter_batches(store, part):
            begin, end = np.searchsorted(dropped, [first, first + batch.num_rows])
            gone = np.zeros(batch.num_rows, dtype=np.bool_)
            gone[dropped[begin:end] - first] = True
            rows = batch.filter(pa.array(gone)).select(["id", "uri", "source_bytes", "text"]).to_pylist()
            for number, row in zip(dropped[begin:end].tolist(), rows, strict=True):
                counts.update(source_bytes=row["source_bytes"], text_bytes=len(row["text"].encode()))
                refused.append(refuse(number, row))
            yield batch.filter(pa.array(~gone))
            first += batch.num_rows

    made = write_batches(store, "part.parquet", DOCUMENT_SCHEMA, kept())
    stats = {key: part.stats[key] - counts[key] for key in ("text_bytes", "source_bytes")}
    reasons = Counter(rejects.stats["rejects"]) + Counter(reject.reason for reject in refused)
    with_them = write_batches(
        store,
        "rejects.parquet",
        REJECT_SCHEMA,
        [*iter_batches(store, rejects), reject_batch(refused)],
        stats={
            "rejects": dict(sorted(reasons.items())),
            "rejected_bytes": rejects.stats["rejected_bytes"] + counts["source_bytes"],
        },
    )
    made = made.model_copy(update={"stats": {**part.stats, "documents": made.rows, **stats}})
    return made, with_them, counts["text_bytes"]
