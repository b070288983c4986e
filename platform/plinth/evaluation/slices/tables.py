"""Scores of documents, their tokens and protected items as Parquet; the baselines gzip and a byte trigram model; spans
of two models on the same text.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.errors import IntegrityError, MissingError
from plinth.evaluation.engine.records import Scores, TokenBits
from plinth.evaluation.parameters import BUILT_IN
from plinth.evaluation.slices.choice import Document, ScoredItem, choose_documents
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_aligned, read_table, write_table
from plinth.storage.state import Refs
from plinth.storage.store import Store
from plinth_text.compiled import compiled

#: Bits are multiples of this number. Sums below 2^33 bits (a gigabyte at eight bits per byte) are then exact in any
#: order.
GRID = 2.0**-20

#: Names of the parts, and the column prefix of a recipe's axes.
DOCUMENTS, TOKENS, ITEMS = "documents.parquet", "tokens.parquet", "items.parquet"
AXIS = "slice_"

_SIZES = [pa.field("bytes", pa.int64(), nullable=False), pa.field("tokens", pa.int64(), nullable=False)]
_BITS = [pa.field(f"{name}_bits", pa.float64(), nullable=False) for name in ("model", "gzip", "trigram")]

#: One row per document; `text` is the digest of the scored bytes.
DOCUMENT_COLUMNS = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("text", pa.binary(16), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in ("uri", *BUILT_IN)),
        *_SIZES,
        *_BITS,
    ]
)
#: One row per document, in the order of the documents: bytes and -log2 p of each token.
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
    """Round bits to multiples of `GRID`, with an error of at most 5e-7 bits per token."""
    return np.rint(bits / GRID) * GRID


def by_text(scores: Scores) -> list[TokenBits]:
    """Return the token scores of every text. Requires that the scores were requested with `per_token=True`."""
    assert scores.ends is not None, "the scores were requested without per_token=True"
    assert scores.token_bits is not None
    cuts = np.cumsum(scores.tokens)[:-1]
    pairs = zip(np.split(scores.ends, cuts), np.split(scores.token_bits, cuts), strict=True)
    return [TokenBits(ends, bits) for ends, bits in pairs]


def text_digest(data: bytes) -> bytes:
    """Return a 16-byte digest of a text. Two evaluations match their texts by this digest."""
    return hashlib.sha256(data).digest()[:16]


def documents(chosen: Sequence[Document], tokens: Sequence[TokenBits], trigram: Trigram) -> pa.Table:
    """Return the table of scored documents, without ledger columns: `id`, digest of the text, `bucket`, sizes, bits."""
    names = {
        "id": [each.id for each in chosen],
        "text": [text_digest(each.data) for each in chosen],
        "bucket": [each.bucket for each in chosen],
    }
    schema = pa.schema([DOCUMENT_COLUMNS.field(name) for name in names])
    return _scored(pa.Table.from_pydict(names, schema), chosen, tokens, trigram)


def with_labels(table: pa.Table, labels: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the table of documents with URI and axis labels added. The recipe's own axes come last, by name."""
    fixed = {name: pa.array(labels[name], pa.string()) for name in ("uri", *BUILT_IN)}
    own = {f"{AXIS}{name}": pa.array(labels[name], pa.string()) for name in sorted(set(labels) - set(fixed))}
    columns = {name: table[name] for name in table.schema.names} | fixed
    schema = pa.schema([*DOCUMENT_COLUMNS, *(pa.field(name, pa.string(), nullable=False) for name in own)])
    return pa.Table.from_arrays([(columns | own)[name] for name in schema.names], schema=schema)


def items(asked: Sequence[ScoredItem], tokens: Sequence[TokenBits], trigram: Trigram) -> pa.Table:
    """Return a table with the scores of protected items, one row per item."""
    names = {name: [getattr(each, name) for each in asked] for name in ITEM_COLUMNS.names[:3]}
    return _scored(pa.Table.from_pydict(names, pa.schema(list(ITEM_COLUMNS)[:3])), asked, tokens, trigram)


