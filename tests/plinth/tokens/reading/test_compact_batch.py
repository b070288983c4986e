"""Stored rows say what arrays of a value per token say: documents, targets that count, any part of them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.tokens.packing import PackedPieces
from plinth.tokens.reading.compact_batch import CompactBatch, ExpandedBatch, split_rows
from plinth.tokens.reading.loader import SequenceGather
from plinth.tokens.shards.reader import ShardReader


def arrays(rows: int, targets: int, seed: int, *, all_scored: bool = False) -> ExpandedBatch:
    """Random ids, documents and what is scored, of any pattern."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 1 << 16, (rows, targets + 1)).astype(np.uint16)
    begins = random.random(tokens.shape) < random.choice([0.0, 0.1, 0.9])
    begins[:, 0] = False
    scored = random.random((rows, targets)) < random.choice([0.0, 0.5, 1.0])
    return ExpandedBatch(tokens, np.cumsum(begins, axis=1, dtype=np.int32), None if all_scored else scored)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_are_their_arrays(count: int, targets: int, seed: int, all_scored: bool) -> None:
    given = arrays(count, targets, seed, all_scored=all_scored)
    rows = CompactBatch.of(*given)
    tokens, segments, scored = rows.expanded()
    assert (rows.tokens.dtype, tokens.dtype, segments.dtype) == (np.uint16, np.int32, np.int32)
    assert np.array_equal(tokens, given.tokens)
    assert np.array_equal(segments, given.segments)
    assert (scored is None) == all_scored
    assert all_scored or np.array_equal(scored, given.scored)  # type: ignore[arg-type]
    counts = np.full(count, targets) if given.scored is None else given.scored.sum(axis=1)
    assert rows.scored_counts.tolist() == counts.tolist()
    for length in (one for one in range(1, targets + 1) if targets % one == 0):
        inputs = split_rows(segments, length)[:, :-1]
        assert rows.unbroken(length) == bool((inputs == inputs[:, :1]).all())
    first = seed % count
    for own, whole in zip(CompactBatch(*rows.part(first, count)).expanded(), rows.expanded(), strict=True):
        assert own is None or np.array_equal(own, whole[first:])  # type: ignore[index]


def test_memory_of_an_expanded_batch_is_reused_once_nobody_refers_to_it() -> None:
    """A view keeps it, and a tensor of a view."""
    batches = [CompactBatch.of(*arrays(3, 10, seed, all_scored=True)) for seed in (1, 2, 3)]
    first = batches[0].expanded()
    row, numbers, place = first.tokens[1], torch.from_numpy(first.segments)[2], first.tokens.ctypes.data
    expected = row.copy(), numbers.clone()
    del first
    later = [batch.expanded() for batch in batches]
    assert place not in {column.ctypes.data for one in later for column in one[:2]}
    assert np.array_equal(row, expected[0])
    assert torch.equal(numbers, expected[1])
    del row, numbers, later
    assert place in {column.ctypes.data for column in batches[2].expanded()[:2]}


class _Shards:
    """One shard of ids that are wider than 16 bits, read as `ShardReader` reads."""

    mapped, end_of_text, shard_starts = True, 7, (0, 90)

    def __init__(self, tokens: np.ndarray) -> None:
        self.stream, self.tokens, self.dtype = tokens, len(tokens), tokens.dtype

    read = lambda self, start, count: self.stream[start : start + count]  # noqa: E731


@given(st.integers(1, 150), st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 1.0]))
@settings(max_examples=20, deadline=None)
def test_a_gather_finds_every_end(width: int, seed: int, share: float) -> None:
    """Two shards, rows anywhere in them and across; also where every token ends a document."""
    random = np.random.default_rng(seed)
    stream = random.integers(70_000, 90_000, 400).astype(np.uint32)
    stream[random.random(400) < share] = _Shards.end_of_text
    starts = random.integers(0, 400 - width, 60)
    reader: ShardReader = _Shards(stream)  # type: ignore[assignment]
    pieces = PackedPieces(np.arange(61, dtype=np.int32), starts, np.full(60, width + 1, np.int32), np.ones(60, np.int8))
    tokens = np.empty((60, width + 1), np.uint32)
    begins, unscored = SequenceGather([reader], contiguous=True).fill(np.zeros(60, np.int16), pieces, tokens)
    expected = np.stack([stream[start : start + width + 1] for start in starts])
    assert np.array_equal(tokens, expected)
    assert not len(unscored)
    numbers = np.zeros(expected.shape, int)
    numbers[:, 1:] = np.cumsum(expected[:, :-1] == _Shards.end_of_text, axis=1)
    assert np.array_equal(CompactBatch(tokens, begins, None).expanded().segments, numbers)
