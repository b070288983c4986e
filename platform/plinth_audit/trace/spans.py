"""Matches of a text to its maximal spans, with exact counts of how often each occurs.

A span is maximal when no longer span of the text that contains it occurs. How often the whole span occurs and how
often its most frequent 32 tokens do are two numbers: of a licence that a million files begin with, one file may go on
as the text does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plinth_audit.trace.anchors import SPAN_TOKENS
from plinth_audit.trace.matches import Matches


@dataclass(frozen=True)
class VerbatimSpan:
    """A maximal span of the query.

    Args:
        begin, tokens: in the query.
        places: stream -> first tokens of its occurrences there, ascending; only streams that have some.
        most: occurrences of those 32 of its tokens in a row that occur most often.
    """

    begin: int
    tokens: int
    places: Mapping[str, NDArray[np.int64]]
    most: int

    @property
    def occurrences(self) -> int:
        """How often the whole span occurs."""
        return sum(map(len, self.places.values()))


def spans(found: Mapping[str, Matches], query_tokens: int) -> list[VerbatimSpan]:
    """The maximal spans, in order of the query."""
    frequencies = window_counts(found, query_tokens)
    every = [np.empty((0, 2), np.int64)] + [np.stack([own.begins, own.tokens], axis=1) for own in found.values()]
    made = []
    for begin, tokens in _maximal(np.unique(np.concatenate(every), axis=0)):
        places = {name: _places(own, begin, tokens) for name, own in found.items()}
        most = int(frequencies[begin : begin + tokens - SPAN_TOKENS + 1].max())
        made.append(VerbatimSpan(begin, tokens, {name: own for name, own in places.items() if len(own)}, most))
    return made


def window_counts(found: Mapping[str, Matches], query_tokens: int) -> NDArray[np.int64]:
    """How often the 32 tokens that begin at each token of the query occur, [query_tokens]."""
    changes = np.zeros(query_tokens + 1, np.int64)
    for own in found.values():
        changes += np.bincount(own.begins, minlength=query_tokens + 1)
        changes -= np.bincount(own.begins + own.tokens - SPAN_TOKENS + 1, minlength=query_tokens + 1)
    return np.cumsum(changes)[:query_tokens]


def covered(made: list[VerbatimSpan], query_tokens: int) -> int:
    """Tokens of the query that lie in some span."""
    held = np.zeros(query_tokens, np.bool_)
    for span in made:
        held[span.begin : span.begin + span.tokens] = True
    return int(held.sum())


def _places(found: Matches, begin: int, tokens: int) -> NDArray[np.int64]:
    """Where the tokens of a maximal span occur: its matches, ascending as matches are."""
    first, stop = np.searchsorted(found.begins, [begin, begin + 1]).tolist()
    own = slice(first, stop)
    return np.asarray(found.starts[own][found.tokens[own] == tokens])


def _maximal(intervals: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Begin and length of the intervals that no other contains, by begin."""
    kept: list[tuple[int, int]] = []
    reached = -1
    for begin, tokens in sorted(intervals.tolist(), key=lambda own: (own[0], -own[1])):
        if begin + tokens > reached:
            kept.append((begin, tokens))
            reached = begin + tokens
    return kept
