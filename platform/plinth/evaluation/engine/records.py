"""Requests to a checkpoint and its answers. Free of torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plinth.records import Frozen


class Request(NamedTuple):
    """A continuation and what comes before it.

    Text before is preceded by the token that documents begin with; tokens are taken as they are, and none of them
    mean that token alone.
    """

    prompt: str | tuple[int, ...]
    continuation: str | tuple[int, ...]


class TokenBits(NamedTuple):
    """-log2 p of every token of one text, and how many of its UTF-8 bytes end with it."""

    ends: NDArray[np.int64]
    bits: NDArray[np.float64]


class Scores(NamedTuple):
    """Per document: how many tokens it has, and their total -log2 p; if asked for, both of every token."""

    tokens: NDArray[np.int64]  # [documents]
    bits: NDArray[np.float64]  # [documents]
    ends: NDArray[np.int64] | None = None  # bytes of its document up to the end of each token [all tokens]
    token_bits: NDArray[np.float64] | None = None  # [all tokens]

    def of(self, document: int) -> TokenBits:
        """The tokens of one document; scores must have been asked for by token."""
        assert self.ends is not None, "scores without per_token=True"
        assert self.token_bits is not None
        last = int(self.tokens[: document + 1].sum())
        first = last - int(self.tokens[document])
        return TokenBits(self.ends[first:last], self.token_bits[first:last])


class Likelihoods(NamedTuple):
    """Per request, of its continuation: tokens, total -log2 p, whether greedy decoding would give it."""

    tokens: NDArray[np.int64]  # [requests]
    bits: NDArray[np.float64]  # [requests]
    greedy: NDArray[np.bool_]  # [requests]
    cut: NDArray[np.bool_]  # [requests] longer than the training length: the beginning of the prompt is not seen
    token_bits: NDArray[np.float64]  # [all tokens]


Prompt = str | tuple[int, ...]


class Sampling(Frozen):
    """How text is written after a prompt. At temperature 0 the most probable token is taken."""

    max_tokens: int = Field(128, ge=1, description="Tokens written at most.")
    temperature: float = Field(0.0, ge=0, description="Divides logits; 0: the most probable token.")
    top_p: float = Field(1.0, gt=0, le=1, description="Draw from the fewest tokens that are together so probable.")
    seed: int = Field(0, description="Of the draws; each prompt has draws of its own, whatever stands beside it.")
    stop: tuple[str, ...] = Field((), description="Text that ends the writing and is left out.")


class Generated(NamedTuple):
    """What was written after a prompt."""

    text: str  # without the stop string
    tokens: tuple[int, ...]  # all that were written, without the token that ends a document
    ended: Literal["end_of_text", "stop", "length"]
    cut: bool  # the beginning of the prompt was not seen: with the new tokens it is longer than the training length
