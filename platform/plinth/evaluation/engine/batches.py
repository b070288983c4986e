"""Conversion of texts and requests to token streams, and of streams to batches. Batches depend only on the content of
the streams. This module does not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.errors import TrainingError
from plinth.evaluation.engine.records import Request
from plinth.tokens.tokenizer.encode import encode_texts
from plinth.tokens.tokenizer.vocabulary import token_bytes


class ScoredStream(NamedTuple):
    """Tokens of a text. All tokens from index `first` (at least 1) to the end are scored."""

    ids: NDArray[np.int64]
    first: int

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return len(self.ids) - self.first


def documents(tokenizer: Tokenizer, start: int, texts: Sequence[str]) -> list[ScoredStream]:
    """Return one token stream per text. Each stream begins with the start-of-document token.

    Raises:
        TrainingError: the tokenizer loses text.
    """
    streams = []
    for text, ids in zip(texts, encode_texts(tokenizer, texts, "<u4"), strict=True):
        if tokenizer.decode(ids.tolist(), skip_special_tokens=False) != text:
            raise TrainingError(
                "the tokenizer is lossy, so bits per byte would omit text",
                found=f"a document that begins {text[:40]!r}",
                expected="the same text after encoding and decoding",
                remedy="train a byte-level tokenizer without normalization",
            )
        streams.append(ScoredStream(np.concatenate(([start], ids.astype(np.int64))), 1))
    return streams


def requests(tokenizer: Tokenizer, start: int, asked: Sequence[Request]) -> list[ScoredStream]:
    """Return the token streams of requests, tokenized as in lm-evaluation-harness (`TemplateLM._encode_pair`).

    White space at the end of a prompt moves to the continuation. Prompt and continuation are encoded together. If the
    prompt alone has n tokens, the continuation starts after the first n tokens. If a merge across the boundary leaves
    the continuation without tokens, the last token is scored.
    """
    pairs = [_moved(one) for one in asked]
    texts = dict.fromkeys(text for prompt, continuation in pairs for text in _texts(prompt, continuation))
    ids = dict(zip(texts, encode_texts(tokenizer, texts, "<u4"), strict=True))
    return [_stream(start, prompt, continuation, ids) for prompt, continuation in pairs]


def ends(tokenizer: Tokenizer, texts: Sequence[str], streams: Sequence[ScoredStream]) -> NDArray[np.int64]:
    """Return the byte offset of each token's end within its text, for all documents in order."""
    widths = np.array([len(data) for data in token_bytes(tokenizer)], dtype=np.int64)
    found = [np.empty(0, np.int64)]
    for text, stream in zip(texts, streams, strict=True):
        own = np.cumsum(widths[stream.ids[stream.first :]])
        whole = not text or (own.size and own[-1] == len(text.encode()))
        found.append(own if whole else _library_ends(tokenizer, text))
    return np.concatenate(found)


def _moved(request: Request) -> Request:
    prompt, continuation = request
    if isinstance(prompt, str) and isinstance(continuation, str):
        kept = prompt.rstrip()
        return Request(kept, prompt[len(kept) :] + continuation)
    return request


def _texts(prompt: str | tuple[int, ...], continuation: str | tuple[int, ...]) -> list[str]:
    if isinstance(prompt, str) and isinstance(continuation, str):
        return [prompt, prompt + continuation]
    return [text for text in (prompt, continuation) if isinstance(text, str)]


def _stream(
    start: int,
    prompt: str | tuple[int, ...],
    continuation: str | tuple[int, ...],
    ids: dict[str, NDArray[np.unsignedinteger]],
) -> ScoredStream:
    if isinstance(prompt, str) and isinstance(continuation, str):
        whole = ids[prompt + continuation]
        first = min(len(ids[prompt]), len(whole) - 1) if continuation else len(whole)
        return ScoredStream(np.concatenate(([start], whole)).astype(np.int64), 1 + first)
    before = [start, *ids[prompt].tolist()] if isinstance(prompt, str) else list(prompt) or [start]
    after = ids[continuation] if isinstance(continuation, str) else continuation
    return ScoredStream(np.array([*before, *after], dtype=np.int64), len(before))


