"""Anchors: hashes of the 16-grams that begin at every 17th token of a range, sorted.

Of 32 tokens in a row, 17 begin a 16-gram that lies inside them, and one of 17 in a row is an anchor. An anchor takes
8 bytes, so the index takes 8 / 17 of a byte per token whatever the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.records import Part
from plinth.storage.store import Store
from plinth.tokens.shards.index import map_columns, map_file, write_mapped
from plinth.tokens.shards.reader import Tokens
from plinth_text.compiled import compiled

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
    collect = collect_u16 if held.dtype == np.uint16 else collect_u32
    found = keys[: collect(held, task.tokens, task.end_of_text, keys)]
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
    hash_all(tokens, hashes)
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


@compiled
def collect_u16(tokens: NDArray[np.uint16], count: int, end_of_text: int, keys: NDArray[np.uint64]) -> int:
    """Hash and position of every anchor whose tokens are of one document; returns how many."""


@compiled
def collect_u32(tokens: NDArray[np.uint32], count: int, end_of_text: int, keys: NDArray[np.uint64]) -> int:
    """As `collect_u16`."""


@compiled
def hash_all(tokens: NDArray[np.int64], hashes: NDArray[np.uint32]) -> None:
    """Fill in the hash of the 16-gram that begins at each token."""
