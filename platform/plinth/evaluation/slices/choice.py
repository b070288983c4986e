"""Selection of held-out documents and of protected items, and the slices of every document."""

from __future__ import annotations

import ast
import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.corpus.policy.expressions import Expression, parse, syntax
from plinth.corpus.protected import comparison
from plinth.corpus.verdicts import ASSETS
from plinth.errors import IntegrityError, RecipeError, StageError
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_batches, read_table
from plinth.storage.store import Store

# Selection of held-out documents: per bucket the smallest ids, up to a number of bytes.
#
# Ids are hashes, so the smallest ids are an unbiased sample that does not depend on the order of parts. The last
# document is truncated at a character, so a bucket yields exactly the configured bytes, if available.


@dataclass(frozen=True)
class Document:
    """A held-out document in the form that every model scores. `text` may be truncated."""

    id: bytes
    bucket: str
    text: str

    @property
    def data(self) -> bytes:
        """UTF-8 bytes of the text. The length is the denominator of bits per byte."""
        return self.text.encode()


def choose_documents(store: Store, curated: Mapping[str, Manifest], max_bytes: int) -> list[Document]:
    """Return the held-out documents of every bucket, sorted by bucket name and document id.

    Raises:
        StageError: a bucket has no held-out text.
    """
    chosen: list[Document] = []
    for bucket in sorted(curated):
        own = list(_of_bucket(store, bucket, curated[bucket], max_bytes))
        if not own:
            raise StageError(
                f"bucket {bucket} has no held-out text",
                found=f"{len(curated[bucket].named('heldout-'))} held-out parts without text",
                expected="at least one document",
                remedy="raise corpus.holdout.fraction in the recipe",
            )
        chosen += own
    return chosen


def _of_bucket(store: Store, bucket: str, curated: Manifest, max_bytes: int) -> Iterator[Document]:
    left = max_bytes
    for id_, text in _smallest(store, curated, max_bytes):
        data = text.encode()
        cut = data[:left].decode(errors="ignore") if len(data) > left else text
        left -= len(cut.encode())
        if cut:
            yield Document(id_, bucket, cut)
        if len(cut) < len(text):
            return


def _smallest(store: Store, curated: Manifest, max_bytes: int) -> list[tuple[bytes, str]]:
    """Return the documents with the smallest ids, up to `max_bytes`. Only these documents and one row group are in
    memory."""
    kept: list[tuple[int, bytes, str]] = []  # a heap with the largest id on top
    held = 0
    for part in curated.named("heldout-"):
        for batch in iter_batches(store, part, ["id", "text"]):
            for id_, text in zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True):
                heapq.heappush(kept, (-int.from_bytes(id_, "big"), id_, text))
                held += len(text.encode())
                while held - len(kept[0][2].encode()) >= max_bytes:
                    held -= len(heapq.heappop(kept)[2].encode())
    return [(id_, text) for _, id_, text in sorted(kept, reverse=True)]


# Selection of items of protected sets, separately by contamination status.
#
# Clean items were not found in training text; contaminated items were found (and their documents dropped); suspected
# items nearly matched; undecided items are too short or common text. One score over all of them would be meaningless.


@dataclass(frozen=True)
class ScoredItem:
    """A protected item in the form that every model scores. `text` may be truncated."""

    set: str
    item: str
    status: str
    text: str

    @property
    def data(self) -> bytes:
        """UTF-8 bytes of the text. The length is the denominator of bits per byte."""
        return self.text.encode()


def choose_items(store: Store, protected: Manifest, sets: Mapping[str, Manifest], max_bytes: int) -> list[ScoredItem]:
    """Return items of every set and status, up to `max_bytes` for each, selected by a hash of their text.

    Raises:
        IntegrityError: the comparison with training text covers other items than the sets.
    """
    groups: dict[tuple[str, str], list[ScoredItem]] = {}
    for one in _every(store, protected, sets):
        groups.setdefault((one.set, one.status), []).append(one)
    return [one for group in sorted(groups) for one in _first(groups[group], max_bytes)]


