"""A document's tokens in windows of the training length, with context carried over.

    S  tokens a window may hold: the sequence length of training
    C  tokens of context carried over: S // 8

The stream of a document is the end-of-text token, then its tokens. The first window scores up to S tokens;
every further one begins C tokens before the first unscored one, so that after the first window each token
is predicted from at least C tokens before it, as in a strided evaluation. Every token is scored once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class ScoringWindow(NamedTuple):
    """Inputs are stream[start : end], targets stream[start + 1 : end + 1]; those from `scored` on count."""

    start: int
    end: int
    scored: int  # position in the stream of the first target that counts

    @property
    def length(self) -> int:
        return self.end - self.start


def carried(sequence_tokens: int) -> int:
    """Tokens of context at the beginning of every window but the first."""
    return sequence_tokens // 8


def windows(tokens: int, sequence_tokens: int, first: int = 1) -> Iterator[ScoringWindow]:
    """The windows over a stream of `tokens` tokens and the one before them, of which those from `first` on count.

    Where those that count fit into one window, what precedes them is cut at its beginning to fit too.
    """
    scored = first
    if 1 < first <= tokens and tokens - first < sequence_tokens:
        yield ScoringWindow(max(0, tokens - sequence_tokens), tokens, first)
        return
    while scored <= tokens:
        start = max(0, scored - 1 - (carried(sequence_tokens) if scored > 1 else 0))
        end = min(start + sequence_tokens, tokens)
        yield ScoringWindow(start, end, scored)
        scored = end + 1
