"""Matches and spans against a search that tries every pair of places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.tokens.shards.index import write_index
from plinth_audit.trace import matches, trace_index
from plinth_audit.trace.matches import VerbatimIndex, VerbatimSpan, covered, spans, window_counts
from plinth_audit.trace.trace_index import SPAN_TOKENS

Documents = Sequence[Sequence[int]]


def _shards(ctx: Context, parts: Sequence[Documents], shard_tokens: int) -> tuple[Manifest, Manifest]:
    """Shards of documents by curated part, 0 closing each, and the curated text that they stand for."""
    documents = [(number, row, [*own, 0]) for number, part in enumerate(parts) for row, own in enumerate(part)]
    stream = np.array([token for *_, own in documents for token in own], "<u2")
    cut = [stream[at : at + shard_tokens] for at in range(0, len(stream), shard_tokens)]
    made = [
        Part(
            name=f"shard-{i:05d}.bin",
            blob=ctx.store.put_bytes(own.tobytes()),
            stats={"start": i * shard_tokens, "tokens": len(own)},
        )
        for i, own in enumerate(cut)
    ]
    lengths = [len(own) for *_, own in documents]
    ids = [hash((row, tuple(own))).to_bytes(16, "big", signed=True) for _, row, own in documents]
    columns = [
        pa.array(ids, pa.binary(16)),
        pa.array(np.cumsum([0, *lengths])[:-1], pa.int64()),
        pa.array(lengths, pa.int64()),
        pa.array([number for number, *_ in documents], pa.int32()),
        pa.array([row for _, row, _ in documents], pa.int32()),
    ]
    span = {"start": 0, "tokens": len(stream), "parts": [0, len(parts) - 1]}
    made.append(write_index(ctx.store, "index-00000.arrow", columns, span))
    stats = {"tokens": len(stream), "documents": len(documents), "end_of_text": 0, "dtype": "<u2", "tokenizer": "t"}
    base = {"step": "made", "version": "1", "params": {}, "inputs": {}}
    blobs = [ctx.store.put_bytes(repr(part).encode()) for part in parts]
    texts = [Part(name=f"part-{i:05d}.parquet", blob=blob) for i, blob in enumerate(blobs)]
    shards = Manifest(asset="web/shards", parts=tuple(made), stats=stats, **base)
    return shards, Manifest(asset="web/curated", parts=tuple(texts), **base)


def _index(ctx: Context, parts: Sequence[Documents], shard_tokens: int = 300, range_tokens: int = 500) -> VerbatimIndex:
    shards, curated = _shards(ctx, parts, shard_tokens)
    made = trace_index.run(ctx, "web", shards, curated, range_tokens=range_tokens)
    return VerbatimIndex(ctx.store, made, shards)


def _every_pair(documents: Documents, query: Sequence[int], least: int) -> list[tuple[int, int, int]]:
    """Every match that cannot be extended, as (query, stream, length): all pairs of places, one by one."""
    found, start = [], 0
    for document in documents:
        for at in range(len(query)):
            for place in range(len(document)):
                if at and place and query[at - 1] == document[place - 1]:
                    continue
                length = 0
                while (
                    at + length < len(query)
                    and place + length < len(document)
                    and query[at + length] == document[place + length]
                ):
                    length += 1
                if length >= least:
                    found.append((at, start + place, length))
        start += len(document) + 1
    return sorted(found)


def _windows(documents: Documents, least: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(document[at : at + least]) for document in documents for at in range(len(document) - least + 1)
    )


def _occurrences(documents: Documents, wanted: Sequence[int]) -> int:
    return _windows(documents, len(wanted))[tuple(wanted)]


def _check(index: VerbatimIndex, documents: Documents, query: Sequence[int]) -> list[VerbatimSpan]:
    found = index.find(np.array(query, np.int64))
    own = found["web"]
    listed = list(zip(own.begins.tolist(), own.starts.tolist(), own.tokens.tolist(), strict=True))
    assert listed == _every_pair(documents, query, SPAN_TOKENS)
    windows = _windows(documents, SPAN_TOKENS)
    expected = [windows[tuple(query[at : at + SPAN_TOKENS])] for at in range(len(query))]
    assert window_counts(found, len(query)).tolist() == expected
    made = spans(found, len(query))
    for span in made:
        tokens = query[span.begin : span.begin + span.tokens]
        assert span.occurrences == _occurrences(documents, tokens) > 0
        assert span.most == max(expected[span.begin : span.begin + span.tokens - SPAN_TOKENS + 1])
        before, behind = query[max(span.begin - 1, 0) : span.begin], query[span.begin + span.tokens :][:1]
        for longer in ([*before, *tokens], [*tokens, *behind]):
            assert len(longer) == len(tokens) or not _occurrences(documents, longer)
    assert all(a.begin < b.begin and a.begin + a.tokens < b.begin + b.tokens for a, b in pairwise(made))
    held = {t for at, n in enumerate(expected) if n for t in range(at, at + SPAN_TOKENS)}
    assert covered(made, len(query)) == len(held)
    return made


@st.composite
def _corpora(draw: st.DrawFn) -> tuple[list[list[list[int]]], list[int]]:
    """Documents by part and a query that quotes them; few token values and repeated blocks, so that much agrees."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = draw(st.sampled_from([1, 2, 3, 50, 60_000]))
    blocks = [random.integers(1, values + 1, draw(st.integers(1, 60))).tolist() for _ in range(4)]

    def text(most: int) -> list[int]:
        pieces: list[int] = []
        for _ in range(int(random.integers(1, most))):
            chosen = int(random.integers(0, 6))
            pieces += blocks[chosen] if chosen < 4 else random.integers(1, values + 1, 9).tolist()
        return pieces

    parts = [[text(9) for _ in range(int(random.integers(1, 4)))] for _ in range(draw(st.integers(1, 3)))]
    query = text(6)
    for _ in range(draw(st.integers(0, 3))):
        part = parts[int(random.integers(0, len(parts)))]
        whole = [token for own in part for token in own]  # a passage that may run over the end of a document
        at = int(random.integers(0, len(whole)))
        query += whole[at : at + int(random.integers(1, 90))]
    return parts, query


