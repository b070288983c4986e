"""Policy stage, which computes verdicts, reasons and edits from annotation columns.

The stage reads sidecars in parallel and never reads text, so a re-run with a changed threshold takes seconds. All rules
are evaluated, and all matches are counted. A document's reason is the first rule that matches it. Therefore the order
of rules changes reasons but never the decision. The license gate (`rights`) runs before the rules, and no rule can
weaken it. Spans become edits whose reason is the name of the policy's edit. If spans of several annotators overlap, one
edit covers all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus.annotate.base import Available, available
from plinth.corpus.policy.compiled_policy import DOCUMENTS, CompiledPolicy, Rights, compile_policy
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.sidecars import slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import EDIT_TYPE, SCORE_GROUP_ROWS, iter_aligned, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import I32, I64, Bools
from plinth_text.compiled import compiled

VERSION = "3"

SCHEMA = pa.schema(
    [
        pa.field("keep", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),  # of the first rule that fires; null when kept
        pa.field("fired", pa.list_(pa.string()), nullable=False),
        pa.field("edits", EDIT_TYPE, nullable=False),
    ]
)

#: Key of the rights among the parameters of a manifest; the others are the policy's.
RIGHTS = "rights"
EDIT_NAMES = [field.name for field in EDIT_TYPE.value_type]
#: Rows judged at once: a row group of the sidecars.
BATCH_ROWS = SCORE_GROUP_ROWS



@dataclass(frozen=True)
class _Task:
    policy: Policy
    rights: Rights
    documents: Part
    sidecars: tuple[tuple[str, Part], ...]
    annotators: tuple[Available, ...]


def run(
    ctx: Context,
    bucket_name: str,
    policy: Policy,
    documents: Manifest,
    annotations: Mapping[str, Manifest],
    rights: Rights,
) -> Manifest:
    """Decide for every document of a bucket whether it is kept, and write the verdicts, reasons and edits.

    Args:
        rights: license gate of the recipe. Terms of sources are taken from the documents' manifest.

    Returns:
        Manifest of `part-*` with `SCHEMA`, aligned with `documents`. Statistics: `documents`, `kept`,
        `dropped` (first reason -> documents), `fired` (rule -> documents), `kept_bytes` (source bytes, because text
        is not read) and `edits` (reason -> edits of kept documents).

    Raises:
        RecipeError: a rule cannot be parsed, or names a column that no annotation has.
        IntegrityError: a sidecar does not belong to the documents.
    """
    rights = rights.within(documents)
    used = compile_policy(policy, available(annotations), bucket_name, rights).sidecars
    read = {name: {bucket_name: annotations[name]} for name in sorted(annotations) if name in used}
    params = policy.model_dump(mode="json") | {RIGHTS: rights.model_dump(mode="json")}
    step = Step(name="policy", version=VERSION, params=params)
    items = []
    for slot in slots({bucket_name: documents}, **read):
        sidecars = tuple(slot.sides.items())
        digests = (slot.documents.blob.sha256, *(f"{name}:{side.blob.sha256}" for name, side in sidecars))
        task = _Task(policy, rights, slot.documents, sidecars, available({name: annotations[name] for name in read}))
        items.append(Item(digests, task, slot.documents.rows))
    asset = f"{bucket_name}/policy"
    parts = [made[0] for made in run_items(ctx, step, _judge, items, label=asset, unit="documents")]
    inputs = {f"{bucket_name}/{DOCUMENTS}": documents}
    inputs |= {f"{bucket_name}/{name}": annotations[name] for name in read}
    return manifest(asset, step, inputs, renamed(parts, "part"), _no_counts() | add_stats(parts))


def published(made: Manifest) -> tuple[Policy, Rights | None]:
    """Return the policy and the license gate that produced a manifest. The license gate is None for manifests before
    version 3."""
    rules = {key: value for key, value in made.params.items() if key != RIGHTS}
    rights = made.params.get(RIGHTS)
    return Policy.model_validate(rules), None if rights is None else Rights.model_validate(rights)


def _judge(store: Store, task: _Task) -> tuple[Part, ...]:
    compiled = compile_policy(task.policy, task.annotators, "policy", task.rights)
    stats = _no_counts()
    verdicts = _verdicts(store, task, compiled, stats)
    part = write_batches(store, "part.parquet", SCHEMA, verdicts, group_rows=SCORE_GROUP_ROWS)
    return (part.model_copy(update={"stats": stats}),)


def _verdicts(store: Store, task: _Task, compiled: CompiledPolicy, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    wanted = compiled.sidecars
    # source bytes are counted, whatever the rules read
    wanted[DOCUMENTS] = sorted({*wanted.get(DOCUMENTS, ()), "source_bytes"})
    parts = {DOCUMENTS: task.documents, **dict(task.sidecars)}
    sources = [(name, part, wanted[name]) for name, part in parts.items() if name in wanted]
    labels = [[one for one in names if f"{name}.{one}" in compiled.labels] for name, _, names in sources]
    aligned = iter_aligned(store, *((part, names) for _, part, names in sources), rows=BATCH_ROWS, labels=labels)
    for batches in aligned:
        columns = {
            f"{name}.{column}": batch.column(column)
            for (name, _, names), batch in zip(sources, batches, strict=True)
            for column in names
        }
        yield _judged(compiled, columns, batches[0].num_rows, stats)


def _judged(
    compiled: CompiledPolicy, columns: Mapping[str, pa.Array], rows: int, stats: dict[str, Any]
) -> pa.RecordBatch:
    names = compiled.reasons
    size = columns[f"{DOCUMENTS}.source_bytes"].to_numpy()
    fires = compiled.fires(columns, rows)
    first, count, counts = tally(fires, size)
    keep = count == 0
    edits, counted = _edits(compiled, columns, keep)
    stats["documents"] += rows
    stats["kept"] += rows - int(counts[:, FIRST].sum())
    stats["kept_bytes"] += int(size.sum()) - int(counts[:, FIRST_BYTES].sum())
    for name, row in zip(names, counts, strict=True):
        _count(stats["dropped"], name, int(row[FIRST]))
        _count(stats["fired"], name, int(row[FIRES]))
    for reason, edited in counted.items():
        _count(stats["edits"], reason, edited)
    offsets, rules = rule_lists(fires, count)
    reasons, lists = _named(names, pa.array(first, mask=keep)), _named(names, pa.array(rules))
    return pa.record_batch([keep, reasons, pa.ListArray.from_arrays(pa.array(offsets), lists), edits], schema=SCHEMA)


def _named(names: list[str], numbers: pa.Array) -> pa.Array:
    """Return the names of the rules whose numbers are in an array."""
    return pa.array(names, pa.string()).take(numbers) if names else pa.nulls(len(numbers), pa.string())


def _offsets(sizes: I64) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))


def _edits(compiled: CompiledPolicy, columns: Mapping[str, pa.Array], keep: Bools) -> tuple[pa.Array, dict[str, int]]:
    """Return the sorted, disjoint edits of every document, and the number of edits of kept documents by reason.

    Documents without overlapping spans are processed in Arrow, without Python code per document.
    """
    tables = []
    for reason, column in compiled.edits:
        spans = columns[column]
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(spans.flatten())]).select(EDIT_NAMES[:3])
        table = table.append_column("reason", pa.array([reason]).take(pa.array(np.zeros(len(table), dtype=np.int8))))
        tables.append(table.append_column("row", pc.list_parent_indices(spans)))
    if not tables or not sum(map(len, tables)):
        none = pa.nulls(0, EDIT_TYPE.value_type)
        return pa.ListArray.from_arrays(_offsets(np.zeros(keep.size, dtype=np.int64)), none), {}
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
    """Return a table of sorted spans in which overlapping spans are merged."""
    spans: dict[int, list[dict[str, Any]]] = {}
    for span in table.to_pylist():
        spans.setdefault(span["row"], []).append(span)
    return pa.Table.from_pylist([edit for mine in spans.values() for edit in merged(mine)], schema=table.schema)


def merged(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return sorted, disjoint edits that cover the spans. An edit that covers several spans has the reason and
    replacement of the longest span. If several spans are longest, the earliest of them is used, and then the first in
    the list."""
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


