"""Every token is scored once, from enough context."""

from hypothesis import given
from hypothesis import strategies as st

from plinth.evaluation.engine.batches import ScoringWindow, carried, windows


def test_known_windows() -> None:
    assert carried(16) == 2
    assert list(windows(0, 8)) == []
    assert list(windows(5, 8)) == [ScoringWindow(0, 5, 1)]
    assert list(windows(8, 8)) == [ScoringWindow(0, 8, 1)]
    assert list(windows(31, 16)) == [ScoringWindow(0, 16, 1), ScoringWindow(14, 30, 17), ScoringWindow(28, 31, 31)]


@given(st.integers(0, 500), st.integers(2, 64))
def test_each_token_once_within_length_and_with_context(tokens: int, sequence: int) -> None:
    found = list(windows(tokens, sequence))
    scored = [target for window in found for target in range(window.scored, window.end + 1)]
    assert scored == list(range(1, tokens + 1))
    for window in found:
        assert 0 < window.length <= sequence
        assert window.scored - 1 >= window.start
        assert window.start == 0 or window.scored - 1 - window.start == carried(sequence)