def write_tokens(store: Store, tokens: Sequence[TokenBits]) -> Part:
    """Write the token scores of every document as a part."""
    columns = [
        pa.array([np.diff(each.ends, prepend=0) for each in tokens], TOKEN_COLUMNS.field("bytes").type),
        pa.array([on_grid(each.bits) for each in tokens], TOKEN_COLUMNS.field("bits").type),
    ]
    return write_table(store, TOKENS, pa.Table.from_arrays(columns, schema=TOKEN_COLUMNS))


def read_tokens(store: Store, part: Part) -> list[TokenBits]:
    """Read the token scores in a part written by `write_tokens`."""
    table = read_table(store, part)
    pairs = zip(table["bytes"], table["bits"], strict=True)
    return [
        TokenBits(np.cumsum(sizes.values.to_numpy(), dtype=np.int64), bits.values.to_numpy()) for sizes, bits in pairs
    ]


def axes_of(table: pa.Table) -> dict[str, str]:
    """Return the axes of a table of documents, as axis name -> column name."""
    own = [name for name in table.schema.names if name.startswith(AXIS)]
    return {name: name for name in BUILT_IN} | {name.removeprefix(AXIS): name for name in own}


def _scored(
    names: pa.Table, texts: Sequence[Document | ScoredItem], tokens: Sequence[TokenBits], trigram: Trigram
) -> pa.Table:
    """Return a table of texts with their sizes, and their bits under the model and the baselines."""
    columns: list[Any] = [[len(each.data) for each in texts], [len(each.bits) for each in tokens]]
    columns.append([float(on_grid(each.bits).sum()) for each in tokens])
    columns.append([float(gzip_bits(each.data)) for each in texts])
    columns.append(on_grid(np.array([trigram.bits(each.data) for each in texts])))
    for field, column in zip([*_SIZES, *_BITS], columns, strict=True):
        names = names.append_column(field, pa.array(column, field.type))
    return names


# Baselines: gzip, and a byte trigram model.
#
# The trigram is interpolated with Witten-Bell weights (Witten and Bell 1991, "The zero-frequency problem"):
#
#     p(c | h) = (count(h c) + kinds(h) p(c | shorter h)) / (count(h) + kinds(h))
#
# with contexts of two bytes, one, none, then 1/256; kinds(h) is the number of different bytes after h. The model has no
# hyperparameters. In training and in scoring, every document is treated as if it followed two NUL bytes.

#: Number of documents per kernel call, so that the cost of a call (1 us) is amortized.
BLOCK = 32


def gzip_bits(data: bytes) -> int:
    """Return the size in bits of a document compressed alone by `gzip -9`, including the header."""
    return 8 * len(gzip.compress(data, compresslevel=9, mtime=0))


class Trigram:
    """Byte trigram model: counts of each byte by the two bytes before it. It always takes 64 MiB."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << 24, dtype=np.uint32)  # [before, last, byte]
        self._tables: tuple[NDArray[np.float64], ...] | None = None
        self.trained_bytes = 0

    def train(self, documents: Iterable[bytes]) -> Trigram:
        """Count the bytes of documents. Repeated calls add more documents, up to 2^32 - 1 bytes in total."""
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
        """Return the total -log2 p of a document's bytes."""
        if self._tables is None:
            self._tables = _lower_orders(self._counts)
        pairs, pair_mass, last_mass, order_1 = self._tables
        text = np.frombuffer(data, dtype=np.uint8)
        return total_bits(self._counts, pairs, pair_mass, last_mass, order_1, text)


def _lower_orders(counts: NDArray[np.uint32]) -> tuple[NDArray[np.float64], ...]:
    """Return the tables for shorter contexts: counts of byte pairs [last, byte]; total count and number of distinct
    bytes, by [before, last] and by [last]; p(byte) without context [byte]."""
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
    """Add the bytes of documents to the trigram counts. Document d is `data[offsets[d]:offsets[d + 1]]`."""


