"""Asset `{bucket}/trace_index`: index that finds any 32 consecutive tokens in a bucket's shards.

    document index -> ranges of whole documents             cached per part of the document index
    a range        -> `anchors-00000.arrow`, in order       cached per range, independent of its position

The bytes depend only on the tokens and are the same for any number of workers. Memory holds one range at a time.

If text is added, the boundaries of all shards move, because shards have equal size. Therefore results are cached per
range and not per shard. A range contains whole documents from one curated part. The cache key of a range is the source
of its tokens (tokenizer, curated part, the documents' IDs, rows and lengths). The key does not depend on the position
in the stream, so only new curated parts are indexed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth.tokens.shards.index import DocumentSpans, map_columns, map_file, of_part, open_part, write_mapped
from plinth.tokens.shards.parameters import Stream, streams_of
from plinth.tokens.shards.reader import Tokens
from plinth_assets.framework import Inputs, Say, Stage, Stages, Suite, between, equal_columns
from plinth_assets.framework.present import markdown, table
from plinth_text.compiled import compiled

# Anchors: hashes of the 16-grams that begin at every 17th token of a range, sorted.
#
# Of 32 consecutive tokens, 17 start a 16-gram inside them, and one of 17 is an anchor. An anchor takes 8 bytes, so the
# index takes 8 / 17 of a byte per token for any text.

#: Minimum number of consecutive tokens that can be found.
SPAN_TOKENS = 32
#: Tokens per hash.
GRAM = 16
STRIDE = SPAN_TOKENS - GRAM + 1

#: Anchor: the upper half of a 64-bit hash of its tokens, and its position in the range.
ANCHOR_SCHEMA = pa.schema(
    [pa.field("hash", pa.uint32(), nullable=False), pa.field("position", pa.uint32(), nullable=False)]
)
_WHAT = "an index of verbatim spans"


@dataclass(frozen=True)
class AnchorTask:
    """Range of tokens to index, with the shards that contain the range, in order.

    Args:
        shards: parts with `start` and `tokens`.
        start, tokens: position and length of the range in its stream.
        reach: number of tokens from `start` to the end of the stream.
    """

    shards: tuple[Part, ...]
    dtype: str
    end_of_text: int
    start: int
    tokens: int
    reach: int


@dataclass(frozen=True)
class Anchors:
    """Memory-mapped anchors (indexed 16-grams) of a range, sorted by hash and position."""

    hashes: NDArray[np.uint32]
    positions: NDArray[np.uint32]


def write(store: Store, task: AnchorTask) -> tuple[Part, ...]:
    """Write the anchors of a range as one part. Memory holds the range and its anchors."""
    held = _read(store, task, min(task.tokens + GRAM - 1, task.reach))
    keys = np.empty(-(-task.tokens // STRIDE), np.uint64)
    collect = collect_u16 if held.dtype == np.uint16 else collect_u32
    found = keys[: collect(held, task.tokens, task.end_of_text, keys)]
    found.sort()
    columns = [pa.array((found >> np.uint64(32)).astype(np.uint32)), pa.array(found.astype(np.uint32))]
    batch = pa.RecordBatch.from_arrays(columns, schema=ANCHOR_SCHEMA)
    return (write_mapped(store, "anchors.arrow", batch, {}),)


def open_anchors(store: Store, part: Part) -> Anchors:
    """Memory-map the anchors of a range.

    Raises:
        MissingError, IntegrityError: the file is missing, truncated or invalid.
    """
    data, places = map_columns(store, part, _WHAT)
    columns = (data[at : at + 4 * part.rows].view("<u4") for at in (places if part.rows else (0, 0)))
    return Anchors(*columns)


def hash_grams(tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the hash of each 16-gram in a token sequence, [max(0, tokens - 15)]."""
    hashes = np.empty(max(0, len(tokens) - GRAM + 1), np.uint32)
    hash_all(tokens, hashes)
    return hashes


