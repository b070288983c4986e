"""Rows gathered from shards written by hand: whole lanes and rests, boundaries of shards, full buffers."""

from __future__ import annotations

import numpy as np

from plinth.compute.context import Context
from plinth.tokens.packing_layout import Concatenated
from plinth.tokens.reading import loader
from plinth.tokens.reading.loader import SequenceGather
from plinth.tokens.shards.reader import ShardReader
from tests.plinth.tokens.packing.hand_shards import hand_shards


class Fetched(ShardReader):
    """A reader whose shards are not mapped."""

    mapped = False


def _gathered(
    readers: list[ShardReader], streams: list[int], rows: list[int], width: int
) -> tuple[np.ndarray, list[int]]:
    """Rows of concatenated streams, and where documents begin in them."""
    tokens = np.empty((len(rows), width + 1), readers[0].dtype)
    pieces = Concatenated.pieces_of(np.array(rows), width)
    starts, unscored = SequenceGather(readers, contiguous=True).fill(np.array(streams, np.int16), pieces, tokens)
    assert not len(unscored)
    return tokens, starts.tolist()


def test_more_documents_than_there_is_room_for_are_counted_and_then_held(ctx: Context) -> None:
    reader = ShardReader(ctx.store, hand_shards(ctx, [[0] * 41]))
    pieces, tokens = Concatenated.pieces_of(np.arange(5), 8), np.empty((5, 9), reader.dtype)
    for room, after in ((45, 45), (44, 56)):  # 45 documents begin; a quarter more than that next time
        rows = SequenceGather([reader], contiguous=True)
        rows._capacity = room
        starts, _ = rows.fill(np.zeros(5, np.int16), pieces, tokens)
        assert (starts.tolist(), rows._capacity) == (list(range(45)), after)


def test_a_piece_needs_the_shards_it_has_tokens_in() -> None:
    """Two shards of ten tokens; the first is at address 1,000, the second is not mapped."""
    addresses, bounds = np.array([1000, 0]), np.array([0, 10, 20])

    def located(*pieces: tuple[int, int]) -> tuple[bool, list[int], list[int]]:
        starts, lengths = np.array([piece[0] for piece in pieces]), np.array([piece[1] for piece in pieces], np.int32)
        sources, rests = np.zeros(len(pieces), np.int64), np.zeros(len(pieces), np.int64)
        done = loader.locate_pieces(addresses, bounds, 2, starts, lengths, sources, rests)
        return done, sources.tolist(), rests.tolist()

    assert located((4, 6), (0, 3)) == (True, [1008, 1000], [6, 10])
    assert located((4, 7))[0] is False
    addresses[1] = 5000
    assert located((9, 2), (10, 3), (9, 1), (0, 20)) == (True, [1018, 5000, 1018, 1000], [1, 10, 1, 10])


def test_fetched_streams_are_as_mapped_ones(ctx: Context) -> None:
    made = [hand_shards(ctx, [range(1, 30), range(30, 42)]), hand_shards(ctx, [range(100, 141)], name="code")]
    streams, rows = [1, 0, 0, 1], [0, 3, 4, 2]
    mapped = _gathered([ShardReader(ctx.store, one) for one in made], streams, rows, 8)
    fetched = _gathered([Fetched(ctx.store, one) for one in made], streams, rows, 8)
    expected = [range(100, 109), range(25, 34), range(33, 42), range(116, 125)]
    assert mapped[0].tolist() == fetched[0].tolist() == [list(own) for own in expected]
    assert mapped[1] == fetched[1] == [0, 9, 18, 27]
