"""Measure a tokenizer on a sample of one part: uses of each token, sums by language and domain."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.records import Blob, Part
from plinth.storage.parts import iter_aligned, iter_batches, write_table
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.sample import sample_keys
from plinth.tokens.tokenizer.vocabulary import token_bytes
from plinth_text.unicode.scripts import word_counts

UNKNOWN = "und"  # ISO 639-3: undetermined

COUNTS = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("count", "documents")])

#: Groups of texts, besides their bucket.
AXES = ("languages", "domains")


@dataclass(frozen=True)
class AuditTask:
    """A curated part with the documents it was made from and their languages."""

    bucket: str
    tokenizer: Blob
    curated: Part
    documents: Part
    language: Part
    column: str
    budget_bytes: int

    @property
    def digests(self) -> tuple[str, ...]:
        """Identity of the measurement."""
        parts = (self.curated, self.documents, self.language)
        return (self.tokenizer.sha256, *(part.blob.sha256 for part in parts))


def measure(store: Store, task: AuditTask) -> tuple[Part, ...]:
    """Token counts of the part's sample; sums by language and failed round trips in the stats."""
    trained = encode.load(store, task.tokenizer)
    table = token_bytes(trained)
    whole = np.array([_is_text(data) for data in table])
    counts = np.zeros((2, len(table)), dtype=np.int64)  # occurrences, documents
    sums: dict[str, dict[str, Counter[str]]] = {axis: {} for axis in AXES}
    chosen = _chosen(store, task)
    labels = _labels(store, task, {one.id for one in chosen})
    failed = 0
    with encode.parallel(False):
        encoded = encode.encode_texts(trained, (one.text for one in chosen), "<u4")
        for one, ids in zip(chosen, encoded, strict=True):
            own = np.bincount(ids, minlength=len(table))
            counts += np.stack([own, own > 0])
            data = one.text.encode()
            failed += b"".join([table[token] for token in ids.tolist()]) != data
            facts = {"documents": 1, **word_counts(one.text), "characters": len(one.text), "bytes": len(data)}
            facts |= {"tokens": len(ids), "fragments": len(ids) - int(whole[ids].sum())}
            for axis, name in zip(AXES, (labels.get(one.id, UNKNOWN), one.domain), strict=True):
                sums[axis].setdefault(name, Counter()).update(facts)
    stats: dict[str, Any] = {
        axis: {name: dict(found) for name, found in sorted(groups.items())} for axis, groups in sums.items()
    }
    stats["round_trip"] = {"texts": len(chosen), "failed": failed}
    return (write_table(store, "counts.parquet", pa.table(list(counts), schema=COUNTS), stats=stats),)


@dataclass(frozen=True)
class _Chosen:
    id: bytes
    text: str
    domain: str


def _chosen(store: Store, task: AuditTask) -> list[_Chosen]:
    """The documents that come first by hash, in documents' order, within the budget."""
    lines, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for batch in iter_batches(store, task.curated, ["id", "text"]):
        lines.append(sample_keys(batch.column("id")))
        sizes.append(np.asarray(pc.binary_length(batch.column("text"))).astype(np.int64))
    order = np.argsort(np.concatenate(lines), kind="stable")
    held = np.minimum(np.concatenate(sizes)[order], task.budget_bytes).cumsum()
    rows = np.sort(order[: max(1, int(np.searchsorted(held, task.budget_bytes, side="right")))])
    chosen: list[_Chosen] = []
    first = 0
    for batch in iter_batches(store, task.curated, ["id", "text", "extra"]):
        picked = batch.take(pa.array(rows[(rows >= first) & (rows < first + batch.num_rows)] - first))
        for row in picked.to_pylist():
            text = row["text"].encode()[: task.budget_bytes].decode(errors="ignore")
            chosen.append(_Chosen(row["id"], text, json.loads(row["extra"]).get("domain") or UNKNOWN))
        first += batch.num_rows
    return chosen


def _labels(store: Store, task: AuditTask, wanted: set[bytes]) -> dict[bytes, str]:
    labels: dict[bytes, str] = {}
    for ids, named in iter_aligned(store, (task.documents, ["id"]), (task.language, [task.column])):
        pairs = zip(ids.column("id").to_pylist(), named.column(task.column).to_pylist(), strict=True)
        labels |= {identity: name or UNKNOWN for identity, name in pairs if identity in wanted}
    return labels


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