# Documents by rule, counted in one pass: all that it fires on, first, and alone.
#
# Kernels of the policy stage and of what-if. Rules fire seldom, so rows are skipped eight at a time.
#
# Letters: R rules, D documents of a batch.

#: Columns of a tally: documents that a rule fires on, is the first on, is the only one on; then their bytes.
FIRES, FIRST, ALONE, FIRES_BYTES, FIRST_BYTES, ALONE_BYTES = range(6)


def tally(fires: Bools, size: I64) -> tuple[I64, I32, I64]:
    """Count documents and bytes by rule.

    Args:
        fires: [R, D] True if the rule matches the document.
        size: [D] bytes of each document.

    Returns:
        The first matching rule of each document, or -1 [D]; the number of matching rules of each document [D]; and the
        counts by rule [R, 6], whose columns are `FIRES` to `ALONE_BYTES`.
    """
    first = np.full(fires.shape[1], -1, dtype=np.int64)
    count = np.zeros(fires.shape[1], dtype=np.int32)
    counts = np.zeros((fires.shape[0], 6), dtype=np.int64)
    places = np.empty(fires.shape[1] + 1, dtype=np.int64)
    count_rules(fires, np.ascontiguousarray(size, dtype=np.int64), places, first, count, counts)
    return first, count, counts


def rule_lists(fires: Bools, count: I32) -> tuple[I32, I32]:
    """Return the numbers of the rules that match each document, as lists with offsets [D + 1]."""
    offsets = np.zeros(count.size + 1, dtype=np.int32)
    np.cumsum(count, out=offsets[1:])
    values = np.empty(offsets[-1], dtype=np.int32)
    list_rules(fires, np.empty(count.size + 1, dtype=np.int64), offsets[:-1].copy(), values)
    return offsets, values


@compiled
def count_rules(fires: Bools, size: I64, places: I64, first: I64, count: I32, counts: I64) -> None:
    """Write the first matching rule, the number of matching rules and the counts by rule to `first`, `count` and
    `counts`, as `tally` returns them. `places` is scratch memory, [D + 1]."""


@compiled
def list_rules(fires: Bools, places: I64, cursor: I32, values: I32) -> None:
    """Write the numbers of the rules that match each document to `values`, beginning at the document's position in
    `cursor`. `places` is scratch memory, [D + 1]."""
