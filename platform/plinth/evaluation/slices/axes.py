"""The slices of every document: built-in axes, and those that a recipe names by expressions over the ledger.

An axis gives each document one label, so its slices are a partition. Expressions are in the language of policies
(`corpus.policy.expressions`): a condition makes the slices `yes` and `no`, a column alone one slice for each value.
Columns are those of the ledger: `documents.domain`, `documents.cluster_size`, … are its fixed ones, `language.label`,
`pii.spans` those of sidecars, of which lists are their lengths.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.corpus.curate.verdicts import ASSETS
from plinth.corpus.policy.expressions import Expression, parse, syntax
from plinth.errors import IntegrityError, RecipeError
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

UNKNOWN = "unknown"
#: Upper bounds of the slices by length, in bytes that are scored, each four times the one before.
LENGTH_BOUNDS = (2**10, 2**12, 2**14, 2**16)
LENGTHS = ("< 1 KiB", "1 to 4 KiB", "4 to 16 KiB", "16 to 64 KiB", "64 KiB and more")

DOCUMENTS = "documents"
WHERE = "evaluation.slices"
_BY_COLUMN = {"uri": "documents.uri", "domain": "documents.domain", "language": "language.label"}


def labels(store: Store, ledger: Manifest, documents: pa.Table, slices: Mapping[str, str]) -> dict[str, list[str]]:
    """The label of every document on every axis, and its `uri`.

    Args:
        ledger: with a row for every document of the corpus.
        documents: `id`, `bucket` and `bytes` of held-out documents, in any order.
        slices: expressions of the recipe, by the name of their axis.

    Raises:
        IntegrityError: a document is not in the ledger.
        RecipeError: an expression that cannot be read, or names a column that the ledger lacks.
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
    """Every column that an expression may name, with its type."""
    parts = _parts(ledger)
    schema = pq.read_schema(store.open_path(parts[0].blob)) if parts else pa.schema([])
    return {_named(field.name): field.type for field in schema}


def as_in_ledger(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Types of sidecars' columns as the ledger has them: of a list its length, of a 16-byte id its digits."""
    found = {name: pa.int32() if pa.types.is_list(kind) else kind for name, kind in types.items()}
    return {name: pa.string() if pa.types.is_fixed_size_binary(kind) else kind for name, kind in found.items()}


def from_other_stages(text: str, known: Sequence[str]) -> bool:
    """Whether an expression names columns that the ledger has from elsewhere than `known`: from documents, or from
    stages over all buckets, of which only the ledger itself tells."""
    try:
        nodes = list(ast.walk(syntax(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    named = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    return bool(named & {DOCUMENTS, *ASSETS} - set(known))


def read(text: str, types: Mapping[str, pa.DataType], where: str) -> Expression:
    """A condition, checked, or a column alone, whose values are the slices.

    Raises:
        RecipeError: it cannot be read, names a column that does not exist, or is a column of fractions or times.
    """
    kind = types.get(text.strip())
    if kind is None or pa.types.is_boolean(kind):
        return parse(text, types, where)
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        raise RecipeError(
            f"{where}: a slice for each of its values is too many",
            found=f"{text} is {kind}",
            expected="a column of words or whole numbers, or a condition",
            remedy=f"compare it, such as `{text.strip()} > 0.5`",
        )
    name = text.strip()
    return Expression(name, frozenset([name]), syntax(name))


def _evaluated(expression: Expression, rows: Mapping[str, pa.Array], count: int) -> list[str]:
    column = rows.get(expression.text)
    if column is not None and not pa.types.is_boolean(column.type):
        return _values(column, count)
    return ["yes" if holds else "no" for holds in expression.evaluate(rows, count).tolist()]


def _values(column: pa.Array | None, count: int) -> list[str]:
    """Values as text; what is missing is unknown."""
    if column is None:
        return [UNKNOWN] * count
    return list(pc.fill_null(pc.cast(column, pa.string()), UNKNOWN).to_pylist())


def _rows(store: Store, ledger: Manifest, ids: Sequence[bytes], names: Sequence[str]) -> dict[str, pa.Array]:
    """Columns of documents, by name, in the order of their ids; memory is their rows and one batch.

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
            "the ledger is of other documents than the held-out text",
            found=f"no row of {len(lacking)} held-out documents, such as {lacking[:1]}",
            expected="a row for every document",
            remedy="`plinth run --select ledger` makes it again",
        )
    order = pa.array([at[id_] for id_ in wanted.to_pylist()], pa.int64())
    table = pa.Table.from_batches(held, schema).take(order).combine_chunks()
    return {name: table[column].combine_chunks() for name, column in own.items()}


def _chosen(batch: pa.RecordBatch, wanted: pa.Array) -> pa.Array:
    """Held-out rows among those wanted: a duplicate that was dropped may have the same id."""
    return pc.and_(pc.equal(batch.column("decision"), "heldout"), pc.is_in(batch.column("id"), value_set=wanted))


def _parts(ledger: Manifest) -> tuple[Part, ...]:
    return tuple(part for part in ledger.parts if "/part-" in part.name)


def _named(column: str) -> str:
    """The ledger's `language__label` as an expression has it: `language.label`; a fixed column is of `documents`."""
    sidecar, found, name = column.partition("__")
    return f"{sidecar}.{name}" if found else f"{DOCUMENTS}.{column}"


def ledger_column(name: str) -> str:
    sidecar, _, column = name.partition(".")
    return column if sidecar == DOCUMENTS else f"{sidecar}__{column}"