def _read(store: Store, task: AnchorTask, count: int) -> Tokens:
    """Return the tokens of the range and up to 15 tokens after it. If one shard has them all, the result is a view."""
    pieces = []
    for part in task.shards:
        first = int(part.stats["start"])
        begin, stop = max(task.start - first, 0), min(task.start + count - first, int(part.stats["tokens"]))
        if begin < stop:
            pieces.append(map_file(store.open_path(part.blob)).view(task.dtype)[begin:stop])
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, task.dtype), *pieces])


@compiled
def collect_u16(tokens: NDArray[np.uint16], count: int, end_of_text: int, keys: NDArray[np.uint64]) -> int:
    """Write hash and position of every anchor whose 16-gram is within one document. Return the number of anchors."""


@compiled
def collect_u32(tokens: NDArray[np.uint32], count: int, end_of_text: int, keys: NDArray[np.uint64]) -> int:
    """Write hash and position of every anchor, as `collect_u16` does, for 32-bit tokens."""


@compiled
def hash_all(tokens: NDArray[np.int64], hashes: NDArray[np.uint32]) -> None:
    """Write the hash of the 16-gram that starts at each token."""


VERSION = "1"
RANGES = Step(name="tokens.trace_index.ranges", version=VERSION)
ANCHORS = Step(name="tokens.trace_index.anchors", version=VERSION, params={"gram": GRAM, "stride": STRIDE})
#: Maximum bytes per token of a correct index.
MOST_BYTES_PER_TOKEN = 6.0
#: Maximum tokens of a range: 32 MB of anchors. A longer document is split.
RANGE_TOKENS = 2**26

#: Range of a stream: its curated part, position and identity.
RANGE_SCHEMA = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)


def run(
    ctx: Context, bucket: str, shards: Manifest, curated: Manifest, *, range_tokens: int = RANGE_TOKENS
) -> Manifest:
    """Build the trace index for the token streams of a bucket.

    Parts of a stream: `anchors-*.arrow` (`ANCHOR_SCHEMA`; stats: start, tokens), in `{label}/` if there are axes.
    Stats: tokens, anchors, ranges, bytes_per_token.

    Args:
        shards, curated: manifests of the bucket; the shards are derived from this curated text.
        range_tokens: maximum number of tokens in a range.
    """
    asset, texts = f"{bucket}/trace_index", curated.named("part-")
    items, names = [], []
    for stream in streams_of(shards):
        own = shards.named(f"{stream.folder}shard-")
        for number, (part, start, tokens, digest) in enumerate(_ranges(ctx, asset, shards, stream, range_tokens)):
            key = (shards.stats["tokenizer"], texts[part].blob.sha256, digest)
            items.append(Item(key, _task(shards, own, stream, start, tokens), tokens))
            names.append((f"{stream.folder}anchors-{number:05d}.arrow", start, tokens))
    made = run_items(ctx, ANCHORS, write, items, label=f"{asset}: anchors")
    parts = [
        found[0].model_copy(update={"name": name, "stats": {**found[0].stats, "start": start, "tokens": tokens}})
        for found, (name, start, tokens) in zip(made, names, strict=True)
    ]
    tokens, size = sum(tokens for *_, tokens in names), sum(part.blob.bytes for part in parts)
    stats = {
        "tokens": tokens,
        "anchors": sum(part.rows for part in parts),
        "ranges": len(parts),
        "bytes_per_token": round(size / max(tokens, 1), 4),
    }
    step = Step(name="tokens.trace_index", version=VERSION, params={**ANCHORS.params, "range_tokens": range_tokens})
    return manifest(asset, step, {f"{bucket}/shards": shards, f"{bucket}/curated": curated}, parts, stats)


def _ranges(
    ctx: Context, asset: str, shards: Manifest, stream: Stream, most: int
) -> Iterator[tuple[int, int, int, str]]:
    """Yield curated part, start, tokens and digest of every range in a stream, in order."""
    index = shards.named(f"{stream.folder}index-")
    items = [Item((part.blob.sha256, str(most)), (part, most), part.rows) for part in index]
    for (made,) in run_items(ctx, RANGES, cut, items, label=f"{asset}: ranges"):
        for row in read_table(ctx.store, made).to_pylist():
            yield row["part"], row["start"], row["tokens"], row["digest"]


