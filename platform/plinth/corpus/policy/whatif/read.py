"""Columns of one part's sidecars beside its published verdicts, batch by batch; no text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.corpus.policy.compiled_policy import DOCUMENTS, CompiledPolicy
from plinth.corpus.policy.policy import EDIT_NAMES
from plinth.corpus.sidecars import Slot
from plinth.records import Part
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

#: Rows evaluated at once: long enough that a kernel call costs nothing, short enough to stay in the cache.
BATCH_ROWS = 1 << 16
#: Columns read of the sidecars that are always there; `fired` only where it spares a rule.
_ALWAYS = {"policy": ("keep", "reason"), "exact": ("text_bytes",)}
#: The strings among them.
_LABELS = {"policy": ["reason"]}

I64 = npt.NDArray[np.int64]
Sides = dict[str, dict[str, pa.Array]]


def batches(store: Store, slot: Slot, rules: CompiledPolicy) -> Iterator[tuple[dict[str, pa.Array], Sides, int]]:
    """Columns that the rules read, and those of the published judgement, side by side; strings as dictionaries."""
    always = {**_ALWAYS, "policy": (*_ALWAYS["policy"], *(["fired"] if rules.stored else []))}
    wanted = {**rules.sidecars, **always}
    parts = {DOCUMENTS: slot.documents, **slot.sides}
    readers = {name: _reader(store, parts[name], name, columns, rules) for name, columns in wanted.items()}
    for read in zip(*readers.values(), strict=True):
        named = dict(zip(readers, read, strict=True))
        columns = {f"{name}.{one}": named[name].column(one) for name, own in rules.sidecars.items() for one in own}
        sides = {name: {one: named[name].column(one) for one in own} for name, own in always.items()}
        yield columns, sides, read[0].num_rows


def _reader(
    store: Store, part: Part, name: str, columns: Sequence[str], rules: CompiledPolicy
) -> Iterator[pa.RecordBatch]:
    """Batches of one sidecar; of spans only their beginnings, since they are counted."""
    spans = {column for _, column in rules.edits}
    leaves = [f"{one}.list.element.{EDIT_NAMES[0]}" if f"{name}.{one}" in spans else one for one in columns]
    labels = _LABELS.get(name) or [one for one in columns if f"{name}.{one}" in rules.labels]
    return iter_batches(store, part, leaves, BATCH_ROWS, labels)


def strings_at(column: pa.Array, rows: I64) -> pa.Array:
    """Strings of some rows, out of a dictionary."""
    return column.take(pa.array(rows)).dictionary_decode()


class Later:
    """Columns of a part that are read only where a document changes sides, which few do."""

    def __init__(self, store: Store, part: Part, columns: Sequence[str], labels: Sequence[str] = ()) -> None:
        self._batches, self._row = iter_batches(store, part, columns, BATCH_ROWS, labels), 0

    def at(self, first: int) -> pa.RecordBatch:
        """The batch that starts at a row, which no earlier call was at or past."""
        for batch in self._batches:
            here, self._row = self._row, self._row + batch.num_rows
            if here == first:
                return batch
        raise AssertionError("unreachable: the batch was just read")