def _library_ends(tokenizer: Tokenizer, text: str) -> NDArray[np.int64]:
    """Return token ends in bytes from the tokenizer library's offsets, for tokens that contain placeholder
    characters."""
    sizes = np.cumsum([0, *(len(character.encode()) for character in text)])
    made = tokenizer.encode(text, add_special_tokens=False)
    return np.asarray(sizes[[end for _, end in made.offsets]], dtype=np.int64)


# Tokens of a document in windows of the training length, with overlapping context.
#
#     S  tokens a window may hold: the sequence length of training
#     C  tokens of context carried over: S // 8
#
# The stream of a document is the end-of-text token, then its tokens. The first window scores up to S tokens; every
# further window begins C tokens before the first unscored token, so each later token is predicted from at least C
# tokens of context, as in a strided evaluation. Every token is scored once.


class ScoringWindow(NamedTuple):
    """Window of a stream: inputs stream[start : end], targets stream[start + 1 : end + 1]. Targets from index `scored`
    to the end are scored."""

    start: int
    end: int
    scored: int  # position in the stream of the first target that counts

    @property
    def length(self) -> int:
        return self.end - self.start


def carried(sequence_tokens: int) -> int:
    """Return the number of context tokens at the beginning of every window except the first."""
    return sequence_tokens // 8


