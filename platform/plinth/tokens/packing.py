"""Concatenate and chunk: where sequences begin, which tokens see each other, what is lost.

S is the recipe's `sequence_tokens`. Sequence k of a bucket is tokens k S to k S + S of its stream, both
included: S + 1 tokens, whose first S are inputs and whose last S are targets. Neighbours share one token, the
last target of one and the first input of the next, so that every token but the stream's first is a target
exactly once in an epoch. The tail that fills no sequence is dropped. Nothing is padded.

With document masks a token attends to its own document only. The first token of a document is a target like
any other, though all it can be predicted from is another document's end: how texts begin is learnt too. No
target is masked, then; starts are counted, so that a trainer which leaves them out knows what it loses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plinth.records import Frozen
from plinth.tokens.reader import ShardReader


class Packing(Frozen):
    """What packing made of a bucket's stream, per epoch.

    Attributes:
        sequences: whole sequences.
        targets: S per sequence.
        padding: tokens that stand for nothing; this packing has none.
        masked: targets left out of the loss; this packing leaves out none.
        starts: targets that are the first token of a document.
        dropped: tokens of the tail.
        documents, split_documents: all, and those that lie in the inputs of more than one sequence.
    """

    tokens: int
    sequences: int
    targets: int
    padding: int
    masked: int
    starts: int
    dropped: int
    documents: int
    split_documents: int


def sequence_count(tokens: int, sequence_tokens: int) -> int:
    """Whole sequences in a stream."""
    return max(0, tokens - 1) // sequence_tokens


def sequences_of(start: int, tokens: int, sequence_tokens: int, sequences: int) -> range:
    """The sequences that hold any token of a span, as input or as target."""
    first = max(0, start - 1) // sequence_tokens
    return range(min(first, sequences), min((start + tokens - 1) // sequence_tokens + 1, sequences))


def segments(tokens: NDArray[np.integer], end_of_text: int) -> NDArray[np.int32]:
    """Which document of its sequence each token belongs to, counted from 0; an end-of-text belongs to what it ends.

    Args:
        tokens: [batch, S + 1].

    Returns:
        [batch, S + 1]. Attention stays among equal numbers.
    """
    numbers = np.zeros(tokens.shape, dtype=np.int32)
    np.cumsum(tokens[:, :-1] == end_of_text, axis=1, dtype=np.int32, out=numbers[:, 1:])
    return numbers


def measure(reader: ShardReader, sequence_tokens: int) -> Packing:
    """Pack a bucket on paper: exact counts from its document index."""
    sequences = sequence_count(reader.tokens, sequence_tokens)
    covered = sequences * sequence_tokens
    starts = split = 0
    for first, lengths in reader.index_batches():
        starts += int(((first >= 1) & (first <= covered)).sum())
        last = np.minimum(first + lengths, covered) - 1
        split += int(((first < covered) & (first // sequence_tokens != last // sequence_tokens)).sum())
    return Packing(
        tokens=reader.tokens,
        sequences=sequences,
        targets=covered,
        padding=0,
        masked=0,
        starts=starts,
        dropped=reader.tokens - min(reader.tokens, covered + 1),
        documents=reader.documents_count,
        split_documents=split,
    )
