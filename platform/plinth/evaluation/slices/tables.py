"""Scores as Parquet, of documents, their tokens and protected items; the baselines gzip and a byte trigram model on
the same text.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.evaluation.engine.records import Scores, TokenBits
from plinth.evaluation.parameters import BUILT_IN
from plinth.evaluation.slices.choice import Document, ScoredItem
from plinth.records import Part
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth_text.compiled import compiled

#: Bits are multiples of this: sums below 2^33 bits, a gigabyte at eight bits a byte, are exact in any order.
GRID = 2.0**-20

#: Names of the parts, and the beginning of the column of an axis that a recipe names.
DOCUMENTS, TOKENS, ITEMS = "documents.parquet", "tokens.parquet", "items.parquet"
AXIS = "slice_"

_SIZES = [pa.field("bytes", pa.int64(), nullable=False), pa.field("tokens", pa.int64(), nullable=False)]
_BITS = [pa.field(f"{name}_bits", pa.float64(), nullable=False) for name in ("model", "gzip", "trigram")]

#: Row for row the documents; `text` is the digest of the bytes that were scored.
DOCUMENT_COLUMNS = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("text", pa.binary(16), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in ("uri", *BUILT_IN)),
        *_SIZES,
        *_BITS,
    ]
)
#: Row for row the documents: bytes of each token, and its -log2 p.
TOKEN_COLUMNS = pa.schema(
    [
        pa.field("bytes", pa.list_(pa.int32()), nullable=False),
        pa.field("bits", pa.list_(pa.float64()), nullable=False),
    ]
)
ITEM_COLUMNS = pa.schema(
    [*(pa.field(name, pa.string(), nullable=False) for name in ("set", "item", "status")), *_SIZES, *_BITS]
)


def on_grid(bits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits as multiples of `GRID`: at most 5e-7 bits a token away."""
    return np.rint(bits / GRID) * GRID


def by_text(scores: Scores) -> list[TokenBits]:
    """The tokens of every text; scores were asked for by token."""
    assert scores.ends is not None, "scores without per_token=True"
    assert scores.token_bits is not None
    cuts = np.cumsum(scores.tokens)[:-1]
    pairs = zip(np.split(scores.ends, cuts), np.split(scores.token_bits, cuts), strict=True)
    return [TokenBits(ends, bits) for ends, bits in pairs]


def text_digest(data: bytes) -> bytes:
    """16 bytes that tell whether two evaluations scored the same text."""
    return hashlib.sha256(data).digest()[:16]


def documents(chosen: Sequence[Document], tokens: Sequence[TokenBits], trigram: Trigram) -> pa.Table:
    """Documents before anything of the ledger is known: `id`, digest of the text, `bucket`, sizes, bits."""
    names = {
        "id": [each.id for each in chosen],
        "text": [text_digest(each.data) for each in chosen],
        "bucket": [each.bucket for each in chosen],
    }
    schema = pa.schema([DOCUMENT_COLUMNS.field(name) for name in names])
    return _scored(pa.Table.from_pydict(names, schema), chosen, tokens, trigram)


def with_labels(table: pa.Table, labels: Mapping[str, Sequence[str]]) -> pa.Table:
    """Documents with the label of each axis, and their URI; axes of the recipe come last, by name."""
    fixed = {name: pa.array(labels[name], pa.string()) for name in ("uri", *BUILT_IN)}
    own = {f"{AXIS}{name}": pa.array(labels[name], pa.string()) for name in sorted(set(labels) - set(fixed))}
    columns = {name: table[name] for name in table.schema.names} | fixed
    schema = pa.schema([*DOCUMENT_COLUMNS, *(pa.field(name, pa.string(), nullable=False) for name in own)])
    return pa.Table.from_arrays([(columns | own)[name] for name in schema.names], schema=schema)


def items(asked: Sequence[ScoredItem], tokens: Sequence[TokenBits], trigram: Trigram) -> pa.Table:
    """A row per item of a protected set."""
    names = {name: [getattr(each, name) for each in asked] for name in ITEM_COLUMNS.names[:3]}
    return _scored(pa.Table.from_pydict(names, pa.schema(list(ITEM_COLUMNS)[:3])), asked, tokens, trigram)


def write_tokens(store: Store, tokens: Sequence[TokenBits]) -> Part:
    """The tokens of every document."""
    columns = [
        pa.array([np.diff(each.ends, prepend=0) for each in tokens], TOKEN_COLUMNS.field("bytes").type),
        pa.array([on_grid(each.bits) for each in tokens], TOKEN_COLUMNS.field("bits").type),
    ]
    return write_table(store, TOKENS, pa.Table.from_arrays(columns, schema=TOKEN_COLUMNS))


