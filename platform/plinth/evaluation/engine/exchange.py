"""Requests and answers as files between the two processes. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plinth.evaluation.engine.records import Generated, Likelihoods, Prompt, Request, Scores

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
    sides = zip(*requests, strict=True) if requests else ((), ())
    _write_prompts(path, dict(zip(Request._fields, sides, strict=True)))


def read_requests(path: Path) -> list[Request]:
    """The requests of such a table."""
    table = pq.read_table(path)
    return [Request(*pair) for pair in zip(*(_prompts(table, side) for side in Request._fields), strict=True)]


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """A table of prompts; each is text or ids."""
    _write_prompts(path, {"prompt": prompts})


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of such a table."""
    return _prompts(pq.read_table(path), "prompt")


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


def write_generated(path: Path, found: Sequence[Generated]) -> None:
    """A row per prompt."""
    names = Generated._fields
    pq.write_table(pa.table({name: pa.array([getattr(one, name) for one in found]) for name in names}), path)


def read_generated(path: Path) -> list[Generated]:
    """The rows of such a table."""
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