def _every(store: Store, protected: Manifest, sets: Mapping[str, Manifest]) -> Iterator[ScoredItem]:
    (part,) = protected.named(comparison.FILE)
    rows = read_table(store, part, ["set", "item", "status"]).to_pylist()
    judged = iter([row for row in rows if row["set"] in sets])  # probes are compared too, but scored elsewhere
    for name in sorted(sets):
        for row in read_table(store, sets[name].parts[0]).to_pylist():
            found = next(judged, None)
            if found is None or (found["set"], found["item"]) != (name, row["item"]):
                raise IntegrityError(
                    "the comparison with protected sets has different items",
                    found=found,
                    expected=f"item {row['item']} of {name}",
                    remedy="`plinth run --select protected` recreates the comparison",
                )
            yield ScoredItem(name, row["item"], found["status"], row["text"])


def _first(items: Sequence[ScoredItem], max_bytes: int) -> Iterator[ScoredItem]:
    left = max_bytes
    for one in sorted(items, key=lambda one: (hashlib.sha256(one.data).digest(), one.item)):
        cut = one.data[:left].decode(errors="ignore")
        left -= len(one.data)
        if cut:
            yield ScoredItem(one.set, one.item, one.status, cut)
        if left <= 0:
            return


# Slices of every document: built-in axes, and axes of the recipe as expressions over the ledger.
#
# An axis gives each document one label, so its slices are a partition. Expressions are in the policy language
# (`corpus.policy.expressions`): a condition yields the slices `yes` and `no`, a column alone one slice per value.
# Columns are those of the ledger: its own (`documents.domain`, `documents.cluster_size`, …) and those of sidecars
# (`language.label`, `pii.spans`); a list column has the length of the list.

UNKNOWN = "unknown"
#: Upper bounds of the length slices in scored bytes; each is four times the previous one.
LENGTH_BOUNDS = (2**10, 2**12, 2**14, 2**16)
LENGTHS = ("< 1 KiB", "1 to 4 KiB", "4 to 16 KiB", "16 to 64 KiB", "64 KiB and more")

DOCUMENTS = "documents"
WHERE = "evaluation.slices"
_BY_COLUMN = {"uri": "documents.uri", "domain": "documents.domain", "language": "language.label"}


