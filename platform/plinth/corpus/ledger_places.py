"""Where documents lie in the shards, by walking the index of tokens beside the documents: both are in one order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.errors import IntegrityError
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store


@dataclass(frozen=True)
class Tokens:
    """Where the training documents of a part lie: its part of the index, and the shards of the bucket."""

    index: Part
    names: tuple[str, ...]
    starts: tuple[int, ...]


def tokens_of(bucket: str, documents: Part, curated: Manifest, shards: Manifest) -> Tokens:
    """The part of the index that counts the training documents of a part.

    Raises:
        IntegrityError: the shards were made of other curated text.
    """
    if shards.inputs.get(f"{bucket}/curated") != curated.digest:
        raise IntegrityError(
            f"the shards of {bucket} were made of other text",
            found=f"curated {str(shards.inputs.get(f'{bucket}/curated'))[:16]}",
            expected=f"curated {curated.digest[:16]}",
            remedy=f"plinth run --select {bucket}/shards",
        )
    names = [part.name for part in curated.named("part-")]
    index = shards.named("index-")[names.index(documents.name)]
    cut = shards.named("shard-")
    return Tokens(index, tuple(part.name for part in cut), tuple(int(part.stats["start"]) for part in cut))


class Places:
    """Shards and positions of the training documents, taken from the index as they come."""

    def __init__(self, store: Store, bucket: str, name: str, tokens: Tokens | None) -> None:
        self.bucket, self.name, self.tokens = bucket, name, tokens
        self.starts = np.array(tokens.starts if tokens else (), dtype=np.int64)
        batches = iter_batches(store, tokens.index, ["id", "start", "tokens"]) if tokens else iter(())
        self._batches = batches
        self._waiting = pa.table({"id": pa.array([], pa.binary(16)), "start": [], "tokens": []})

    def of(self, ids: pa.Array, trained: pa.Array) -> dict[str, pa.Array]:
        """Shard, position and tokens of a batch; null where a document is not trained on, and before there are any."""
        if self.tokens is None:
            empty = {"shard": pa.string(), "position": pa.int64(), "tokens": pa.int64()}
            return {name: pa.nulls(len(ids), kind) for name, kind in empty.items()}
        taken = self._take(ids.filter(trained))
        start = taken.column("start").to_numpy()
        shard = np.searchsorted(self.starts, start, side="right") - 1
        names = pa.array(self.tokens.names, pa.string())
        found = {
            "shard": names.take(pa.array(shard)),
            "position": pa.array(start - self.starts[shard] if len(shard) else start),
            "tokens": pa.array(taken.column("tokens").to_numpy()),
        }
        at = pc.subtract(pc.cumulative_sum(pc.cast(trained, pa.int64())), 1)
        at = pc.if_else(trained, at, pa.scalar(None, pa.int64()))
        return {name: column.take(at) for name, column in found.items()}

    def _take(self, ids: pa.Array) -> pa.Table:
        """The next rows of the index, which must be those of these documents."""
        while self._waiting.num_rows < len(ids):
            batch = next(self._batches, None)
            if batch is None:
                break
            more = pa.Table.from_batches([batch])
            self._waiting = pa.concat_tables([self._waiting, more]) if self._waiting.num_rows else more
        taken, self._waiting = self._waiting.slice(0, len(ids)), self._waiting.slice(len(ids))
        if taken.num_rows != len(ids) or (len(ids) and pa.chunked_array([ids]) != taken.column("id")):
            raise IntegrityError(
                f"the index of tokens of {self.bucket} does not follow its documents ({self.name})",
                expected="the documents that are trained on, in order",
                remedy=f"plinth run --select {self.bucket}/shards",
            )
        return taken
