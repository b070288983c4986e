from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.tokens.packing import measure, sequence_count, sequences_of
from plinth.tokens.shards.reader import ShardReader
from tests.plinth.tokens.packing.hand_shards import hand_shards


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2)])
def test_a_sequence_needs_one_token_more_than_its_width(tokens: int, expected: int) -> None:
    assert sequence_count(tokens, 8) == expected


@given(start=st.integers(0, 60), tokens=st.integers(1, 40), width=st.integers(1, 9), sequences=st.integers(0, 12))
def test_sequences_of_a_span(start: int, tokens: int, width: int, sequences: int) -> None:
    span = set(range(start, start + tokens))
    expected = [k for k in range(sequences) if span & set(range(k * width, k * width + width + 1))]
    assert list(sequences_of(start, tokens, width, sequences)) == expected


@pytest.mark.parametrize("width", [8, 33, 1000])
def test_packing_is_what_the_tokens_say(ctx: Context, made: SimpleNamespace, width: int) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 25), made.texts(2, 9)]})
    reader = ShardReader(ctx.store, done["web"])
    packing = measure(reader, width)
    stream = reader.read(0, reader.tokens)
    starts, seen = 0, 0
    for k in range(packing.sequences):
        own = stream[k * width : (k + 1) * width + 1]
        starts += int((own[:-1] == reader.end_of_text).sum())  # the target after each begins a document
        seen += width
    assert (packing.starts, packing.targets, packing.padding, packing.masked) == (starts, seen, 0, 0)
    assert packing.dropped == reader.tokens - (seen + 1)
    spans = made.documents(reader)
    inside = [(s.start // width, min(s.start + s.tokens, seen) - 1) for s in spans if s.start < seen]
    assert packing.split_documents == sum(first != last // width for first, last in inside)


def test_counts_by_hand(ctx: Context) -> None:
    """Ten tokens make two sequences of 4: 0 to 4 and 4 to 8. Documents begin at 0, 1, 5 and 8."""
    packing = measure(ShardReader(ctx.store, hand_shards(ctx, [range(10)], [1, 4, 3, 2])), 4)
    assert (packing.sequences, packing.targets, packing.dropped, packing.documents) == (2, 8, 1, 4)
    assert packing.starts == 3  # targets 1, 5 and 8, the last
    assert (packing.split_documents, packing.split_fitting) == (1, 1)  # 1 to 4 fits exactly; 8 is not an input


def test_a_stream_too_short_for_one_sequence_is_all_tail(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 20)], "none": [["a"]]})
    packing = measure(ShardReader(ctx.store, done["none"]), 8)
    assert (packing.sequences, packing.targets, packing.starts) == (0, 0, 0)
    assert packing.tokens == 2
    assert packing.split_documents == 0