def windows(tokens: int, sequence_tokens: int, first: int = 1) -> Iterator[ScoringWindow]:
    """Yield the windows over a stream of `tokens` tokens plus the token before it. All tokens from index `first` are
    scored.

    If the scored tokens fit into one window, the context is truncated on the left, and a single window is yielded.
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


# Streams as batches determined by their content: independent of order and of the number of processes.
#
#     S  tokens of a row    B  rows of a batch    U  outputs asked    N  targets
#
# A row is one sequence of inputs: a prefix, then branches that continue the prefix and are masked from each other. A
# stream with its own prompt is a row with one branch. Answers to one question share a row, so the question is computed
# once. Equal requests are computed once. Rows of similar length share a batch. No torch.

#: Number of tokens per batch, padding included.
BATCH_TOKENS = 4096

#: Maximum total length of the branches in a row, unless the prefix is longer. It is bounded because attention within a
#: row is quadratic.
BRANCH_TOKENS = 128

I64 = NDArray[np.int64]


class Job(NamedTuple):
    """Destination of a window's scores: `offset` is the index of its first target among the scored tokens of the
    stream."""

    stream: int
    offset: int


@dataclass(frozen=True)
class Continuation:
    """Target tokens [n] that follow a prefix. The inputs are the prefix and all targets except the last."""

    targets: I64
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Row:
    """A prefix and the continuations that branch from it."""

    prefix: I64
    branches: tuple[Continuation, ...]

    @property
    def length(self) -> int:
        """Number of input tokens."""
        return len(self.prefix) + sum(len(one.targets) - 1 for one in self.branches)

    @property
    def targets(self) -> int:
        """Number of scored targets."""
        return sum(len(one.targets) for one in self.branches)

    @property
    def shared(self) -> bool:
        """True if several continuations share the prefix, which requires an attention mask."""
        return len(self.branches) > 1


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together. All rows have exactly one continuation, or all rows have several."""

    rows: tuple[Row, ...]

    @property
    def targets(self) -> int:
        """Number of scored targets."""
        return sum(row.targets for row in self.rows)

    def arrays(self, multiple: int = 1) -> BatchArrays:
        """Return the arrays of the batch, with its length rounded up to `multiple` tokens."""
        longest = -(-max(row.length for row in self.rows) // multiple) * multiple
        tokens = np.zeros((len(self.rows), longest), np.int64)
        positions, branches = np.zeros_like(tokens), np.full_like(tokens, -1)
        asked: list[int] = []  # flat index of the output that predicts each target
        for number, row in enumerate(self.rows):
            at, size = len(row.prefix), len(row.prefix)
            tokens[number, :size], positions[number, :size], branches[number, :size] = row.prefix, np.arange(size), 0
            for which, branch in enumerate(row.branches, start=1):
                more = len(branch.targets) - 1
                tokens[number, at : at + more] = branch.targets[:-1]
                positions[number, at : at + more] = np.arange(size, size + more)
                branches[number, at : at + more] = which
                asked += [number * longest + size - 1, *range(number * longest + at, number * longest + at + more)]
                at += more
        order = np.argsort(asked, kind="stable")
        outputs, which_output = np.unique(np.array(asked, np.int64)[order], return_inverse=True)
        targets = np.concatenate([one.targets for row in self.rows for one in row.branches])[order]
        shared = branches if self.rows[0].shared else None
        return BatchArrays(tokens, positions, shared, outputs, which_output.astype(np.int64), targets, order)


class BatchArrays(NamedTuple):
    """Arrays of a batch. Targets are sorted by output; `order` gives the position of each target in the batch."""

    tokens: I64  # [B, S]
    positions: I64  # [B, S]
    branches: I64 | None  # [B, S]; 0 the prefix, -1 padding; None where no row has two
    outputs: I64  # flat indices into [B x S], ascending [U]
    which: I64  # into `outputs`, ascending [N]
    targets: I64  # [N]
    order: I64  # [N]


def plan(streams: Sequence[ScoredStream], sequence_tokens: int, batch_tokens: int = BATCH_TOKENS) -> list[Batch]:
    """Return the batches in which the streams are scored.

    Args:
        streams: streams in any order.
        sequence_tokens: maximum number of tokens per window.
        batch_tokens: maximum number of tokens per batch. A batch may exceed it only if it consists of one longer row.
    """
    rows = [row for group in _groups(streams, sequence_tokens) for row in _rows(*group)]
    rows.sort(key=lambda row: (row.shared, -row.length, _identity(row)))
    batches: list[list[Row]] = []
    for row in rows:  # by falling length: the first row of a batch is its longest
        last = batches[-1] if batches else None
        fits = last is not None and (len(last) + 1) * last[0].length <= batch_tokens and last[0].shared == row.shared
        if last is not None and fits:
            last.append(row)
        else:
            batches.append([row])
    return [Batch(tuple(one)) for one in batches]


def _groups(streams: Sequence[ScoredStream], sequence_tokens: int) -> Iterator[tuple[I64, list[Continuation]]]:
    """Yield each prefix with its distinct continuations, sorted by length and content."""
    found: dict[bytes, dict[bytes, list[Job]]] = {}
    for number, stream in enumerate(streams):
        for window in windows(len(stream.ids) - 1, sequence_tokens, stream.first):
            prefix, targets = stream.ids[window.start : window.scored], stream.ids[window.scored : window.end + 1]
            jobs = found.setdefault(prefix.tobytes(), {}).setdefault(targets.tobytes(), [])
            jobs.append(Job(number, window.scored - stream.first))
    for before, own in found.items():
        branches = [Continuation(np.frombuffer(after, np.int64), tuple(jobs)) for after, jobs in own.items()]
        branches.sort(key=lambda one: (len(one.targets), one.targets.tobytes()))
        yield np.frombuffer(before, np.int64), branches


def _rows(prefix: I64, branches: Sequence[Continuation]) -> Iterator[Row]:
    """Yield rows of bounded length. Continuations that share only the start token get separate rows."""
    limit = max(len(prefix), BRANCH_TOKENS) if len(prefix) > 1 else 0
    held: list[Continuation] = []
    size = 0
    for branch in branches:
        if held and size + len(branch.targets) > limit:
            yield Row(prefix, tuple(held))
            held, size = [], 0
        held.append(branch)
        size += len(branch.targets)
    yield Row(prefix, tuple(held))


def _identity(row: Row) -> bytes:
    digest = hashlib.blake2b(row.prefix.tobytes())
    for branch in row.branches:
        digest.update(len(branch.targets).to_bytes(8, "big") + branch.targets.tobytes())
    return digest.digest()
