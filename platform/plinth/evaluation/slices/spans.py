"""Two models on the same text, byte span by byte span, whatever their tokenizers.

Two tokenizers cut a document at different bytes, but both cut it at some of the same ones. Between two such bytes the
bits of each model are a sum of whole tokens, so nothing is divided or estimated: spans are made of as few of these
stretches as reach a number of bytes, and their bits add up to the document's. Where one token straddles what the other
model cuts, the span is as long as both need.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, MissingError
from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.slices.choice import Document, choose_documents
from plinth.evaluation.slices.tables import DOCUMENTS, TOKENS
from plinth.records import Manifest
from plinth.storage.parts import iter_aligned
from plinth.storage.state import Refs
from plinth.storage.store import Store

#: A span is at least this long where the document is: some ten words.
SPAN_BYTES = 64
MOST_SPANS = 20
#: Documents of each side read at once.
_HELD = 64


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
    text: str = ""

    def facts(self) -> dict[str, Any]:
        """The fields, without the text."""
        return {name: value for name, value in asdict(self).items() if name != "text"}

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
    """The spans of held-out text on which two evaluated models differ most, in either direction, with their text.

    Args:
        a, b: manifests of the asset `evaluation`; documents that only one of them scored are left out.

    Raises:
        MissingError: they scored no text in common.
        IntegrityError: a part is not what it was.
    """
    return with_texts(store, refs, a, places(store, a, b, most, span_bytes))


def places(
    store: Store, a: Manifest, b: Manifest, most: int = MOST_SPANS, span_bytes: int = SPAN_BYTES
) -> list[SpanDifference]:
    """The same without their text. Held are the spans found and a few documents.

    Raises:
        MissingError, IntegrityError: as `largest`.
    """
    found = heapq.nlargest(most, _differences(store, a, b, span_bytes))
    if not found:
        raise MissingError(
            "the two evaluations have no document in common",
            found=f"{a.named(DOCUMENTS)[0].rows} documents and {b.named(DOCUMENTS)[0].rows}",
            expected="scores of the same held-out text",
            remedy="evaluate both models in one workspace, on one held-out set",
        )
    return [SpanDifference(*facts) for _, *facts in found]


def with_texts(store: Store, refs: Refs, made: Manifest, found: Sequence[SpanDifference]) -> list[SpanDifference]:
    """Spans with their text, from the curated text that the evaluation was made of."""
    if not found:
        return []
    wanted = {one.id for one in found}
    texts = {one.id.hex(): one.data for one in _texts(store, refs, made) if one.id.hex() in wanted}
    return [replace(one, text=texts[one.id][one.start : one.end].decode(errors="replace")) for one in found]


class _Scored(NamedTuple):
    """A document of an evaluation, with the place in which evaluations have it."""

    place: tuple[str, bytes]  # bucket and id
    text: bytes
    uri: str
    tokens: TokenBits


def _differences(store: Store, a: Manifest, b: Manifest, span_bytes: int) -> Iterator[tuple[Any, ...]]:
    """Size of the difference and the fields of `SpanDifference`, of every span."""
    for ours, theirs in _shared(_scored(store, a), _scored(store, b)):
        (bucket, id_), found = ours.place, spans(ours.tokens, theirs.tokens, span_bytes)
        starts = np.concatenate(([0], found.ends[:-1]))
        for start, end, one, other in zip(*(each.tolist() for each in (starts, *found)), strict=True):
            yield abs(one - other), id_.hex(), bucket, ours.uri, start, end, one, other


def _shared(a: Iterator[_Scored], b: Iterator[_Scored]) -> Iterator[tuple[_Scored, _Scored]]:
    """Documents that both scored the same text of; both come in order."""
    ours, theirs = next(a, None), next(b, None)
    while ours and theirs:
        if ours.place == theirs.place and ours.text == theirs.text:
            yield ours, theirs
        behind = ours.place <= theirs.place, theirs.place <= ours.place
        ours, theirs = next(a, None) if behind[0] else ours, next(b, None) if behind[1] else theirs


def _scored(store: Store, made: Manifest) -> Iterator[_Scored]:
    """Documents of an evaluation in the order of their buckets and ids.

    Raises:
        IntegrityError: they come in another order.
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
    """The documents that an evaluation scored, from the curated text that it was made of."""
    curated = {
        key.removesuffix("/curated"): refs.load(digest)
        for key, digest in made.inputs.items()
        if key.endswith("/curated")
    }
    return choose_documents(store, curated, made.params["max_bytes_per_slice"])


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