def read_tokens(store: Store, part: Part) -> list[TokenBits]:
    """What `write_tokens` has written."""
    table = read_table(store, part)
    pairs = zip(table["bytes"], table["bits"], strict=True)
    return [
        TokenBits(np.cumsum(sizes.values.to_numpy(), dtype=np.int64), bits.values.to_numpy()) for sizes, bits in pairs
    ]


def axes_of(table: pa.Table) -> dict[str, str]:
    """The axes of a table of documents: name -> column."""
    own = [name for name in table.schema.names if name.startswith(AXIS)]
    return {name: name for name in BUILT_IN} | {name.removeprefix(AXIS): name for name in own}


def _scored(
    names: pa.Table, texts: Sequence[Document | ScoredItem], tokens: Sequence[TokenBits], trigram: Trigram
) -> pa.Table:
    """The names of texts, with their sizes and the bits of the model and the baselines."""
    columns: list[Any] = [[len(each.data) for each in texts], [len(each.bits) for each in tokens]]
    columns.append([float(on_grid(each.bits).sum()) for each in tokens])
    columns.append([float(gzip_bits(each.data)) for each in texts])
    columns.append(on_grid(np.array([trigram.bits(each.data) for each in texts])))
    for field, column in zip([*_SIZES, *_BITS], columns, strict=True):
        names = names.append_column(field, pa.array(column, field.type))
    return names


# The baselines that a model must beat: gzip, and a byte trigram model.
#
# The trigram is interpolated with Witten-Bell weights (Witten and Bell 1991, "The zero-frequency problem"):
#
#     p(c | h) = (count(h c) + kinds(h) p(c | shorter h)) / (count(h) + kinds(h))
#
# from the two bytes before, to one, to none, to 1/256; kinds(h) is how many different bytes followed h. It
# has no parameter to tune. Documents begin as if after two NUL bytes, in training and in scoring.

#: Documents per call of a kernel: a call takes a microsecond, which is much for short ones.
BLOCK = 32


def gzip_bits(data: bytes) -> int:
    """Bits of the document alone in `gzip -9`, header and all."""
    return 8 * len(gzip.compress(data, compresslevel=9, mtime=0))


class Trigram:
    """Byte counts by the two bytes before; 64 MiB whatever the text."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << 24, dtype=np.uint32)  # [before, last, byte]
        self._tables: tuple[NDArray[np.float64], ...] | None = None
        self.trained_bytes = 0

    def train(self, documents: Iterable[bytes]) -> Trigram:
        """Count documents; may be called again with more. At most 2^32 - 1 bytes in all."""
        remaining = iter(documents)
        while block := list(islice(remaining, BLOCK)):
            offsets = np.cumsum([0, *map(len, block)])
            count_bytes(self._counts, np.frombuffer(b"".join(block), dtype=np.uint8), offsets)
            self.trained_bytes += int(offsets[-1])
        if self.trained_bytes >= 1 << 32:
            raise OverflowError("a byte trigram counts at most 4 GiB of text")
        self._tables = None
        return self

    def bits(self, data: bytes) -> float:
        """Total -log2 p of a document's bytes."""
        if self._tables is None:
            self._tables = _lower_orders(self._counts)
        pairs, pair_mass, last_mass, order_1 = self._tables
        text = np.frombuffer(data, dtype=np.uint8)
        return total_bits(self._counts, pairs, pair_mass, last_mass, order_1, text)


def _lower_orders(counts: NDArray[np.uint32]) -> tuple[NDArray[np.float64], ...]:
    """Pair counts [last, byte]; (total, kinds) by [before, last], by [last]; p(byte) without context [byte]."""
    cube = counts.reshape(256, 256, 256)
    pairs = cube.sum(axis=0, dtype=np.float64)
    singles = pairs.sum(axis=0)
    pair_mass = np.stack([cube.sum(axis=2, dtype=np.float64), np.count_nonzero(cube, axis=2)], axis=-1).reshape(-1, 2)
    last_mass = np.stack([pairs.sum(axis=1), np.count_nonzero(pairs, axis=1)], axis=-1)
    total, kinds = singles.sum(), np.count_nonzero(singles)
    order_1 = (singles + kinds / 256) / (total + kinds) if total else np.full(256, 1 / 256)
    return pairs, pair_mass, last_mass, order_1


@compiled
def count_bytes(counts: NDArray[np.uint32], data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
    """Count the bytes of documents; document d is `data[offsets[d]:offsets[d + 1]]`."""


@compiled
def total_bits(
    counts: NDArray[np.uint32],
    pairs: NDArray[np.float64],
    pair_mass: NDArray[np.float64],
    last_mass: NDArray[np.float64],
    order_1: NDArray[np.float64],
    text: NDArray[np.uint8],
) -> float:
    """Return the total -log2 p of a document's bytes; tables as `_lower_orders` returns them."""
