"""How documents fill sequences: where sequences begin, which tokens are targets, what is dropped.

S is the recipe's `sequence_tokens`. A sequence has S + 1 places: the tokens in the first S are inputs, those in
the last S are targets. It is laid out of *pieces*, spans of its bucket's stream.

`concatenate`: sequence k is tokens k S to k S + S of the stream, both included. Neighbours share one token, the
last target of one and the first input of the next, so that every token but the stream's first is a target
exactly once in an epoch. The tail that fills no sequence is dropped. Nothing is padded.

`best-fit`: a sequence begins with end-of-text, then come pieces (see `best_fit`): whole documents, and the rests of
longer ones; then padding, which is end-of-text too. A document longer than S first fills whole sequences with S of
its tokens each; those after its first begin with the token before them instead of end-of-text. The rest also begins
with the token before it, as its context. Every token of the stream is a target exactly once in an epoch, and always
after the token that it follows in its document, or after an end-of-text if it is the document's first. Padding and
context are not scored.

With document masks a token attends to its own document only, padding to padding. The first token of a document
is a target like any other, though it can only be predicted from the end of another document: the model learns how
texts begin. Starts are counted, so that the cost of leaving them out is known.
"""

from __future__ import annotations

import numpy as np

from plinth.records import Frozen
from plinth.tokens.shards.reader import ShardReader


class PackingCounts(Frozen):
    """Sequences, targets and documents of a packed stream, per epoch.

    Attributes:
        sequences: whole sequences.
        targets: S per sequence.
        padding: targets that are padding.
        masked: other targets left out of the loss: context before a piece.
        starts: targets that are the first token of a document.
        dropped: tokens of the tail.
        documents, split_documents: all, and those in the inputs of more than one sequence.
        split_fitting: split documents that are no longer than a sequence.
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
    split_fitting: int = 0


def sequence_count(tokens: int, sequence_tokens: int) -> int:
    """Whole sequences in a concatenated stream."""
    return max(0, tokens - 1) // sequence_tokens


def sequences_of(start: int, tokens: int, sequence_tokens: int, sequences: int) -> range:
    """The sequences of a concatenated stream that hold any token of a span, as input or as target."""
    first = max(0, start - 1) // sequence_tokens
    return range(min(first, sequences), min((start + tokens - 1) // sequence_tokens + 1, sequences))


def measure(reader: ShardReader, sequence_tokens: int) -> PackingCounts:
    """The counts of a concatenated stream, from its document index."""
    sequences = sequence_count(reader.tokens, sequence_tokens)
    covered = sequences * sequence_tokens
    starts = split = fitting = 0
    for first, lengths in reader.index_batches():
        starts += int(((first >= 1) & (first <= covered)).sum())
        last = np.minimum(first + lengths, covered) - 1
        cut = (first < covered) & (first // sequence_tokens != last // sequence_tokens)
        split += int(cut.sum())
        fitting += int((cut & (lengths <= sequence_tokens)).sum())
    return PackingCounts(
        tokens=reader.tokens,
        sequences=sequences,
        targets=covered,
        padding=0,
        masked=0,
        starts=starts,
        dropped=reader.tokens - min(reader.tokens, covered + 1),
        documents=reader.documents_count,
        split_documents=split,
        split_fitting=fitting,
    )
