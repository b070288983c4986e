"""The tokens of curated parts on their way into shards: in staging, and no longer than the shards are cut.

Even shards can only be cut once all parts are counted, so a part's tokens are written twice: to staging, then into
the shards. The staged copy is removed as soon as no shard needs it. When the cut changes (text was added), the tokens
are copied back from the shards that were published last; where those are gone the text is encoded again. Either way
the bytes are those whose SHA-256 was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store, hash_stream
from plinth.tokens.shards.index import INDEX_SCHEMA
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.tokens.tokenizer import encode

#: Row for row the curated part: id and number of tokens of each document.
_LENGTHS = pa.schema([INDEX_SCHEMA.field("id"), INDEX_SCHEMA.field("tokens")])


@dataclass(frozen=True)
class StagedTokens:
    """A part's tokens, documents in order, each closed by end-of-text.

    Args:
        bucket: of the part; two buckets never share a file.
        blob: content of the file, whether or not the file exists.
    """

    bucket: str
    blob: Blob

    @property
    def name(self) -> str:
        """The file's name in staging."""
        return f"tokens-{self.bucket}-{self.blob.sha256}.bin"

    def exists(self, store: Store) -> bool:
        """Whether the file exists with its recorded length."""
        return store.has_scratch(self.name, self.blob.bytes)

    def open_path(self, store: Store) -> Path:
        """The path for reading.

        Raises:
            MissingError: the file does not exist.
        """
        if not self.exists(store):
            raise MissingError(
                f"the tokens of a part of {self.bucket} left staging while they were needed",
                expected=self.name,
                remedy="run the same command again: they are made again",
            )
        return store.open_scratch(self.name, self.blob)

    def remove(self, store: Store) -> None:
        """Remove the file."""
        store.remove_scratch(self.name)


@dataclass(frozen=True)
class PublishedTokens:
    """Published shards that hold a part's tokens: their manifest as a blob, and the number the part has there."""

    shards: Blob
    part: int


@dataclass(frozen=True)
class TokeniseTask:
    """A curated part to tokenise; `staged` and `published` are set when its tokens are restored."""

    bucket: str
    tokenizer: Blob
    curated: Part
    dtype: str
    end_of_text: int
    staged: StagedTokens | None = None
    published: PublishedTokens | None = None


def tokenise(ctx: Context, asset: str, tasks: Sequence[TokeniseTask]) -> list[Part]:
    """Ids and lengths of every curated part's documents; stats: tokens, text_bytes, and `stream` (blob of tokens)."""
    items = [Item((task.tokenizer.sha256, task.curated.blob.sha256), task, task.curated.rows) for task in tasks]
    facts = {"dtype": tasks[0].dtype, "end_of_text": tasks[0].end_of_text} if tasks else {}
    step = Step(name="tokens.shards.tokenise", version="2", params=facts, libraries=fingerprint.libraries("tokenizers"))
    return [parts[0] for parts in run_items(ctx, step, _tokenise, items, label=f"{asset}: tokenise")]


def published_tokens(ctx: Context, asset: str, tokenizer: str, dtype: str) -> dict[str, PublishedTokens]:
    """Where the published shards of an asset hold the tokens of curated parts (by SHA-256); empty where none fit."""
    ref = ctx.refs.ref(asset)
    if ref is None:
        return {}
    try:
        shards = ctx.refs.load(ref.digest)
        curated = ctx.refs.load(shards.inputs[asset.rsplit("/", 1)[0] + "/curated"])
    except (KeyError, MissingError, StorageError):
        return {}
    whole = ctx.store.has_all(part.blob for part in shards.parts)
    if not whole or (shards.stats.get("tokenizer"), shards.stats.get("dtype")) != (tokenizer, dtype):
        return {}
    kept = ctx.store.put_bytes(fingerprint.canonical(shards))
    return {part.blob.sha256: PublishedTokens(kept, number) for number, part in enumerate(curated.named("part-"))}


def restore(store: Store, task: TokeniseTask) -> None:
    """Put tokens that were made before into staging again.

    Raises:
        IntegrityError: the text gives other tokens than it did.
    """
    wanted = task.staged
    assert wanted is not None
    if task.published is not None and _copy_published(store, wanted, task.published):
        return
    (lengths,) = _tokenise(store, task)
    if lengths.stats["stream"] != wanted.blob.model_dump():
        raise IntegrityError(
            f"{task.curated.name} of {task.bucket} gives other tokens than it did",
            found=f"SHA-256 {lengths.stats['stream']['sha256']}",
            expected=f"SHA-256 {wanted.blob.sha256}",
            remedy="the tokenizer library has changed: train the tokenizer again, or go back to the pinned library",
        )


def _tokenise(store: Store, task: TokeniseTask) -> tuple[Part, ...]:
    trained = encode.load(store, task.tokenizer)
    lengths: list[int] = []
    sizes: list[int] = []

    def columns() -> Iterator[pa.Array]:
        for batch in iter_batches(store, task.curated, ["text"]):
            sizes.append(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)
            yield batch.column("text")

    with _writer(store, task.bucket) as (stream, made), encode.parallel(False):
        for ids, first in encode.encode_columns(trained, columns(), task.dtype):
            stream.write(np.insert(ids, first[1:], task.end_of_text).data)
            lengths.extend((np.diff(first) + 1).tolist())
    stats = {"tokens": sum(lengths), "text_bytes": sum(sizes), "stream": made[0].blob.model_dump()}
    part = write_batches(store, "index.parquet", _LENGTHS, _length_batches(store, task.curated, lengths))
    return (part.model_copy(update={"stats": stats}),)


def _length_batches(store: Store, curated: Part, lengths: Sequence[int]) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in iter_batches(store, curated, ["id"]):
        tokens = pa.array(lengths[row : row + batch.num_rows], pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("id"), tokens], schema=_LENGTHS)
        row += batch.num_rows


@contextmanager
def _writer(store: Store, bucket: str) -> Iterator[tuple[IO[bytes], list[StagedTokens]]]:
    """A stream to write tokens to; the list has their record once the block has ended without an error."""
    made: list[StagedTokens] = []
    with store.staging(".bin") as path:
        with named_failures(path), path.open("wb") as stream:
            yield stream, made
        with path.open("rb") as read:
            made.append(StagedTokens(bucket, hash_stream(read)))
        store.keep_scratch(path, made[0].name)


def _copy_published(store: Store, staged: StagedTokens, published: PublishedTokens) -> bool:
    """Copy a part's tokens from published shards; False where they are not those recorded."""
    documents = []
    for reader in _readers(store, published.shards).values():
        documents += [(span.row, reader, span) for span in reader.index.of_part(published.part)]
    try:
        with _writer(store, staged.bucket) as (out, made):
            for _, reader, span in sorted(documents, key=lambda found: found[0]):
                out.write(np.ascontiguousarray(reader.read(span.start, span.tokens)).tobytes())
    except IntegrityError:
        return False
    if made[0] != staged:
        made[0].remove(store)
        return False
    return True


@lru_cache(maxsize=1)
def _readers(store: Store, shards: Blob) -> Mapping[str, ShardReader]:
    """Open once per worker: the manifest of 10^12 tokens takes seconds."""
    return open_streams(store, [Manifest.model_validate_json(store.read_bytes(shards))])
