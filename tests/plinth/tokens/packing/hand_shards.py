"""Shards whose tokens and documents are written down by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.records import Manifest, Part
from plinth.tokens.shards.index import write_index


def hand_shards(
    ctx: Context, shards: Sequence[Sequence[int]], lengths: Sequence[int] = (), name: str = "web"
) -> Manifest:
    """A shard set of these tokens, documents of these lengths; 0 is the end-of-text."""
    firsts = np.cumsum([0, *map(len, shards)]).tolist()
    parts = [
        Part(
            name=f"shard-{i:05d}.bin",
            blob=ctx.store.put_bytes(np.array(own, "<u2").tobytes()),
            rows=0,
            stats={"start": firsts[i], "tokens": len(own)},
        )
        for i, own in enumerate(shards)
    ]
    count, starts = len(lengths), np.cumsum([0, *lengths])[:-1]
    columns = [
        pa.array([i.to_bytes(16, "big") for i in range(count)], pa.binary(16)),
        pa.array(starts, pa.int64()),
        pa.array(lengths, pa.int64()),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int32()),
    ]
    parts.append(write_index(ctx.store, "index-00000.arrow", columns, {"start": 0, "tokens": sum(lengths)}))
    stats = {"tokens": firsts[-1], "documents": count, "end_of_text": 0, "dtype": "<u2"}
    return Manifest(
        asset=f"{name}/shards", step="made", version="1", params={}, inputs={}, parts=tuple(parts), stats=stats
    )
