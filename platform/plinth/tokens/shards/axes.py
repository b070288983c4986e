"""The stream of every curated document: values of the axes, joined from sidecars that lie beside the documents.

Curated text is the documents whose verdict is `train`, in order, so a sidecar's rows are filtered by the verdict and
then lie beside the curated rows. Memory is the labels of one part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.sidecars import slots
from plinth.corpus.sources.parameters import source_of
from plinth.errors import IntegrityError, RecipeError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store
from plinth.tokens.shards.parameters import AXES, label_of

VERSION = "1"
VERDICTS, DOCUMENTS = "verdicts", "documents"
#: The axis of duplicates: a document stands for its whole cluster, of which it alone is left.
COPIES = "copies"

#: Row for row the curated part: the label of each document's stream.
SCHEMA = pa.schema([pa.field("label", pa.string(), nullable=False)])

_POWERS = 2 ** np.arange(63, dtype=np.int64)


def column_of(axis: str) -> str | None:
    """The sidecar's column of an axis; None where a column of the document gives the value."""
    return AXES.get(axis, axis)


def sidecars_of(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The stages of a bucket that these axes are read from: annotators, and what places their rows."""
    named = {column.split(".")[0] for axis in axes if (column := column_of(axis))}
    placed = {VERDICTS, DOCUMENTS} if named or COPIES in axes else {DOCUMENTS} if "source" in axes else set()
    return tuple(sorted(named | placed))


def length_class(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest power of two that each document fits in, [documents]."""
    return _POWERS[np.searchsorted(_POWERS, tokens, side="left")]


def copies_class(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest power of two that each cluster of duplicates reaches, [documents]; 1 for a document alone."""
    return _POWERS[np.searchsorted(_POWERS, np.maximum(sizes, 1), side="right") - 1]


@dataclass(frozen=True)
class _Task:
    axes: tuple[str, ...]
    curated: Part
    lengths: Part
    verdicts: Part | None
    sidecars: Mapping[str, Part]
    sources: tuple[Mapping[str, Any], ...]


def run(
    ctx: Context,
    bucket: str,
    axes: tuple[str, ...],
    curated: Manifest,
    lengths: list[Part],
    sidecars: Mapping[str, Manifest],
) -> list[Part]:
    """A part of labels (`SCHEMA`) beside every curated part; stats: `streams`, by label documents and tokens.

    Args:
        lengths: tokens of the documents, a part beside every curated part.
        sidecars: manifests of this bucket by stage: those that `sidecars_of` names.

    Raises:
        RecipeError: a column that cannot name a stream.
        IntegrityError: a sidecar does not belong to the curated text.
    """
    parts = curated.named("part-")
    columns = {name: made for name, made in sidecars.items() if name != DOCUMENTS}
    placed: list[Mapping[str, Part]] = [{} for _ in parts]
    if columns:
        places = slots({bucket: sidecars[DOCUMENTS]}, **{name: {bucket: made} for name, made in columns.items()})
        by_name = {slot.documents.name: slot.sides for slot in places}
        placed = [by_name[part.name] for part in parts]
    sources = tuple(sidecars[DOCUMENTS].params.get("sources", ())) if "source" in axes else ()
    facts = json.dumps([list(axes), [dict(one) for one in sources]], sort_keys=True)
    items = []
    for part, own_lengths, side in zip(parts, lengths, placed, strict=True):
        digests = (part.blob.sha256, own_lengths.blob.sha256, *(f"{n}:{side[n].blob.sha256}" for n in sorted(side)))
        own = {name: one for name, one in side.items() if name != VERDICTS}
        task = _Task(axes, part, own_lengths, side.get(VERDICTS), own, sources)
        items.append(Item((*digests, facts), task, part.rows))
    step = Step(name="tokens.shards.axes", version=VERSION)
    return [one[0] for one in run_items(ctx, step, _write, items, label=f"{bucket}/shards: streams")]


def _write(store: Store, task: _Task) -> tuple[Part, ...]:
    tokens = _read_column(store, task.lengths, "tokens").to_numpy()
    columns = [_values(store, task, axis, tokens) for axis in task.axes]
    for axis, column in zip(task.axes, columns, strict=True):
        if len(column) != task.curated.rows:
            raise IntegrityError(
                f"the values of axis {axis} do not belong to {task.curated.name}",
                found=f"{len(column)} documents",
                expected=f"{task.curated.rows} documents that are trained on",
                remedy="make the sidecar and the curated text again from the same documents",
            )
    labels = _labels(task.axes, columns)
    codes, names = labels.indices.to_numpy(), labels.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(names))
    sums = np.bincount(codes, weights=tokens.astype(np.float64), minlength=len(names)).astype(np.int64)
    streams = {name: {"documents": int(counts[i]), "tokens": int(sums[i])} for i, name in enumerate(names)}
    batch = pa.RecordBatch.from_arrays([labels.dictionary_decode()], schema=SCHEMA)
    return (write_batches(store, "labels.parquet", SCHEMA, [batch], stats={"streams": streams}),)


def _labels(axes: tuple[str, ...], columns: list[pa.Array]) -> pa.DictionaryArray:
    """Label of every document, dictionary in order of name."""
    coded = [column.dictionary_encode() for column in columns]
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for one in coded:
        numbers = numbers * max(1, len(one.dictionary)) + one.indices.to_numpy()
    present, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    rows = [[one.dictionary[one.indices[int(at)].as_py()].as_py() for one in coded] for at in first]
    names = [label_of(dict(zip(axes, row, strict=True))) for row in rows]
    order = sorted(set(names))  # two values may have one name: absent, and the word `unknown`
    place = np.array([order.index(name) for name in names], dtype=np.int32)
    codes = place[inverse] if len(present) else np.empty(0, np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(order, pa.string()))


def _values(store: Store, task: _Task, axis: str, tokens: NDArray[np.int64]) -> pa.Array:
    """Value of an axis for every curated document, strings without nulls."""
    column = column_of(axis)
    if column is not None:
        return _without_nulls(pa.chunked_array(_sidecar_column(store, task, column), pa.string()))
    if axis == "length":
        return pa.array(length_class(tokens).astype(str), pa.string())
    if axis == COPIES:
        return pa.array(copies_class(_cluster_sizes(store, task)).astype(str), pa.string())
    if axis in ("domain", "source"):
        return pa.array([_origin(axis, task, *row) for row in _origins(store, task.curated)], pa.string())
    return _without_nulls(_read_column(store, task.curated, axis))


def _sidecar_column(store: Store, task: _Task, column: str) -> list[pa.Array]:
    """A sidecar's column for the documents that are trained on, as strings."""
    side, _, name = column.partition(".")
    assert task.verdicts is not None
    as_strings = _to_strings(column)
    return [
        as_strings(one.column(name).filter(pc.equal(verdict.column("decision"), "train")))
        for one, verdict in iter_aligned(store, (task.sidecars[side], [name]), (task.verdicts, ["decision"]))
    ]


def _cluster_sizes(store: Store, task: _Task) -> NDArray[np.int64]:
    """Documents in the cluster of every document that is trained on."""
    assert task.verdicts is not None
    sizes = [
        batch.column("cluster_size").filter(pc.equal(batch.column("decision"), "train")).to_numpy()
        for batch in iter_batches(store, task.verdicts, ["decision", "cluster_size"])
    ]
    return np.concatenate([np.empty(0, np.int64), *sizes]).astype(np.int64)


def _to_strings(column: str) -> Callable[[pa.Array], pa.Array]:
    def convert(values: pa.Array) -> pa.Array:
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if not (pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise RecipeError(
                f"shards.axes: {column} cannot name streams",
                found=f"values of type {kind}",
                expected="a column of strings, or of booleans",
                remedy="choose a label (language.label, perplexity.band, …) instead of a score",
            )
        return pc.cast(values, pa.string())

    return convert


def _origins(store: Store, curated: Part) -> Iterator[tuple[str | None, str]]:
    """Domain and snapshot of every document."""
    for batch in iter_batches(store, curated, ["extra", "snapshot"]):
        domains = [json.loads(extra).get("domain") for extra in batch.column("extra").to_pylist()]
        yield from zip(domains, batch.column("snapshot").to_pylist(), strict=True)


def _origin(axis: str, task: _Task, domain: str | None, snapshot: str) -> str:
    if axis == "domain":
        return domain or ""
    place = source_of(task.sources, domain, snapshot)
    return "" if place is None else str(place)


def _read_column(store: Store, part: Part, column: str) -> pa.Array:
    batches = [batch.column(column) for batch in iter_batches(store, part, [column])]
    return pa.chunked_array(batches).combine_chunks() if batches else pa.array([], pa.string())


def _without_nulls(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pc.fill_null(whole, "")
