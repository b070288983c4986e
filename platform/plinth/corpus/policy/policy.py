"""Columns to verdicts: which documents a policy keeps, why it drops the others, and what it edits.

Reads sidecars side by side and never text, so that a changed threshold costs seconds. All rules are evaluated;
the first that fires is a document's reason, and every rule that fires is counted, so that the order of rules
changes reasons and not the outcome. Spans become edits, named by the policy's reason; where spans of several
annotators overlap, one edit covers them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.compute.stage import Item, add_stats, manifest, renamed, run_items
from plinth.corpus.annotate.registry import annotator
from plinth.corpus.policy import rule_kernels
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.sidecars import slots
from plinth.errors import RecipeError
from plinth.records import DOCUMENT_SCHEMA, EDIT_TYPE, Manifest, Part, Step
from plinth.storage.parts import SCORE_GROUP_ROWS, iter_aligned, write_batches
from plinth.storage.store import Store

VERSION = "2"
DOCUMENTS = "documents"

#: Document columns that a policy may ask about; never text.
DOCUMENT_COLUMNS = ("uri", "captured_at", "snapshot", "licence", "mime", "source_bytes")

SCHEMA = pa.schema(
    [
        pa.field("keep", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),  # of the first rule that fires; null when kept
        pa.field("fired", pa.list_(pa.string()), nullable=False),
        pa.field("edits", EDIT_TYPE, nullable=False),
    ]
)


EDIT_NAMES = [field.name for field in EDIT_TYPE.value_type]
_NO_EDITS = pa.array([], EDIT_TYPE.value_type)
#: Rows judged at once: a row group of the sidecars.
BATCH_ROWS = SCORE_GROUP_ROWS

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Task:
    policy: Policy
    documents: Part
    sidecars: tuple[tuple[str, Part], ...]


def run(
    ctx: Context, bucket_name: str, policy: Policy, documents: Manifest, annotations: Mapping[str, Manifest]
) -> Manifest:
    """Judge every document of a bucket.

    Returns:
        Manifest of `part-*` with `SCHEMA`, aligned with `documents`. Statistics: `documents`, `kept`,
        `dropped` (first reason -> documents), `fired` (rule -> documents), `kept_bytes` (of source: text is not
        read) and `edits` (reason -> edits of kept documents).

    Raises:
        RecipeError: a rule that cannot be read, or names a column that no annotation has.
        IntegrityError: a sidecar does not belong to the documents.
    """
    used = check(policy, tuple(annotations), bucket_name)
    read = {name: {bucket_name: annotations[name]} for name in sorted(annotations) if name in used}
    step = Step(name="policy", version=VERSION, params=policy.model_dump(mode="json"))
    items = []
    for slot in slots({bucket_name: documents}, **read):
        sidecars = tuple(slot.sides.items())
        digests = (slot.documents.blob.sha256, *(f"{name}:{side.blob.sha256}" for name, side in sidecars))
        items.append(Item(digests, _Task(policy, slot.documents, sidecars), slot.documents.rows))
    asset = f"{bucket_name}/policy"
    parts = [made[0] for made in run_items(ctx, step, _judge, items, label=asset)]
    inputs = {f"{bucket_name}/{DOCUMENTS}": documents}
    inputs |= {f"{bucket_name}/{name}": annotations[name] for name in read}
    return manifest(asset, step, inputs, renamed(parts, "part"), _no_counts() | add_stats(parts))


def columns_of(annotators: tuple[str, ...]) -> dict[str, pa.DataType]:
    """Every column that a policy may name, with its type."""
    found = {f"{DOCUMENTS}.{name}": DOCUMENT_SCHEMA.field(name).type for name in DOCUMENT_COLUMNS}
    for name in annotators:
        found |= {f"{name}.{field.name}": field.type for field in annotator(name).schema}
    return found


def check(policy: Policy, annotators: tuple[str, ...], where: str = "policy") -> set[str]:
    """The sidecars that a policy reads.

    Raises:
        RecipeError: a rule that cannot be read, a name used twice, a column that does not exist.
    """
    return {column.split(".")[0] for column in _Compiled(policy, annotators, where).columns}


class _Compiled:
    """A policy ready to be evaluated."""

    def __init__(self, policy: Policy, annotators: tuple[str, ...], where: str) -> None:
        schema = columns_of(annotators)
        names = [rule.reason for rule in policy.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RecipeError(f"{where}: more than one rule is called {twice[0]}", remedy="give each its own reason")
        self.rules: list[tuple[str, Expression]] = [
            (rule.reason, parse(rule.drop, schema, f"{where}.rules.{rule.reason}")) for rule in policy.rules
        ]
        self.edits = [(rule.reason, rule.spans) for rule in policy.edits]
        for reason, column in self.edits:
            if schema.get(column) != EDIT_TYPE:
                spans = ", ".join(name for name, kind in schema.items() if kind == EDIT_TYPE) or "none"
                raise RecipeError(f"{where}.edits.{reason}: {column!r} is no column of spans", expected=spans)
        self.columns = {name for _, rule in self.rules for name in rule.columns} | {name for _, name in self.edits}
        self.labels = {name for name in self.columns if pa.types.is_string(schema[name])}


@lru_cache(maxsize=16)
def _compiled(policy: Policy, annotators: tuple[str, ...]) -> _Compiled:
    """Parsed once by a worker, not for each part."""
    return _Compiled(policy, annotators, "policy")


def _judge(store: Store, task: _Task) -> tuple[Part, ...]:
    compiled = _compiled(task.policy, tuple(name for name, _ in task.sidecars))
    stats = _no_counts()
    verdicts = _verdicts(store, task, compiled, stats)
    part = write_batches(store, "part.parquet", SCHEMA, verdicts, group_rows=SCORE_GROUP_ROWS)
    return (part.model_copy(update={"stats": stats}),)


def _verdicts(store: Store, task: _Task, compiled: _Compiled, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    parts = {DOCUMENTS: task.documents, **dict(task.sidecars)}
    wanted = {name: sorted({c.split(".")[1] for c in compiled.columns if c.startswith(f"{name}.")}) for name in parts}
    wanted[DOCUMENTS] = sorted({*wanted[DOCUMENTS], "source_bytes"})  # counted, whatever the rules read
    sources = [(name, part, wanted[name]) for name, part in parts.items() if wanted[name]]
    labels = [[one for one in names if f"{name}.{one}" in compiled.labels] for name, _, names in sources]
    aligned = iter_aligned(store, *((part, names) for _, part, names in sources), rows=BATCH_ROWS, labels=labels)
    for batches in aligned:
        columns = {
            f"{name}.{column}": batch.column(column)
            for (name, _, names), batch in zip(sources, batches, strict=True)
            for column in names
        }
        yield _judged(compiled, columns, batches[0].num_rows, stats)


def _judged(compiled: _Compiled, columns: Mapping[str, pa.Array], rows: int, stats: dict[str, Any]) -> pa.RecordBatch:
    names = [reason for reason, _ in compiled.rules]
    size = columns[f"{DOCUMENTS}.source_bytes"].to_numpy()
    fires = rule_kernels.fired([rule for _, rule in compiled.rules], columns, rows)
    first, count, counts = rule_kernels.tally(fires, size)
    keep = count == 0
    edits, counted = _edits(compiled, columns, keep)
    stats["documents"] += rows
    stats["kept"] += rows - int(counts[:, rule_kernels.FIRST].sum())
    stats["kept_bytes"] += int(size.sum()) - int(counts[:, rule_kernels.FIRST_BYTES].sum())
    for name, row in zip(names, counts, strict=True):
        _count(stats["dropped"], name, int(row[rule_kernels.FIRST]))
        _count(stats["fired"], name, int(row[rule_kernels.FIRES]))
    for reason, edited in counted.items():
        _count(stats["edits"], reason, edited)
    offsets, rules = rule_kernels.lists(fires, count)
    reasons, lists = _named(names, pa.array(first, mask=keep)), _named(names, pa.array(rules))
    return pa.record_batch([keep, reasons, pa.ListArray.from_arrays(pa.array(offsets), lists), edits], schema=SCHEMA)


def _named(names: list[str], numbers: pa.Array) -> pa.Array:
    """Numbers of rules as their names."""
    return pa.array(names, pa.string()).take(numbers) if names else pa.nulls(len(numbers), pa.string())


def _offsets(sizes: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))


def _edits(compiled: _Compiled, columns: Mapping[str, pa.Array], keep: Bools) -> tuple[pa.Array, dict[str, int]]:
    """The edits of every document, sorted and disjoint, and how many of each reason kept documents have.

    Documents without spans cost nothing, and those whose spans do not overlap no Python.
    """
    tables = []
    for reason, column in compiled.edits:
        spans = columns[column]
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(spans.flatten())]).select(EDIT_NAMES[:3])
        table = table.append_column("reason", pa.array([reason]).take(pa.array(np.zeros(len(table), dtype=np.int8))))
        tables.append(table.append_column("row", pc.list_parent_indices(spans)))
    if not tables or not sum(map(len, tables)):
        return pa.ListArray.from_arrays(_offsets(np.zeros(keep.size, dtype=np.int64)), _NO_EDITS), {}
    table = pa.concat_tables(tables).combine_chunks()
    row, start, end = (table.column(name).to_numpy() for name in ("row", "start_cp", "end_cp"))
    table = table.take(pa.array(np.lexsort((-end, start, row)))).combine_chunks()
    row, start, end = (table.column(name).to_numpy() for name in ("row", "start_cp", "end_cp"))
    if np.any((row[1:] == row[:-1]) & (start[1:] < end[:-1])):
        table = _disjoint(table)
        row = table.column("row").to_numpy()
    counts = pc.value_counts(table.column("reason").filter(pa.array(keep[row]))).to_pylist()
    values = pa.StructArray.from_arrays(
        [table.column(name).combine_chunks() for name in EDIT_NAMES], fields=list(EDIT_TYPE.value_type)
    )
    edits = pa.ListArray.from_arrays(_offsets(np.bincount(row, minlength=keep.size)), values)
    return edits, {str(count["values"]): count["counts"] for count in counts}


def _disjoint(table: pa.Table) -> pa.Table:
    """Sorted spans with those merged that overlap."""
    spans: dict[int, list[dict[str, Any]]] = {}
    for span in table.to_pylist():
        spans.setdefault(span["row"], []).append(span)
    return pa.Table.from_pylist([edit for mine in spans.values() for edit in merged(mine)], schema=table.schema)


def merged(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorted, disjoint edits that cover the spans; one that covers several takes reason and replacement of the
    longest, of equal ones the earliest, then of the one given first."""
    edits: list[dict[str, Any]] = []
    longest = 0
    for span in sorted(spans, key=lambda span: (span["start_cp"], -span["end_cp"])):
        length = span["end_cp"] - span["start_cp"]
        if edits and span["start_cp"] < edits[-1]["end_cp"]:
            end = max(edits[-1]["end_cp"], span["end_cp"])
            named = span if length > longest else edits[-1]
            edits[-1] = {**named, "start_cp": edits[-1]["start_cp"], "end_cp": end}
            longest = max(longest, length)
        else:
            edits.append(dict(span))
            longest = length
    return edits


def _no_counts() -> dict[str, Any]:
    return {"documents": 0, "kept": 0, "kept_bytes": 0, "dropped": {}, "fired": {}, "edits": {}}


def _count(counts: dict[str, int], name: str, more: int) -> None:
    if more:
        counts[name] = counts.get(name, 0) + more
