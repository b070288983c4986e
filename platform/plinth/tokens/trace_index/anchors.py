"""Anchors: hashes of the 16-grams that begin at every 17th token of a range, sorted.

Of 32 tokens in a row, 17 begin a 16-gram that lies inside them, and one of 17 in a row is an anchor. An anchor takes
8 bytes, so the index takes 8 / 17 of a byte per token whatever the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compiled import kernel
from plinth.records import Part
from plinth.storage.store import Store
from plinth.tokens.shards.mapped import map_columns, map_file, write_mapped
from plinth.tokens.shards.reader import Tokens

#: Fewest tokens in a row that are found; `least` of a query may be more, never fewer.
SPAN_TOKENS = 32
#: Tokens of a hash. Shorter ones would be rarer in the index and ambiguous in the text.
GRAM = 16
STRIDE = SPAN_TOKENS - GRAM + 1

#: An anchor: the upper half of a 64-bit hash of its tokens, and its token counted from the beginning of its range.
ANCHOR_SCHEMA = pa.schema(
    [pa.field("hash", pa.uint32(), nullable=False), pa.field("position", pa.uint32(), nullable=False)]
)
_WHAT = "an index of verbatim spans"


@dataclass(frozen=True)
class AnchorTask:
    """The tokens of a range and the shards that they lie in, in order.

    Args:
        shards: parts with `start` and `tokens`.
        start, tokens: of the range in its stream.
        reach: tokens from `start` to the end of the stream.
    """

    shards: tuple[Part, ...]
    dtype: str
    end_of_text: int
    start: int
    tokens: int
    reach: int


@dataclass(frozen=True)
class Anchors:
    """The anchors of a range, mapped, in order of hash and position."""

    hashes: NDArray[np.uint32]
    positions: NDArray[np.uint32]


def write(store: Store, task: AnchorTask) -> tuple[Part, ...]:
    """The anchors of a range as one part. Memory is the range and its anchors."""
    held = _read(store, task, min(task.tokens + GRAM - 1, task.reach))
    keys = np.empty(-(-task.tokens // STRIDE), np.uint64)
    found = keys[: _collect(held, task.tokens, task.end_of_text, keys)]
    found.sort()
    columns = [pa.array((found >> np.uint64(32)).astype(np.uint32)), pa.array(found.astype(np.uint32))]
    batch = pa.RecordBatch.from_arrays(columns, schema=ANCHOR_SCHEMA)
    return (write_mapped(store, "anchors.arrow", batch, {}),)


def open_anchors(store: Store, part: Part) -> Anchors:
    """The anchors of a part, mapped.

    Raises:
        MissingError, IntegrityError: absent, torn, or no such index.
    """
    data, places = map_columns(store, part, _WHAT)
    columns = (data[at : at + 4 * part.rows].view("<u4") for at in (places if part.rows else (0, 0)))
    return Anchors(*columns)


def hash_grams(tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The hash of the 16-gram at every token that begins one, [max(0, tokens - 15)]."""
    hashes = np.empty(max(0, len(tokens) - GRAM + 1), np.uint32)
    _hash_all(tokens, hashes)
    return hashes


def _read(store: Store, task: AnchorTask, count: int) -> Tokens:
    """Tokens of the range and the few behind it; a view where they lie in one shard."""
    pieces = []
    for part in task.shards:
        first = int(part.stats["start"])
        begin, stop = max(task.start - first, 0), min(task.start + count - first, int(part.stats["tokens"]))
        if begin < stop:
            pieces.append(map_file(store.open_path(part.blob)).view(task.dtype)[begin:stop])
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, task.dtype), *pieces])


@kernel
def _hash(tokens: NDArray[Any], at: int) -> int:
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for i in range(at, at + GRAM):
        mixed = (mixed ^ np.uint64(tokens[i])) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    return np.uint32((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(32))  # type: ignore[return-value]


@kernel
def _collect(tokens: NDArray[Any], count: int, end_of_text: int, keys: NDArray[np.uint64]) -> int:
    """Hash and position of every anchor whose tokens are of one document; returns how many."""
    found = 0
    for at in range(0, min(count, len(tokens) - GRAM + 1), STRIDE):
        whole = True
        for i in range(at, at + GRAM):
            whole = whole and tokens[i] != end_of_text
        if whole:
            keys[found] = (np.uint64(_hash(tokens, at)) << np.uint64(32)) | np.uint64(at)
            found += 1
    return found


@kernel
def _hash_all(tokens: NDArray[np.int64], hashes: NDArray[np.uint32]) -> None:
    for at in range(len(hashes)):
        hashes[at] = _hash(tokens, at)
