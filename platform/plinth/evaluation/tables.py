"""Scores as tables, and their totals: of held-out documents by bucket and language, of items by set and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.evaluation.items import ScoredItem
from plinth.evaluation.slices import Document
from plinth.records import Part
from plinth.storage.parts import read_table, write_table

if TYPE_CHECKING:
    from plinth.evaluation.baselines import Trigram

#: A language gets a line of its own in a bucket that has several, from this much text on.
LANGUAGE_BYTES = 16 * 2**10

DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("model_bits", pa.float64(), nullable=False),
        pa.field("gzip_bits", pa.float64(), nullable=False),
        pa.field("trigram_bits", pa.float64(), nullable=False),
    ]
)
ITEMS = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        *list(DOCUMENTS)[3:],
    ]
)


def documents(
    ctx: Context, chosen: Sequence[Document], tokens: NDArray[np.int64], bits: NDArray[np.float64], trigram: Trigram
) -> Part:
    """The part with a row per held-out document."""
    names: list[list[Any]] = [
        [each.id for each in chosen],
        [each.bucket for each in chosen],
        [each.language for each in chosen],
    ]
    table = _scored(DOCUMENTS, names, chosen, tokens, bits, trigram)
    return write_table(ctx.store, "documents.parquet", table, stats={"trigram_bytes": trigram.trained_bytes})


def items(
    ctx: Context, asked: Sequence[ScoredItem], tokens: NDArray[np.int64], bits: NDArray[np.float64], trigram: Trigram
) -> Part:
    """The part with a row per item of a protected set."""
    names = [[each.set for each in asked], [each.item for each in asked], [each.status for each in asked]]
    return write_table(ctx.store, "items.parquet", _scored(ITEMS, names, asked, tokens, bits, trigram))


def _scored(
    schema: pa.Schema,
    names: Sequence[Sequence[Any]],
    texts: Sequence[Document | ScoredItem],
    tokens: NDArray[np.int64],
    bits: NDArray[np.float64],
    trigram: Trigram,
) -> pa.Table:
    """The names of texts, with their sizes and the bits of the model and the baselines."""
    from plinth.evaluation.baselines import gzip_bits

    sizes = [len(each.data) for each in texts]
    baselines = [gzip_bits(each.data) for each in texts], [trigram.bits(each.data) for each in texts]
    columns = [*names, sizes, tokens, bits, *baselines]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def totals(ctx: Context, part: Part) -> dict[str, Any]:
    """Totals of documents by bucket and by language, and of all."""
    rows = read_table(ctx.store, part).to_pylist()
    buckets: dict[str, list[dict[str, Any]]] = {}
    languages: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        buckets.setdefault(row["bucket"], []).append(row)
        languages.setdefault(f"{row['bucket']}/{row['language']}", []).append(row)
    several = {bucket for bucket, own in buckets.items() if len({row["language"] for row in own}) > 1}
    return {
        "slices": {name: _totals(own) for name, own in sorted(buckets.items())},
        "languages": {
            name: _totals(own)
            for name, own in sorted(languages.items())
            if own[0]["bucket"] in several and sum(row["bytes"] for row in own) >= LANGUAGE_BYTES
        },
        "overall": _totals(rows),
        "trigram_bytes": part.stats["trigram_bytes"],
    }


def by_status(ctx: Context, part: Part) -> dict[str, dict[str, Any]]:
    """Totals of items by set and status."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read_table(ctx.store, part).to_pylist():
        groups.setdefault((row["set"], row["status"]), []).append(row)
    found: dict[str, dict[str, Any]] = {}
    for (name, status), rows in sorted(groups.items()):
        totals = _totals(rows)
        found.setdefault(name, {})[status] = {"items": totals.pop("documents"), **totals}
    return found


def _totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums, and bits per byte of all documents together."""
    size = sum(row["bytes"] for row in rows)
    rates = {name: round(sum(row[f"{name}_bits"] for row in rows) / size, 6) for name in ("model", "gzip", "trigram")}
    return {"bytes": size, "documents": len(rows), "tokens": sum(row["tokens"] for row in rows)} | rates
