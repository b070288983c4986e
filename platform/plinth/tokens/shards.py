"""Each bucket's token stream in even binary shards, with a document index.

    curated part  -> tokens of its documents, each closed by end-of-text   (cached per part)
    all parts     -> one stream -> `shard-00000.bin` ...   sizes differ by at most one token
                  -> `index-00000.parquet` ... one per curated part, in stream order

Tokens are little-endian uint16 when the vocabulary fits, uint32 otherwise. A shard's bytes depend on the
stream and its size alone, never on workers. Memory is one batch of texts or one copy buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.stage import Item, manifest, run_items
from plinth.context import Context
from plinth.recipe import tokens as recipe
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import CHUNK_BYTES, Store
from plinth.tokens import encode, tokenizer

VERSION = "1"
INDEX = Step(name="tokens.shards.index", version=VERSION)
CUT = Step(name="tokens.shards.cut", version=VERSION)

#: A document of the index: its tokens (end-of-text included) are `start` to `start + tokens` of the bucket's
#: stream, its text is row `row` of curated part `part`.
INDEX_SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True)
class _Tokenise:
    tokenizer: Blob
    curated: Part
    dtype: str
    end_of_text: int


@dataclass(frozen=True)
class _Index:
    local: Part
    part: int
    start: int


@dataclass(frozen=True)
class _Slice:
    """Bytes `offset` to `offset + length` of a blob."""

    blob: Blob
    offset: int
    length: int


def run(ctx: Context, bucket: str, params: recipe.Shards, trained: Manifest, curated: Manifest) -> Manifest:
    """Tokenise a bucket's training documents and cut the stream into shards.

    Parts `shard-*.bin` (stats: start, tokens) and `index-*.parquet` (`INDEX_SCHEMA`; stats: start, tokens).
    Stats: documents, tokens, text_bytes, dtype, bytes_per_token (width of a token in a shard), end_of_text,
    vocab_size, tokenizer (SHA-256 of its file).
    """
    asset = f"{bucket}/shards"
    (file,) = trained.named(tokenizer.FILE)
    dtype = encode.token_dtype(trained.stats["vocab_size"])
    width = np.dtype(dtype).itemsize
    streams = _tokenise(ctx, asset, file.blob, curated, dtype, trained.stats["end_of_text"])
    starts = [0, *accumulate(part.stats["tokens"] for part, _ in streams)]
    index = [
        Item((local.blob.sha256, str(i), str(starts[i])), _Index(local, i, starts[i]), local.rows)
        for i, (_, local) in enumerate(streams)
    ]
    indexes = [parts[0] for parts in run_items(ctx, INDEX, _index, index, label=f"{asset}: index")]
    cuts = _cuts([stream.blob for stream, _ in streams], even(starts[-1], params.tokens_per_shard), width)
    items = [Item(tuple(f"{s.blob.sha256}:{s.offset}:{s.length}" for s in cut), tuple(cut)) for cut in cuts]
    shards = [parts[0] for parts in run_items(ctx, CUT, _cut, items, label=f"{asset}: cut")]
    stats = {
        "documents": sum(part.rows for part in indexes),
        "tokens": starts[-1],
        "text_bytes": sum(stream.stats["text_bytes"] for stream, _ in streams),
        "dtype": dtype,
        "bytes_per_token": width,
        "end_of_text": trained.stats["end_of_text"],
        "vocab_size": trained.stats["vocab_size"],
        "tokenizer": file.blob.sha256,
    }
    parts = _named(shards, width) + [
        part.model_copy(update={"name": f"index-{i:05d}.parquet"}) for i, part in enumerate(indexes)
    ]
    step = Step(name="tokens.shards", version=VERSION, params=params.model_dump(mode="json"))
    return manifest(asset, step, {tokenizer.ASSET: trained, f"{bucket}/curated": curated}, parts, stats)


def even(tokens: int, tokens_per_shard: int) -> list[int]:
    """Sizes of shards close to `tokens_per_shard` that differ by at most one token; none for no tokens."""
    if not tokens:
        return []
    count = max(1, round(tokens / tokens_per_shard))
    return [tokens // count + (i < tokens % count) for i in range(count)]


def _tokenise(
    ctx: Context, asset: str, blob: Blob, curated: Manifest, dtype: str, end_of_text: int
) -> list[tuple[Part, Part]]:
    """Tokens and local index of every curated part."""
    items = [
        Item((blob.sha256, part.blob.sha256), _Tokenise(blob, part, dtype, end_of_text), part.rows)
        for part in curated.named("part-")
    ]
    step = Step(name="tokens.shards.tokenise", version=VERSION, params={"dtype": dtype, "end_of_text": end_of_text})
    return [(parts[0], parts[1]) for parts in run_items(ctx, step, _tokens, items, label=f"{asset}: tokenise")]


def _tokens(store: Store, task: _Tokenise) -> tuple[Part, ...]:
    trained = encode.load(store, task.tokenizer)
    closing = np.array([task.end_of_text], dtype=task.dtype).tobytes()
    lengths: list[int] = []
    sizes: list[int] = []

    def texts() -> Iterator[str]:
        for batch in iter_batches(store, task.curated, ["text"]):
            sizes.append(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)
            yield from batch.column("text").to_pylist()

    with store.staging(".bin") as path:
        with encode.parallel(False), named_failures(path), path.open("wb") as stream:
            for ids in encode.encode_texts(trained, texts(), task.dtype):
                stream.write(ids.tobytes())
                stream.write(closing)
                lengths.append(len(ids) + 1)
        blob = store.put_file(path)
    stats = {"tokens": sum(lengths), "text_bytes": sum(sizes)}
    local = write_batches(store, "index.parquet", _LOCAL, _local(store, task.curated, lengths))
    return Part(name="tokens.bin", blob=blob, stats=stats), local


_LOCAL = pa.schema([INDEX_SCHEMA.field("id"), INDEX_SCHEMA.field("tokens")])


def _local(store: Store, curated: Part, lengths: Sequence[int]) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in iter_batches(store, curated, ["id"]):
        tokens = pa.array(lengths[row : row + batch.num_rows], pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("id"), tokens], schema=_LOCAL)
        row += batch.num_rows


def _index(store: Store, task: _Index) -> tuple[Part, ...]:
    rows, end = 0, task.start

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal rows, end
        for batch in iter_batches(store, task.local):
            tokens = batch.column("tokens").to_numpy()
            starts = end + np.cumsum(tokens) - tokens
            numbers = np.arange(rows, rows + len(tokens), dtype=np.int32)
            parts = np.full(len(tokens), task.part, dtype=np.int32)
            columns = [batch.column("id"), pa.array(starts), batch.column("tokens"), pa.array(parts), pa.array(numbers)]
            yield pa.RecordBatch.from_arrays(columns, schema=INDEX_SCHEMA)
            rows, end = rows + len(tokens), end + int(tokens.sum())

    written = write_batches(store, "index.parquet", INDEX_SCHEMA, batches())
    return (written.model_copy(update={"stats": {"start": task.start, "tokens": end - task.start}}),)


def _cuts(blobs: Sequence[Blob], sizes: Sequence[int], width: int) -> list[list[_Slice]]:
    """The slices of the parts' streams that make each shard."""
    cuts: list[list[_Slice]] = []
    ends = list(accumulate(blob.bytes for blob in blobs))
    start, blob = 0, 0
    for size in sizes:
        stop, cut = start + size * width, []
        while start < stop:
            while ends[blob] <= start:
                blob += 1
            length = min(stop, ends[blob]) - start
            cut.append(_Slice(blobs[blob], start - (ends[blob] - blobs[blob].bytes), length))
            start += length
        cuts.append(cut)
    return cuts


def _cut(store: Store, slices: tuple[_Slice, ...]) -> tuple[Part, ...]:
    with store.staging(".bin") as path:
        with named_failures(path), path.open("wb") as out:
            for piece in slices:
                with store.open_path(piece.blob).open("rb") as source:
                    source.seek(piece.offset)
                    for at in range(0, piece.length, CHUNK_BYTES):
                        out.write(source.read(min(CHUNK_BYTES, piece.length - at)))
        return (Part(name="shard.bin", blob=store.put_file(path)),)


def _named(shards: Sequence[Part], width: int) -> list[Part]:
    starts = [0, *accumulate(part.blob.bytes // width for part in shards)]
    return [
        part.model_copy(
            update={
                "name": f"shard-{i:05d}.bin",
                "stats": {"start": starts[i], "tokens": part.blob.bytes // width},
            }
        )
        for i, part in enumerate(shards)
    ]
