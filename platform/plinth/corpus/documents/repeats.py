"""The same document in two parts of a bucket: the first stays, the others become rejects.

A page that the next snapshot captures unchanged is such a document: no failure, but text that the bucket has already,
which the funnel counts as duplicated. Ids are compared a range of the hash space at a time, so memory does not grow
with the bucket. This is about identity (same address, same text); duplicates by content are found by `dedup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.documents.tables import reject_batch
from plinth.corpus.sources.record import SEEN_BEFORE, Reject
from plinth.records import DOCUMENT_SCHEMA, REJECT_SCHEMA, Frozen, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store

#: Ids held at once; 16 bytes each, and as much again to sort them.
IDS_AT_ONCE = 4_000_000

Ids = npt.NDArray[np.void]


class Repeats(Frozen):
    """Ids to drop from one part, with its rejects."""

    part: Part
    rejects: Part
    ids: tuple[str, ...]


def drop_repeats(ctx: Context, bucket: str, pairs: Sequence[tuple[Part, ...]]) -> list[tuple[Part, Part]]:
    """The parts and rejects of a bucket without documents that an earlier part holds already."""
    found = [(part, rejects) for part, rejects in pairs]
    repeated = _repeated(ctx.store, [part for part, _ in found])
    affected = [index for index, ids in enumerate(repeated) if ids]
    items = []
    for index in affected:
        task = Repeats(part=found[index][0], rejects=found[index][1], ids=tuple(sorted(repeated[index])))
        inputs = (task.part.blob.sha256, task.rejects.blob.sha256, fingerprint.digest(task.ids))
        items.append(Item(inputs=inputs, task=task, rows=len(task.ids)))
    step = Step(name="documents/repeats", version="2")
    results = run_items(ctx, step, rewrite, items, label=f"{bucket}/documents (repeats)") if items else []
    for index, (part, rejects) in zip(affected, results, strict=True):
        found[index] = (part, rejects)
    return found


def rewrite(store: Store, task: Repeats) -> tuple[Part, Part]:
    """One part without its repeats, and its rejects with them."""
    dropped = pa.array([bytes.fromhex(key) for key in task.ids], type=pa.binary(16))
    counts, refused = Counter[str](), list[Reject]()

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, task.part):
            repeat = pc.is_in(batch["id"], value_set=dropped)
            for row in batch.filter(repeat).select(["id", "uri", "source_bytes", "text"]).to_pylist():
                counts.update(source_bytes=row["source_bytes"], text_bytes=len(row["text"].encode()))
                detail = f"an earlier part of the bucket holds {row['id'].hex()}"
                refused.append(Reject(row["uri"], "part", SEEN_BEFORE, detail, row["source_bytes"]))
            yield batch.filter(pc.invert(repeat))

    part = write_batches(store, "part.parquet", DOCUMENT_SCHEMA, kept())
    stats = {key: task.part.stats[key] - counts[key] for key in ("text_bytes", "source_bytes")}
    stats["seen_before_bytes"] = task.part.stats.get("seen_before_bytes", 0) + counts["text_bytes"]
    reasons = Counter(task.rejects.stats["rejects"]) + Counter({SEEN_BEFORE: len(refused)})
    rejects = write_batches(
        store,
        "rejects.parquet",
        REJECT_SCHEMA,
        [*iter_batches(store, task.rejects), reject_batch(refused)],
        stats={
            "rejects": dict(sorted(reasons.items())),
            "rejected_bytes": task.rejects.stats["rejected_bytes"] + counts["source_bytes"],
        },
    )
    return part.model_copy(update={"stats": {"documents": part.rows, **stats}}), rejects


def _repeated(store: Store, parts: Sequence[Part]) -> list[set[str]]:
    """Per part, the ids that an earlier part holds."""
    passes = max(1, -(-sum(part.rows for part in parts) // IDS_AT_ONCE))
    found: list[set[str]] = [set() for _ in parts]
    for index in range(passes):
        ids = [_ids(store, part, index, passes) for part in parts]
        owner = np.repeat(np.arange(len(parts)), [len(batch) for batch in ids])
        if not len(owner):
            continue
        everything = np.concatenate(ids)
        order = np.lexsort((owner, everything["low"], everything["high"]))
        ordered = everything[order]
        for at in np.flatnonzero(ordered[1:] == ordered[:-1]) + 1:
            high, low = ordered[at].item()
            found[owner[order[at]]].add(f"{high:016x}{low:016x}")
    return found


def _ids(store: Store, part: Part, index: int, passes: int) -> Ids:
    """The ids of a part that fall in one of `passes` equal ranges of their first eight bytes."""
    kind = np.dtype([("high", ">u8"), ("low", ">u8")])
    batches = [np.empty(0, dtype=kind)]
    low, high = index * 2**64 // passes, (index + 1) * 2**64 // passes - 1
    for batch in iter_batches(store, part, ["id"]):
        column = batch.column(0)
        ids = np.frombuffer(column.buffers()[1], dtype=kind)[column.offset : column.offset + len(column)]
        batches.append(ids[(ids["high"] >= low) & (ids["high"] <= high)])
    return np.concatenate(batches)
