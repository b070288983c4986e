"""Requests and answers as files between the two processes. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plinth.evaluation.engine.records import Likelihoods, Request, Scores

_IDS = pa.list_(pa.int64())


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """A table of texts."""
    pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path)


def read_texts(path: Path) -> list[str]:
    """The texts of such a table."""
    found: list[str] = pq.read_table(path)["text"].to_pylist()
    return found


def write_requests(path: Path, requests: Sequence[Request]) -> None:
    """A table of requests; each side is text or ids."""
    columns: dict[str, pa.Array] = {}
    for number, side in enumerate(Request._fields):
        values = [one[number] for one in requests]
        texts = [value if isinstance(value, str) else None for value in values]
        ids = [None if isinstance(value, str) else list(value) for value in values]
        columns |= {side: pa.array(texts, pa.large_string()), f"{side}_ids": pa.array(ids, _IDS)}
    pq.write_table(pa.table(columns), path)


def read_requests(path: Path) -> list[Request]:
    """The requests of such a table."""
    table = pq.read_table(path)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    prompts, continuations = (
        [tuple(ids) if text is None else text for text, ids in zip(columns[side], columns[f"{side}_ids"], strict=True)]
        for side in Request._fields
    )
    return [Request(*pair) for pair in zip(prompts, continuations, strict=True)]


def write_scores(path: Path, scores: Scores) -> None:
    """A row per document; values of its tokens are lists."""
    columns: dict[str, Any] = {"tokens": scores.tokens, "bits": scores.bits}
    if scores.ends is not None:
        columns |= {name: _lists(scores, name) for name in ("ends", "token_bits")}
    pq.write_table(pa.table(columns), path)


def read_scores(path: Path) -> Scores:
    """The scores of such a table."""
    return Scores(**_arrays(pq.read_table(path)))


def write_likelihoods(path: Path, found: Likelihoods) -> None:
    """A row per request; values of its tokens are lists."""
    columns = found._asdict() | {"token_bits": _lists(found, "token_bits")}
    pq.write_table(pa.table(columns), path)


def read_likelihoods(path: Path) -> Likelihoods:
    """The answers of such a table."""
    return Likelihoods(**_arrays(pq.read_table(path)))


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
