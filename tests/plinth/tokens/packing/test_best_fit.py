from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plinth.tokens.packing import PackedPieces, pack


def _packed(lengths: Sequence[int], width: int) -> PackedPieces:
    lengths_array = np.array(lengths, np.int64)
    return pack(np.cumsum(lengths_array) - lengths_array, lengths_array, width)


def _sequences(pieces: PackedPieces) -> list[list[tuple[int, int, int]]]:
    rows = list(zip(pieces.starts.tolist(), pieces.tokens.tolist(), pieces.context.tolist(), strict=True))
    return [rows[first:stop] for first, stop in zip(pieces.offsets.tolist(), pieces.offsets.tolist()[1:], strict=False)]


def test_by_hand() -> None:
    # S = 8. 21 = 8 + 8 + 5, the rest of 5 takes 6 with its context; then 8 | 6 + 2 | 5 + 3 (and nothing for 1).
    lengths = [5, 21, 3, 2, 8]
    assert _sequences(_packed(lengths, 8)) == [
        [(5, 8, 0)],  # the first 8 of 21
        [(12, 9, 1)],  # the next 8, after the token before them
        [(31, 8, 0)],  # 8 fits exactly
        [(20, 6, 1), (29, 2, 0)],  # what remains of 21, and the best fit for its 2 places
        [(0, 5, 0), (26, 3, 0)],
    ]
    assert _packed(lengths, 8).scored.tolist() == [8, 8, 8, 7, 8]


def test_of_equal_spaces_the_youngest_is_filled_and_the_first_is_not_forgotten() -> None:
    assert _sequences(_packed([6, 6, 2, 2], 8)) == [[(0, 6, 0), (14, 2, 0)], [(6, 6, 0), (12, 2, 0)]]


@pytest.mark.parametrize("lengths", [[], [1], [8], [9], [16], [17], [0, 3, 0]])
def test_edges(lengths: list[int]) -> None:
    pieces = _packed(lengths, 8)
    assert int(pieces.scored.sum()) == sum(lengths)
    assert len(pieces) == {0: 0, 1: 1, 3: 1, 8: 1, 9: 2, 16: 2, 17: 3}[sum(lengths)]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(8, 20))
@example([9] * 7, 8)  # each leaves one token, which takes two places
@settings(max_examples=60, deadline=None)
def test_every_token_is_a_target_once_and_nothing_that_fits_is_cut(lengths: list[int], width: int) -> None:
    pieces, owner = _packed(lengths, width), np.repeat(np.arange(len(lengths)), lengths)
    scored = np.zeros(sum(lengths), int)
    homes: dict[int, set[int]] = {}
    for number, sequence in enumerate(_sequences(pieces)):
        alone = sequence[0][1] > width  # goes on in the middle of a document and fills the sequence
        assert sum(tokens for _, tokens, _ in sequence) <= width + alone
        assert len(sequence) == 1 or not alone
        for start, tokens, context in sequence:
            assert len({*owner[start : start + tokens]}) == 1  # of one document
            follows = start + context > 0 and owner[start + context] == owner[start + context - 1]
            assert context == follows  # what goes on in the middle has its context, and nothing else has
            scored[start + context : start + tokens] += 1
            homes.setdefault(int(owner[start]), set()).add(number)
    assert (scored == 1).all()
    assert all(len(homes[document]) == -(-length // width) for document, length in enumerate(lengths))


def _slow_best_fit(sizes: Sequence[int], width: int) -> list[int]:
    """Space left in every bin: the textbook's best fit, decreasing."""
    left: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [space for space in left if space >= size]
        if fitting:
            left.remove(min(fitting))
            left.append(min(fitting) - size)
        else:
            left.append(width - size)
    return sorted(left)


@given(st.lists(st.integers(1, 70), max_size=80), st.sampled_from([8, 31, 64, 70]))
@settings(max_examples=40, deadline=None)
def test_agrees_with_the_textbook(lengths: list[int], width: int) -> None:
    rests = [length % width + 1 for length in lengths if length > width and length % width]
    sizes = [length for length in lengths if length <= width] + rests
    whole = sum(length // width for length in lengths if length > width)
    pieces = _packed(lengths, width)
    left = [width - sum(tokens for _, tokens, _ in sequence) for sequence in _sequences(pieces)[whole:]]
    assert sorted(left) == _slow_best_fit(sizes, width)


@pytest.mark.parametrize("width", [512, 2048, 8192])
def test_padding_is_below_one_percent_on_documents_as_they_are(width: int) -> None:
    """Log-normal lengths, 1,000 tokens in the mean, as web text has them: 2,000 sequences, one window."""
    random = np.random.default_rng(width)
    lengths = random.lognormal(np.log(1000) - 0.5, 1.0, 2 * width).astype(np.int64) + 2
    pieces = pack(np.cumsum(lengths) - lengths, lengths, width)
    targets = len(pieces) * width
    assert (pieces.tokens <= width + 1).all()
    assert 1 - int(pieces.scored.sum()) / targets < 0.01  # padding and context together
