"""Two models on the same text, byte span by byte span, whatever their tokenizers.

Two tokenizers cut a document at different bytes, but both cut it at some of the same ones. Between two such bytes the
bits of each model are a sum of whole tokens, so nothing is divided or estimated: spans are made of as few of these
stretches as reach a number of bytes, and their bits add up to the document's. Where one token straddles what the other
model cuts, the span is as long as both need.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.errors import MissingError
from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.slices.documents import Document, choose
from plinth.evaluation.slices.tables import DOCUMENTS, TOKENS, read_tokens
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.refs import Refs
from plinth.storage.store import Store

#: A span is at least this long where the document is: some ten words.
SPAN_BYTES = 64
MOST_SPANS = 20


class Spans(NamedTuple):
    """Spans of a document: where each ends in bytes, and the bits of both models on it."""

    ends: NDArray[np.int64]  # [spans]
    a: NDArray[np.float64]  # [spans]
    b: NDArray[np.float64]  # [spans]


@dataclass(frozen=True)
class SpanDifference:
    """A span of a document and what it costs under each model."""

    id: str
    bucket: str
    uri: str
    start: int  # byte
    end: int  # byte
    a_bits: float
    b_bits: float
    text: str

    @property
    def difference(self) -> float:
        """Bits that model a needs more than model b."""
        return self.a_bits - self.b_bits


def spans(a: TokenBits, b: TokenBits, span_bytes: int = SPAN_BYTES) -> Spans:
    """The spans of one document under two models.

    Raises:
        ValueError: the tokens are of texts of different lengths.
    """
    if a.ends[-1:].tolist() != b.ends[-1:].tolist():
        raise ValueError(f"tokens of different texts: of {a.ends[-1:]} and {b.ends[-1:]} bytes")
    ends = _joined(np.intersect1d(a.ends, b.ends), span_bytes)
    return Spans(ends, _between(a, ends), _between(b, ends))


def largest(
    store: Store, refs: Refs, a: Manifest, b: Manifest, most: int = MOST_SPANS, span_bytes: int = SPAN_BYTES
) -> list[SpanDifference]:
    """The spans of held-out text on which two evaluated models differ most, in either direction.

    Args:
        a, b: manifests of the asset `evaluation`; documents that only one of them scored are left out.

    Raises:
        MissingError: they scored no text in common.
        IntegrityError: a part is not what it was.
    """
    rows = [read_table(store, one.named(DOCUMENTS)[0], ["id", "text", "bucket", "uri"]) for one in (a, b)]
    places = [_places(each) for each in rows]
    both = [key for key in places[0] if key in places[1]]
    if not both:
        raise MissingError(
            "the two evaluations have no document in common",
            found=f"{rows[0].num_rows} documents and {rows[1].num_rows}",
            expected="scores of the same held-out text",
            remedy="evaluate both models in one workspace, on one held-out set",
        )
    tokens = [read_tokens(store, one.named(TOKENS)[0]) for one in (a, b)]
    found = heapq.nlargest(most, _differences(both, places, tokens, span_bytes))
    texts = {one.id: one for one in _texts(store, refs, a)}
    return [_told(rows[0].slice(places[0][key], 1), texts, bounds, bits) for _, key, bounds, bits in found]


Key = tuple[bytes, bytes]


def _places(rows: pa.Table) -> dict[Key, int]:
    return {key: row for row, key in enumerate(zip(*(rows[name].to_pylist() for name in ("id", "text")), strict=True))}


def _differences(
    keys: Sequence[Key], places: Sequence[dict[Key, int]], tokens: Sequence[list[TokenBits]], span_bytes: int
) -> Iterator[tuple[float, Key, tuple[int, int], tuple[float, float]]]:
    """Size of the difference, document, bytes and bits of every span."""
    for key in keys:
        found = spans(tokens[0][places[0][key]], tokens[1][places[1][key]], span_bytes)
        starts = np.concatenate(([0], found.ends[:-1]))
        for start, end, one, other in zip(*(each.tolist() for each in (starts, *found)), strict=True):
            yield abs(one - other), key, (start, end), (one, other)


def _texts(store: Store, refs: Refs, made: Manifest) -> list[Document]:
    """The documents that an evaluation scored, from the curated text that it was made of."""
    curated = {
        key.removesuffix("/curated"): refs.load(digest)
        for key, digest in made.inputs.items()
        if key.endswith("/curated")
    }
    return choose(store, curated, made.params["max_bytes_per_slice"])


def _told(
    row: pa.Table, texts: dict[bytes, Document], bounds: tuple[int, int], bits: tuple[float, float]
) -> SpanDifference:
    (facts,) = row.to_pylist()
    text = texts[facts["id"]].data[slice(*bounds)].decode(errors="replace")
    return SpanDifference(facts["id"].hex(), facts["bucket"], facts["uri"], *bounds, *bits, text)


def _joined(ends: NDArray[np.int64], span_bytes: int) -> NDArray[np.int64]:
    """As many of these ends as leave spans of at least so many bytes; what remains at the end joins the last span."""
    kept: list[int] = []
    for end in ends.tolist():
        if end - (kept[-1] if kept else 0) >= span_bytes:
            kept.append(end)
    return np.array([*kept[:-1], *ends[-1:].tolist()], dtype=np.int64)


def _between(one: TokenBits, ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bits up to each end from the one before; exact, for bits are multiples of a grid."""
    upto = np.concatenate(([0.0], np.cumsum(one.bits)))[np.searchsorted(one.ends, ends, side="right")]
    return np.diff(upto, prepend=0.0)
