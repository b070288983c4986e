"""Texts and requests as streams of tokens, and where in a text each token ends. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.errors import TrainingError
from plinth.evaluation.engine.records import Request
from plinth.tokens.tokenizer.encode import encode_texts
from plinth.tokens.tokenizer.vocabulary import token_bytes


class ScoredStream(NamedTuple):
    """Tokens, of which those from `first` (at least 1) on are scored."""

    ids: NDArray[np.int64]
    first: int

    @property
    def scored(self) -> int:
        """How many tokens are scored."""
        return len(self.ids) - self.first


def documents(tokenizer: Tokenizer, start: int, texts: Sequence[str]) -> list[ScoredStream]:
    """Whole texts, each after the token that documents begin with.

    Raises:
        TrainingError: the tokenizer loses text.
    """
    streams = []
    for text, ids in zip(texts, encode_texts(tokenizer, texts, "<u4"), strict=True):
        if tokenizer.decode(ids.tolist(), skip_special_tokens=False) != text:
            raise TrainingError(
                "the tokenizer does not give the text back, so bits per byte would not count all of it",
                found=f"a document that begins {text[:40]!r}",
                expected="the same text after encoding and decoding",
                remedy="train a byte-level tokenizer without normalisation",
            )
        streams.append(ScoredStream(np.concatenate(([start], ids.astype(np.int64))), 1))
    return streams


def requests(tokenizer: Tokenizer, start: int, asked: Sequence[Request]) -> list[ScoredStream]:
    """Continuations after their prompts, cut into tokens as lm-evaluation-harness does (`TemplateLM._encode_pair`).

    White space at the end of a prompt goes to the continuation; the tokens of the continuation are those of both
    together after as many as the prompt has alone. Where a merge over the border leaves none, the last token is scored.
    """
    pairs = [_moved(one) for one in asked]
    texts = dict.fromkeys(text for prompt, continuation in pairs for text in _texts(prompt, continuation))
    ids = dict(zip(texts, encode_texts(tokenizer, texts, "<u4"), strict=True))
    return [_stream(start, prompt, continuation, ids) for prompt, continuation in pairs]


def ends(tokenizer: Tokenizer, texts: Sequence[str], streams: Sequence[ScoredStream]) -> NDArray[np.int64]:
    """Bytes of its text up to the end of each token, of all documents' tokens one after the other."""
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
    """For tokens that are spelt with stand-ins: the library's offsets, in characters, as bytes."""
    sizes = np.cumsum([0, *(len(character.encode()) for character in text)])
    made = tokenizer.encode(text, add_special_tokens=False)
    return np.asarray(sizes[[end for _, end in made.offsets]], dtype=np.int64)