def labels(store: Store, ledger: Manifest, documents: pa.Table, slices: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the label of every document on every axis, and the document's `uri`.

    Args:
        ledger: ledger of the corpus.
        documents: `id`, `bucket` and `bytes` of held-out documents, in any order.
        slices: expressions of the recipe, by axis.

    Raises:
        IntegrityError: a document is not in the ledger.
        RecipeError: an expression is invalid, or names a column that the ledger lacks.
    """
    types = columns(store, ledger)
    wanted = {name: read(text, types, f"{WHERE}.{name}") for name, text in slices.items()}
    needed = set(_BY_COLUMN.values()) & set(types) | {column for one in wanted.values() for column in one.columns}
    rows, count = _rows(store, ledger, documents["id"].to_pylist(), sorted(needed)), documents.num_rows
    found = {name: _values(rows.get(column), count) for name, column in _BY_COLUMN.items()}
    found["bucket"] = documents["bucket"].to_pylist()
    places = np.searchsorted(LENGTH_BOUNDS, documents["bytes"].to_numpy(), side="right")
    found["length"] = [LENGTHS[place] for place in places]
    return found | {name: _evaluated(expression, rows, count) for name, expression in wanted.items()}


def columns(store: Store, ledger: Manifest) -> dict[str, pa.DataType]:
    """Return the type of every ledger column that a slice expression may name."""
    parts = _parts(ledger)
    schema = pq.read_schema(store.open_path(parts[0].blob)) if parts else pa.schema([])
    return {_named(field.name): field.type for field in schema}


def as_in_ledger(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types that sidecar columns have in the ledger: a list becomes its length, and a 16-byte id becomes
    hexadecimal text."""
    found = {name: pa.int32() if pa.types.is_list(kind) else kind for name, kind in types.items()}
    return {name: pa.string() if pa.types.is_fixed_size_binary(kind) else kind for name, kind in found.items()}


def from_other_stages(text: str, known: Sequence[str]) -> bool:
    """Return True if an expression names ledger columns that are not in `known`.

    Such columns describe documents, or come from stages that run over all buckets.
    """
    try:
        nodes = list(ast.walk(syntax(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    named = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    return bool(named & {DOCUMENTS, *ASSETS} - set(known))


def read(text: str, types: Mapping[str, pa.DataType], where: str) -> Expression:
    """Parse and check a slice expression, which is a condition, or a column with one slice per value.

    Raises:
        RecipeError: the expression is invalid, names a missing column, or is a column of fractions or times.
    """
    kind = types.get(text.strip())
    if kind is None or pa.types.is_boolean(kind):
        return parse(text, types, where)
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        raise RecipeError(
            f"{where}: one slice per value would result in too many slices",
            found=f"{text} is {kind}",
            expected="a column of strings or integers, or a condition",
            remedy=f"write a condition, such as `{text.strip()} > 0.5`",
        )
    name = text.strip()
    return Expression(name, frozenset([name]), syntax(name))


def _evaluated(expression: Expression, rows: Mapping[str, pa.Array], count: int) -> list[str]:
    column = rows.get(expression.text)
    if column is not None and not pa.types.is_boolean(column.type):
        return _values(column, count)
    return ["yes" if holds else "no" for holds in expression.evaluate(rows, count).tolist()]


def _values(column: pa.Array | None, count: int) -> list[str]:
    """Return the values of a column as text; null becomes `unknown`."""
    if column is None:
        return [UNKNOWN] * count
    return list(pc.fill_null(pc.cast(column, pa.string()), UNKNOWN).to_pylist())


def _rows(store: Store, ledger: Manifest, ids: Sequence[bytes], names: Sequence[str]) -> dict[str, pa.Array]:
    """Return ledger columns by name for the documents in `ids`, in this order. Only these rows and one batch are in
    memory.

    Raises:
        IntegrityError: a document is not in the ledger.
    """
    wanted = pa.array([id_.hex() for id_ in ids], pa.string())
    own = {name: ledger_column(name) for name in names}
    read, schema = ["id", "decision", *dict.fromkeys(own.values())], None
    held: list[pa.RecordBatch] = []
    for part in _parts(ledger):
        for batch in iter_batches(store, part, read):
            schema = batch.schema
            held.append(batch.filter(_chosen(batch, wanted)))
    at = {id_: row for row, id_ in enumerate(id_ for batch in held for id_ in batch.column("id").to_pylist())}
    lacking = [id_ for id_ in wanted.to_pylist() if id_ not in at]
    if lacking or schema is None:
        raise IntegrityError(
            "the ledger lacks held-out documents",
            found=f"no row for {len(lacking)} held-out documents, such as {lacking[:1]}",
            expected="a row for every document",
            remedy="`plinth run --select ledger` recreates the ledger",
        )
    order = pa.array([at[id_] for id_ in wanted.to_pylist()], pa.int64())
    table = pa.Table.from_batches(held, schema).take(order).combine_chunks()
    return {name: table[column].combine_chunks() for name, column in own.items()}


def _chosen(batch: pa.RecordBatch, wanted: pa.Array) -> pa.Array:
    """Return the rows of held-out documents with the wanted ids. The split is checked because a dropped duplicate may
    have the same id."""
    return pc.and_(pc.equal(batch.column("decision"), "heldout"), pc.is_in(batch.column("id"), value_set=wanted))


def _parts(ledger: Manifest) -> tuple[Part, ...]:
    return tuple(part for part in ledger.parts if "/part-" in part.name)


def _named(column: str) -> str:
    """Return the name that a ledger column has in expressions: `language__label` becomes `language.label`."""
    sidecar, found, name = column.partition("__")
    return f"{sidecar}.{name}" if found else f"{DOCUMENTS}.{column}"


def ledger_column(name: str) -> str:
    sidecar, _, column = name.partition(".")
    return column if sidecar == DOCUMENTS else f"{sidecar}__{column}"