def _task(shards: Manifest, own: tuple[Part, ...], stream: Stream, start: int, tokens: int) -> AnchorTask:
    """Return the task to index a range, with the shards that contain its tokens and the 15 tokens after it."""
    stop = start + tokens + GRAM - 1
    held = tuple(p for p in own if p.stats["start"] < stop and p.stats["start"] + p.stats["tokens"] > start)
    reach = stream.tokens - start
    return AnchorTask(held, shards.stats["dtype"], shards.stats["end_of_text"], start, tokens, reach)


def cut(store: Store, task: tuple[Part, int]) -> tuple[Part, ...]:
    """Cut a part of the document index into ranges with a maximum number of tokens, and write them (`RANGE_SCHEMA`)."""
    part, most = task
    documents = open_part(store, part)
    first, last = part.stats["parts"] if len(documents) else (0, -1)
    rows = [
        {"part": number, "start": start, "tokens": tokens, "digest": digest}
        for number in range(first, last + 1)
        for start, tokens, digest in _cut(documents.take(of_part(documents, number)), most)
    ]
    return (write_table(store, "ranges.parquet", pa.Table.from_pylist(rows, schema=RANGE_SCHEMA)),)


def _cut(documents: DocumentSpans, most: int) -> Iterator[tuple[int, int, str]]:
    """Yield start, tokens and digest of each range.

    A range has as many whole documents as fit, or a piece of a document that is longer than a range.
    """
    ends = documents.starts + documents.tokens
    at = 0
    while at < len(documents):
        start = int(documents.starts[at])
        stop = max(at + 1, int(np.searchsorted(ends, start + most, side="right")))
        tokens = int(ends[stop - 1]) - start
        digest = _digest(documents.take(slice(at, stop)))
        for offset in range(0, tokens, most):
            piece = min(most, tokens - offset)
            yield start + offset, piece, digest if tokens <= most else f"{digest}:{offset}:{piece}"
        at = stop


def _digest(documents: DocumentSpans) -> str:
    digest = hashlib.sha256()
    for column in (documents.ids, documents.tokens, documents.rows):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def stages(recipe: Recipe) -> list[Stage]:
    """Return one stage per bucket, which builds the bucket's trace index."""
    return [
        Stage(
            asset=f"{name}/trace_index",
            deps=(f"{name}/shards", f"{name}/curated"),
            make=partial(_make, name),
            version=VERSION,
            params=dict(ANCHORS.params),
            group="tokens",
            description=f"Index to find any {SPAN_TOKENS} consecutive tokens in {name} (`plinth corpus trace`).",
            owner=bucket.owner,
            kinds=("arrow",),
            schema=ANCHOR_SCHEMA,
            suite=_suite,
            present=_present,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _make(name: str, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return run(ctx, name, inputs[f"{name}/shards"], inputs[f"{name}/curated"])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    bucket = made.asset.split("/")[0]
    held = inputs[f"{bucket}/shards"].stats["tokens"]
    # Small ranges have a fixed cost per file, which does not count per token.
    rate = made.stats["anchors"] * 8 / max(made.stats["tokens"], 1)
    rows = [{"tokens": made.stats["tokens"], "shard_tokens": held, "bytes_per_token": rate}]
    expectations = [
        equal_columns("tokens", "shard_tokens"),  # every token of the shards is in one range
        between("bytes_per_token", 0, MOST_BYTES_PER_TOKEN),
    ]
    return Suite(f"trace-index-{bucket}", rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("tokens", "anchors", "ranges", "bytes_per_token")
    row = [made.bytes, *(made.stats[name] for name in names)]
    return {"index": markdown(table(["bytes", *names], [row]))}


STAGES = Stages(name="trace_index", stages=stages, with_mixture=True)
