"""Training text beside its row of the ledger: both lie in the order of the documents.

Of the ledger everything travels that speaks of the document: origin, licence, terms, scores, cluster, rules that
fired, edits. What speaks of one training run (shard, position, tokens, weight) does not: the same text is the same
export whatever was trained on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.errors import IntegrityError
from plinth.provenance.ledger.columns import BASE, JOIN, hexadecimal
from plinth.records import Part
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

#: Columns of curated text, as an export names them. `metadata` is what the source said, JSON.
_TEXT = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])
_METADATA = pa.field("metadata", pa.string(), nullable=False)
#: Columns of the ledger under their names there; `domain` is called `source`, as others call it.
_LEDGER = ("bucket", "domain", "uri", "captured_at", "snapshot", "licence", "may_commercial", "mime")
_JUDGED = ("fired", "cluster", "cluster_size", "edits", "edited_characters")
_NAMES = {"domain": "source"}


def schema_of(store: Store, ledger: Part) -> pa.Schema:
    """The columns of an export, with the sidecars' that this part of the ledger has."""
    scores = [field for field in pq.read_schema(store.open_path(ledger.blob)) if JOIN in field.name]
    fixed = [BASE.field(name).with_name(_NAMES.get(name, name)) for name in (*_LEDGER, *_JUDGED)]
    return pa.schema([*_TEXT, *fixed, *scores, _METADATA])


def rows(store: Store, curated: Part, ledger: Part) -> Iterator[pa.RecordBatch]:
    """The training documents of a part, with `schema_of` the ledger.

    Raises:
        IntegrityError: the ledger does not follow the text.
    """
    schema = schema_of(store, ledger)
    read = [name for name in pq.read_schema(store.open_path(ledger.blob)).names if JOIN in name]
    texts = _Texts(store, curated)
    for batch in iter_batches(store, ledger, ["id", "decision", *_LEDGER, *_JUDGED, *read]):
        batch = batch.filter(pc.equal(batch.column("decision"), "train"))
        if not batch.num_rows:
            continue
        text = texts.take(batch.column("id"))
        columns = {_NAMES.get(name, name): batch.column(name) for name in batch.schema.names}
        columns |= {"text": text.column("text"), "metadata": text.column("extra")}
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    texts.finish()


class _Texts:
    """Text and metadata of a part, taken in order."""

    def __init__(self, store: Store, part: Part) -> None:
        self._part = part
        self._batches = iter_batches(store, part, ["id", "text", "extra"])
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def take(self, ids: pa.Array) -> pa.RecordBatch:
        """The next documents, which must be these."""
        while self._rows < len(ids) and (batch := next(self._batches, None)) is not None:
            self._waiting.append(batch)
            self._rows += batch.num_rows
        held = pa.Table.from_batches(self._waiting) if self._waiting else None
        if held is None or held.num_rows < len(ids):
            raise self._other(f"{self._rows} documents are left for {len(ids)} rows of the ledger")
        taken = held.slice(0, len(ids)).combine_chunks().to_batches()[0]
        rest = held.slice(len(ids))
        self._waiting, self._rows = [batch for batch in rest.to_batches() if batch.num_rows], rest.num_rows
        if not hexadecimal(taken.column("id")).equals(ids):
            raise self._other("other documents, or another order")
        return taken

    def finish(self) -> None:
        """Fail where text is left."""
        if self._rows or any(batch.num_rows for batch in self._batches):
            raise self._other("documents without a row in the ledger")

    def _other(self, found: str) -> IntegrityError:
        return IntegrityError(
            f"the ledger does not follow the curated text ({self._part.name})",
            found=found,
            expected="the documents that are trained on, in order",
            remedy="plinth run --select ledger",
        )
