"""Columns to verdicts: which documents a policy keeps, why it drops the others, and what it edits.

Reads sidecars side by side and never text, so that a changed threshold costs seconds. All rules are evaluated;
the first that fires is a document's reason, and every rule that fires is counted, so that the order of rules
changes reasons and not the outcome. Spans become edits, named by the policy's reason; where spans of several
annotators overlap, one edit covers them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.stage import Item, add_stats, manifest, renamed, run_items
from plinth.context import Context
from plinth.corpus.annotate import annotator
from plinth.corpus.expressions import Expression, parse
from plinth.corpus.sidecars import slots
from plinth.errors import RecipeError
from plinth.recipe.policies import Policy
from plinth.records import DOCUMENT_SCHEMA, EDIT_TYPE, Manifest, Part, Step
from plinth.storage.parts import iter_aligned, write_batches
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


def _judge(store: Store, task: _Task) -> tuple[Part, ...]:
    compiled = _Compiled(task.policy, tuple(name for name, _ in task.sidecars), "policy")
    stats = _no_counts()
    part = write_batches(store, "part.parquet", SCHEMA, _verdicts(store, task, compiled, stats))
    return (part.model_copy(update={"stats": stats}),)


def _verdicts(store: Store, task: _Task, compiled: _Compiled, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    parts = {DOCUMENTS: task.documents, **dict(task.sidecars)}
    wanted = {name: sorted({c.split(".")[1] for c in compiled.columns if c.startswith(f"{name}.")}) for name in parts}
    wanted[DOCUMENTS] = sorted({*wanted[DOCUMENTS], "source_bytes"})  # counted, whatever the rules read
    sources = [(name, part, wanted[name]) for name, part in parts.items() if wanted[name]]
    for batches in iter_aligned(store, *((part, names) for _, part, names in sources)):
        columns = {
            f"{name}.{column}": batch.column(column)
            for (name, _, names), batch in zip(sources, batches, strict=True)
            for column in names
        }
        yield _judged(compiled, columns, batches[0].num_rows, stats)


def _judged(compiled: _Compiled, columns: Mapping[str, pa.Array], rows: int, stats: dict[str, Any]) -> pa.RecordBatch:
    names = [reason for reason, _ in compiled.rules]
    fired = np.zeros((rows, len(names)), dtype=bool)
    for index, (_, rule) in enumerate(compiled.rules):
        fired[:, index] = rule.evaluate(columns, rows).to_numpy(zero_copy_only=False)
    keep = ~fired.any(axis=1)
    first = np.where(keep, -1, fired.argmax(axis=1)) if names else np.full(rows, -1)
    reasons = pa.array(names, pa.string()).take(pa.array(first, mask=keep)) if names else pa.nulls(rows, pa.string())
    edits = _edits(compiled, columns, rows)
    stats["documents"] += rows
    stats["kept"] += int(keep.sum())
    stats["kept_bytes"] += int(columns[f"{DOCUMENTS}.source_bytes"].to_numpy()[keep].sum())
    for index, name in enumerate(names):
        _count(stats["dropped"], name, int((first == index).sum()))
        _count(stats["fired"], name, int(fired[:, index].sum()))
    for row in pc.value_counts(pc.struct_field(edits.filter(pa.array(keep)).flatten(), "reason")).to_pylist():
        _count(stats["edits"], row["values"], row["counts"])
    return pa.record_batch([pa.array(keep), reasons, _fired_lists(fired, names), edits], schema=SCHEMA)


def _fired_lists(fired: np.ndarray[Any, Any], names: list[str]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(fired.sum(axis=1))]).astype(np.int32)
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(fired)[1])) if names else pa.array([], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _edits(compiled: _Compiled, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The edits of every document, sorted and disjoint. Most documents have none and cost nothing."""
    lists: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
    for reason, column in compiled.edits:
        some = np.flatnonzero(pc.fill_null(pc.list_value_length(columns[column]), 0).to_numpy(zero_copy_only=False))
        for row, spans in zip(some.tolist(), columns[column].take(pa.array(some)).to_pylist(), strict=True):
            lists[row] += [span | {"reason": reason} for span in spans]
    return pa.array([merged(spans) for spans in lists], EDIT_TYPE)


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