@pytest.mark.exhaustive
@pytest.mark.slow
@given(_corpora(), st.sampled_from([40, 97, 5000]), st.sampled_from([33, 150, 5000]))
@settings(max_examples=12)
def test_matches_and_counts_are_those_of_every_pair(
    tmp_path_factory: pytest.TempPathFactory, corpus: tuple[list[list[list[int]]], list[int]], shard: int, most: int
) -> None:
    parts, query = corpus
    ctx = Context(Workspace(tmp_path_factory.mktemp("verbatim")).ensure())
    _check(_index(ctx, parts, shard, most), [own for part in parts for own in part], query)


def test_32_tokens_are_found_wherever_they_begin_and_31_never(ctx: Context) -> None:
    document = list(range(1, 200))
    index = _index(ctx, [[document]], shard_tokens=64, range_tokens=70)
    for at in range(len(document) - 31):
        (span,) = spans(index.find(np.array([999, *document[at : at + 32], 998])), 34)
        assert (span.begin, span.tokens, span.occurrences) == (1, 32, 1)
        assert span.places["web"].tolist() == [at]
        assert not spans(index.find(np.array([999, *document[at : at + 31], 998])), 33)


def test_a_span_ends_where_its_document_does(ctx: Context) -> None:
    first, second = list(range(1, 41)), list(range(100, 140))
    index = _index(ctx, [[first, second]])
    found = _check(index, [first, second], [*first[-20:], *second[:20]])
    assert not found
    found = _check(index, [first, second], [*first[-35:], *second[:33]])
    assert [(span.begin, span.tokens) for span in found] == [(0, 35), (35, 33)]
    closed = np.array([*first, 0, *second])  # an end-of-text in a query matches none
    assert [(span.begin, span.tokens) for span in spans(index.find(closed), len(closed))] == [(0, 40), (41, 40)]


def test_frequent_spans_are_counted_and_stay_beside_their_rare_continuation(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "CHUNK_HITS", 100)
    random = np.random.default_rng(0)
    licence = random.integers(1, 60_000, 120).tolist()
    documents = [[*licence, *random.integers(1, 60_000, 20).tolist()] for _ in range(3000)]
    query = documents[7][:130]
    (span,) = spans(_index(ctx, [documents], 10**6, 10**5).find(np.array(query)), len(query))
    assert (span.begin, span.tokens, span.occurrences, span.most) == (0, 130, 1, 3000)
    (span,) = spans(_index(ctx, [documents], 10**6, 10**5).find(np.array(licence)), len(licence))
    assert (span.tokens, span.occurrences) == (120, 3000)


def test_one_token_repeated_is_counted_at_every_place(ctx: Context) -> None:
    documents = [[5] * 400, [5] * 40, [6] * 31]
    _check(_index(ctx, [documents], 90, 120), documents, [5] * 50)
    _check(_index(ctx, [documents], 90, 120), documents, [6] * 31 + [5] * 33)


def test_what_cannot_be_answered_is_named(ctx: Context) -> None:
    shards, curated = _shards(ctx, [[list(range(1, 90))]], 50)
    made = trace_index.run(ctx, "web", shards, curated)
    index = VerbatimIndex(ctx.store, made, shards)
    with pytest.raises(ValueError, match="the index only finds spans of 32 or more"):
        index.find(np.arange(1, 40), least=31)
    assert spans(index.find(np.arange(1, 60), least=59), 59)[0].tokens == 59
    assert not spans(index.find(np.arange(1, 60), least=60), 59)
    assert not spans(index.find(np.arange(1, 4)), 3)
    with pytest.raises(MissingError, match="belongs to other shards"):
        VerbatimIndex(ctx.store, made, Manifest(**{**shards.model_dump(), "version": "2"}))
    other = made.parts[0].model_copy(update={"blob": ctx.store.put_bytes(b"PAR1" + bytes(900))})
    torn = VerbatimIndex(ctx.store, made.model_copy(update={"parts": (other,)}), shards)
    with pytest.raises(IntegrityError, match="is not an index of verbatim spans"):
        torn.find(np.arange(1, 60))
