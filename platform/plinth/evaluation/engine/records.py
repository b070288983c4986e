"""Requests to a checkpoint and the answers, as records and as files exchanged by the two processes. This module does
not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from plinth.records import Frozen


class Request(NamedTuple):
    """A continuation and its context.

    A text context is placed after the start-of-document token. A token context is used unchanged. An empty token
    context means the start-of-document token alone.
    """

    prompt: str | tuple[int, ...]
    continuation: str | tuple[int, ...]


class TokenBits(NamedTuple):
    """-log2 p of every token in one text, and the byte offset of each token's end."""

    ends: NDArray[np.int64]
    bits: NDArray[np.float64]


class Scores(NamedTuple):
    """Number of tokens and total -log2 p per document, and on request the end offset and the bits of every token."""

    tokens: NDArray[np.int64]  # [documents]
    bits: NDArray[np.float64]  # [documents]
    ends: NDArray[np.int64] | None = None  # bytes of its document up to the end of each token [all tokens]
    token_bits: NDArray[np.float64] | None = None  # [all tokens]

    def of(self, document: int) -> TokenBits:
        """Return the token scores of one document. Requires that the scores were requested with `per_token=True`."""
        assert self.ends is not None, "the scores were requested without per_token=True"
        assert self.token_bits is not None
        last = int(self.tokens[: document + 1].sum())
        first = last - int(self.tokens[document])
        return TokenBits(self.ends[first:last], self.token_bits[first:last])


class Likelihoods(NamedTuple):
    """Number of tokens, total -log2 p, and a flag that greedy decoding yields the continuation, per request."""

    tokens: NDArray[np.int64]  # [requests]
    bits: NDArray[np.float64]  # [requests]
    greedy: NDArray[np.bool_]  # [requests]
    cut: NDArray[np.bool_]  # [requests] prompt truncated on the left to the training length
    token_bits: NDArray[np.float64]  # [all tokens]


Prompt = str | tuple[int, ...]


class Sampling(Frozen):
    """Sampling parameters for text generation. Temperature 0 is greedy decoding."""

    max_tokens: int = Field(128, ge=1, description="Maximum number of new tokens.")
    temperature: float = Field(0.0, ge=0, description="Divisor of the logits. If 0, decoding is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    seed: int = Field(0, description="Random seed. The samples for a prompt do not depend on the other prompts.")
    stop: tuple[str, ...] = Field(
        (), description="Strings at which generation stops. They are not part of the returned text."
    )


class Generated(NamedTuple):
    """Text generated after a prompt."""

    text: str  # without the stop string
    tokens: tuple[int, ...]  # all new tokens, without the end-of-document token
    ended: Literal["end_of_text", "stop", "length"]
    cut: bool  # True if the prompt was truncated on the left, because prompt and new tokens exceed the training length


_IDS = pa.list_(pa.int64())


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """Write a table of texts to `path`."""
    pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path)


def read_texts(path: Path) -> list[str]:
    """Read the texts in a table written by `write_texts`."""
    found: list[str] = pq.read_table(path)["text"].to_pylist()
    return found


def write_requests(path: Path, requests: Sequence[Request]) -> None:
    """Write a table of requests to `path`. Context and continuation are text or token ids."""
    sides = zip(*requests, strict=True) if requests else ((), ())
    _write_prompts(path, dict(zip(Request._fields, sides, strict=True)))


def read_requests(path: Path) -> list[Request]:
    """Read the requests in a table written by `write_requests`."""
    table = pq.read_table(path)
    return [Request(*pair) for pair in zip(*(_prompts(table, side) for side in Request._fields), strict=True)]


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write a table of prompts to `path`. Each prompt is text or token ids."""
    _write_prompts(path, {"prompt": prompts})


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts in a table written by `write_prompts`."""
    return _prompts(pq.read_table(path), "prompt")


def write_scores(path: Path, scores: Scores) -> None:
    """Write a table of scores with one row per document. The per-token values of a document are lists."""
    columns: dict[str, Any] = {"tokens": scores.tokens, "bits": scores.bits}
    if scores.ends is not None:
        columns |= {name: _lists(scores, name) for name in ("ends", "token_bits")}
    pq.write_table(pa.table(columns), path)


def read_scores(path: Path) -> Scores:
    """Read the scores in a table written by `write_scores`."""
    return Scores(**_arrays(pq.read_table(path)))


def write_likelihoods(path: Path, found: Likelihoods) -> None:
    """Write a table of likelihoods with one row per request. The per-token values of a request are lists."""
    columns = found._asdict() | {"token_bits": _lists(found, "token_bits")}
    pq.write_table(pa.table(columns), path)


def read_likelihoods(path: Path) -> Likelihoods:
    """Read the likelihoods in a table written by `write_likelihoods`."""
    return Likelihoods(**_arrays(pq.read_table(path)))


def write_generated(path: Path, found: Sequence[Generated]) -> None:
    """Write a table of generated texts with one row per prompt."""
    names = Generated._fields
    pq.write_table(pa.table({name: pa.array([getattr(one, name) for one in found]) for name in names}), path)


def read_generated(path: Path) -> list[Generated]:
    """Read the generated texts in a table written by `write_generated`."""
    rows = pq.read_table(path).to_pylist()
    return [Generated(**row | {"tokens": tuple(row["tokens"])}) for row in rows]


def _write_prompts(path: Path, columns: Mapping[str, Sequence[Prompt]]) -> None:
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        texts = [value if isinstance(value, str) else None for value in values]
        ids = [None if isinstance(value, str) else list(value) for value in values]
        arrays |= {name: pa.array(texts, pa.large_string()), f"{name}_ids": pa.array(ids, _IDS)}
    pq.write_table(pa.table(arrays), path)


def _prompts(table: pa.Table, name: str) -> list[Prompt]:
    pairs = zip(table[name].to_pylist(), table[f"{name}_ids"].to_pylist(), strict=True)
    return [tuple(ids) if text is None else text for text, ids in pairs]


def _lists(scores: Scores | Likelihoods, name: str) -> pa.Array:
    edges = pa.array([0, *scores.tokens.cumsum().tolist()], pa.int64())
    return pa.LargeListArray.from_arrays(edges, pa.array(getattr(scores, name)))


def _arrays(table: pa.Table) -> dict[str, Any]:
    found = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        column = column.flatten() if pa.types.is_large_list(column.type) else column
        found[name] = column.to_numpy(zero_copy_only=False)
    return found
