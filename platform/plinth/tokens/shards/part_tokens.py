"""The tokens of curated parts on their way into shards: made once, and brought back when more shards need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.errors import IntegrityError
from plinth.records import Blob, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store
from plinth.tokens.shards import staged
from plinth.tokens.shards.index import INDEX_SCHEMA
from plinth.tokens.shards.staged import Kept, Staged
from plinth.tokens.tokenizer import encode


@dataclass(frozen=True)
class Tokenise:
    bucket: str
    tokenizer: Blob
    curated: Part
    dtype: str
    end_of_text: int
    staged: Staged | None = None  # what is known of it already
    kept: Kept | None = None


def tokenise(ctx: Context, asset: str, tasks: Sequence[Tokenise]) -> list[Part]:
    """The local index of every curated part: ids and tokens; stats: tokens, text_bytes, and `stream`, the bytes that
    its tokens are."""
    items = [Item((task.tokenizer.sha256, task.curated.blob.sha256), task, task.curated.rows) for task in tasks]
    facts = {"dtype": tasks[0].dtype, "end_of_text": tasks[0].end_of_text} if tasks else {}
    step = Step(name="tokens.shards.tokenise", version="2", params=facts)
    return [parts[0] for parts in run_items(ctx, step, _tokens, items, label=f"{asset}: tokenise")]


def _tokens(store: Store, task: Tokenise) -> tuple[Part, ...]:
    trained = encode.load(store, task.tokenizer)
    lengths: list[int] = []
    sizes: list[int] = []

    def columns() -> Iterator[pa.Array]:
        for batch in iter_batches(store, task.curated, ["text"]):
            sizes.append(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)
            yield batch.column("text")

    with staged.writing(store, task.bucket) as (stream, made), encode.parallel(False):
        for ids, first in encode.encode_columns(trained, columns(), task.dtype):
            stream.write(np.insert(ids, first[1:], task.end_of_text).data)
            lengths.extend((np.diff(first) + 1).tolist())
    stats = {"tokens": sum(lengths), "text_bytes": sum(sizes), "stream": made[0].blob.model_dump()}
    local = write_batches(store, "index.parquet", _LOCAL, _local(store, task.curated, lengths))
    return (local.model_copy(update={"stats": stats}),)


_LOCAL = pa.schema([INDEX_SCHEMA.field("id"), INDEX_SCHEMA.field("tokens")])


def _local(store: Store, curated: Part, lengths: Sequence[int]) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in iter_batches(store, curated, ["id"]):
        tokens = pa.array(lengths[row : row + batch.num_rows], pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("id"), tokens], schema=_LOCAL)
        row += batch.num_rows


def bring_back(store_root: Path, task: Tokenise) -> None:
    """Tokens that were made before, in staging again.

    Raises:
        IntegrityError: the text gives other tokens than it did.
    """
    store, wanted = Store(store_root), task.staged
    assert wanted is not None
    if task.kept is not None and staged.restore(store, wanted, task.kept):
        return
    (local,) = _tokens(store, task)
    if local.stats["stream"] != wanted.blob.model_dump():
        raise IntegrityError(
            f"{task.curated.name} of {task.bucket} gives other tokens than it did",
            found=f"SHA-256 {local.stats['stream']['sha256']}",
            expected=f"SHA-256 {wanted.blob.sha256}",
            remedy="the tokenizer library has changed: train the tokenizer again, or go back to the pinned library",
        )