@compiled
def total_bits(
    counts: NDArray[np.uint32],
    pairs: NDArray[np.float64],
    pair_mass: NDArray[np.float64],
    last_mass: NDArray[np.float64],
    order_1: NDArray[np.float64],
    text: NDArray[np.uint8],
) -> float:
    """Return the total -log2 p of a document's bytes, from the trigram counts and the tables of `_lower_orders`."""


# Two models compared on the same text, byte span by byte span, for any two tokenizers.
#
# Two tokenizers split a document at different bytes, but share some boundaries. Between two shared boundaries the bits
# of each model are a sum over whole tokens, so no token's bits are divided or estimated. A span joins neighboring
# ranges between shared boundaries until it has a minimum number of bytes. The spans' bits add up to the document's.

#: Minimum bytes of a span, about ten words. A shorter document is a single span.
SPAN_BYTES = 64
MOST_SPANS = 20
#: Documents of each model read at once.
_HELD = 64


class Spans(NamedTuple):
    """Spans of a document: the end of each span in bytes, and its bits under both models."""

    ends: NDArray[np.int64]  # [spans]
    a: NDArray[np.float64]  # [spans]
    b: NDArray[np.float64]  # [spans]


@dataclass(frozen=True)
class SpanDifference:
    """A span of a document, with its bits under each of two models."""

    id: str
    bucket: str
    uri: str
    start: int  # byte
    end: int  # byte
    a_bits: float
    b_bits: float
    text: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the fields as a dict, without the text."""
        return {name: value for name, value in asdict(self).items() if name != "text"}

    @property
    def difference(self) -> float:
        """Bits under model a minus bits under model b."""
        return self.a_bits - self.b_bits


def spans(a: TokenBits, b: TokenBits, span_bytes: int = SPAN_BYTES) -> Spans:
    """Return the spans of one document, with its bits under two models.

    Raises:
        ValueError: the texts have different lengths.
    """
    if a.ends[-1:].tolist() != b.ends[-1:].tolist():
        raise ValueError(f"the tokens are of different texts, of {a.ends[-1:]} and {b.ends[-1:]} bytes")
    ends = _joined(np.intersect1d(a.ends, b.ends), span_bytes)
    return Spans(ends, _between(a, ends), _between(b, ends))


def largest(
    store: Store, refs: Refs, a: Manifest, b: Manifest, most: int = MOST_SPANS, span_bytes: int = SPAN_BYTES
) -> list[SpanDifference]:
    """Return the spans of held-out text on which two models differ most, with their text.

    Args:
        a, b: manifests of the asset `evaluation`; documents that only one of them scored are omitted.

    Raises:
        MissingError: the evaluations have no text in common.
        IntegrityError: a part does not match its digest.
    """
    return with_texts(store, refs, a, places(store, a, b, most, span_bytes))


def places(
    store: Store, a: Manifest, b: Manifest, most: int = MOST_SPANS, span_bytes: int = SPAN_BYTES
) -> list[SpanDifference]:
    """Return the same spans as `largest`, without text. Only these spans and a few documents are in memory.

    Raises:
        MissingError, IntegrityError: raised under the same conditions as by `largest`.
    """
    found = heapq.nlargest(most, _differences(store, a, b, span_bytes))
    if not found:
        raise MissingError(
            "the two evaluations have no documents in common",
            found=f"{a.named(DOCUMENTS)[0].rows} documents and {b.named(DOCUMENTS)[0].rows}",
            expected="at least one document that both evaluations scored",
            remedy="evaluate both models in one workspace, on the same held-out text",
        )
    return [SpanDifference(*facts) for _, *facts in found]


def with_texts(store: Store, refs: Refs, made: Manifest, found: Sequence[SpanDifference]) -> list[SpanDifference]:
    """Return the spans with their text, which is read from the curated text of the evaluation."""
    if not found:
        return []
    wanted = {one.id for one in found}
    texts = {one.id.hex(): one.data for one in _texts(store, refs, made) if one.id.hex() in wanted}
    return [replace(one, text=texts[one.id][one.start : one.end].decode(errors="replace")) for one in found]


class _Scored(NamedTuple):
    """A scored document, with its sort key. Evaluations are sorted by this key."""

    place: tuple[str, bytes]  # bucket and id
    text: bytes
    uri: str
    tokens: TokenBits


def _differences(store: Store, a: Manifest, b: Manifest, span_bytes: int) -> Iterator[tuple[Any, ...]]:
    """Yield the absolute difference in bits and the fields of `SpanDifference`, for every span."""
    for ours, theirs in _shared(_scored_spans(store, a), _scored_spans(store, b)):
        (bucket, id_), found = ours.place, spans(ours.tokens, theirs.tokens, span_bytes)
        starts = np.concatenate(([0], found.ends[:-1]))
        for start, end, one, other in zip(*(each.tolist() for each in (starts, *found)), strict=True):
            yield abs(one - other), id_.hex(), bucket, ours.uri, start, end, one, other


def _shared(a: Iterator[_Scored], b: Iterator[_Scored]) -> Iterator[tuple[_Scored, _Scored]]:
    """Yield the documents that both models scored with identical text. Both inputs must be sorted."""
    ours, theirs = next(a, None), next(b, None)
    while ours and theirs:
        if ours.place == theirs.place and ours.text == theirs.text:
            yield ours, theirs
        behind = ours.place <= theirs.place, theirs.place <= ours.place
        ours, theirs = next(a, None) if behind[0] else ours, next(b, None) if behind[1] else theirs


def _scored_spans(store: Store, made: Manifest) -> Iterator[_Scored]:
    """Yield the scored documents of an evaluation, sorted by bucket and id.

    Raises:
        IntegrityError: the documents are out of order.
    """
    names, last = ["id", "text", "bucket", "uri"], ("", b"")
    parts = (made.named(DOCUMENTS)[0], names), (made.named(TOKENS)[0], ["bytes", "bits"])
    for documents, tokens in iter_aligned(store, *parts, rows=_HELD):
        columns = (documents[name].to_pylist() for name in names)
        for row, (id_, text, bucket, uri) in enumerate(zip(*columns, strict=True)):
            if (bucket, id_) < last:
                raise IntegrityError("documents of an evaluation are out of order", found=f"{bucket} {id_.hex()}")
            last = bucket, id_
            sizes, bits = (tokens[name][row].values.to_numpy() for name in ("bytes", "bits"))
            yield _Scored(last, text, uri, TokenBits(np.cumsum(sizes, dtype=np.int64), bits))


def _texts(store: Store, refs: Refs, made: Manifest) -> list[Document]:
    """Return the documents that an evaluation scored, from its curated text."""
    curated = {
        key.removesuffix("/curated"): refs.load(digest)
        for key, digest in made.inputs.items()
        if key.endswith("/curated")
    }
    return choose_documents(store, curated, made.params["max_bytes_per_slice"])


def _joined(ends: NDArray[np.int64], span_bytes: int) -> NDArray[np.int64]:
    """Return span ends without those that would leave a span shorter than `span_bytes`. The remainder joins the last
    span."""
    kept: list[int] = []
    for end in ends.tolist():
        if end - (kept[-1] if kept else 0) >= span_bytes:
            kept.append(end)
    return np.array([*kept[:-1], *ends[-1:].tolist()], dtype=np.int64)


def _between(one: TokenBits, ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bits between successive span ends. The result is exact, because bits are multiples of `GRID`."""
    upto = np.concatenate(([0.0], np.cumsum(one.bits)))[np.searchsorted(one.ends, ends, side="right")]
    return np.diff(upto, prepend=0.0)
