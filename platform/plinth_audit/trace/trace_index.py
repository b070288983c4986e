"""The asset `{bucket}/trace_index`: where every 32 tokens in a row of a bucket's shards can be found again.

    document index -> ranges of whole documents             cached per part of the index
    a range        -> `anchors-00000.arrow`, in order       cached per range, wherever the range lies

The bytes depend on the tokens alone, never on workers. Memory is one range.

Shards of even size are cut anew when text is added, so a shard is not a unit to keep work for. A range has whole
documents of one curated part, and is identified by what its tokens are made from (tokenizer, curated part, the
documents' ids, rows and lengths), wherever its stream now has it: growth indexes only new curated parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth.tokens.shards.index import DocumentSpans, of_part, open_part
from plinth.tokens.shards.parameters import Stream, streams_of
from plinth_assets.framework.expectations import Suite, between, equal_columns
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage, Stages
from plinth_audit.trace import anchors
from plinth_audit.trace.anchors import GRAM, STRIDE, AnchorTask

VERSION = "1"
RANGES = Step(name="tokens.trace_index.ranges", version=VERSION)
ANCHORS = Step(name="tokens.trace_index.anchors", version=VERSION, params={"gram": GRAM, "stride": STRIDE})
#: Bytes per token above this are a failure of the index, not of the text.
MOST_BYTES_PER_TOKEN = 6.0
#: Tokens of a range at most: 32 MB of anchors, and of one curated part there are seldom more. A longer document is cut.
RANGE_TOKENS = 2**26

#: A range of a stream: its curated part, place and identity.
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
    """The anchors of a bucket's streams.

    Parts of a stream: `anchors-*.arrow` (`ANCHOR_SCHEMA`; stats: start, tokens), below `{label}/` where there are
    axes. Stats: tokens, anchors, ranges, bytes_per_token.

    Args:
        shards, curated: of the bucket; the shards were made from this curated text.
        range_tokens: of a range at most.
    """
    asset, texts = f"{bucket}/trace_index", curated.named("part-")
    items, names = [], []
    for stream in streams_of(shards):
        own = shards.named(f"{stream.folder}shard-")
        for number, (part, start, tokens, digest) in enumerate(_ranges(ctx, asset, shards, stream, range_tokens)):
            key = (shards.stats["tokenizer"], texts[part].blob.sha256, digest)
            items.append(Item(key, _task(shards, own, stream, start, tokens), tokens))
            names.append((f"{stream.folder}anchors-{number:05d}.arrow", start, tokens))
    made = run_items(ctx, ANCHORS, anchors.write, items, label=f"{asset}: anchors")
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
    """Curated part, start, tokens and digest of every range of a stream, in order."""
    index = shards.named(f"{stream.folder}index-")
    items = [Item((part.blob.sha256, str(most)), (part, most), part.rows) for part in index]
    for (made,) in run_items(ctx, RANGES, cut, items, label=f"{asset}: ranges"):
        for row in read_table(ctx.store, made).to_pylist():
            yield row["part"], row["start"], row["tokens"], row["digest"]


def _task(shards: Manifest, own: tuple[Part, ...], stream: Stream, start: int, tokens: int) -> AnchorTask:
    """A range with the shards that hold it and the 15 tokens behind it."""
    stop = start + tokens + GRAM - 1
    held = tuple(p for p in own if p.stats["start"] < stop and p.stats["start"] + p.stats["tokens"] > start)
    reach = stream.tokens - start
    return AnchorTask(held, shards.stats["dtype"], shards.stats["end_of_text"], start, tokens, reach)


def cut(store: Store, task: tuple[Part, int]) -> tuple[Part, ...]:
    """The ranges of a part of the document index, each of at most so many tokens (`RANGE_SCHEMA`)."""
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
    """Start, tokens and digest of ranges: as many whole documents as fit; pieces of a document that does not fit."""
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
    """One index per bucket."""
    return [
        Stage(
            asset=f"{name}/trace_index",
            deps=(f"{name}/shards", f"{name}/curated"),
            make=partial(_make, name),
            version=VERSION,
            params=dict(ANCHORS.params),
            group="tokens",
            description=f"Finds any {anchors.SPAN_TOKENS} tokens in a row of {name} again (`plinth corpus trace`).",
            owner=bucket.owner,
            kinds=("arrow",),
            schema=anchors.ANCHOR_SCHEMA,
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
    # Small ranges cost a file of their own, which is no cost per token.
    rate = made.stats["anchors"] * 8 / max(made.stats["tokens"], 1)
    rows = [{"tokens": made.stats["tokens"], "shard_tokens": held, "bytes_per_token": rate}]
    expectations = [
        equal_columns("tokens", "shard_tokens"),  # every token of the shards lies in one range
        between("bytes_per_token", 0, MOST_BYTES_PER_TOKEN),
    ]
    return Suite(f"trace-index-{bucket}", rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("tokens", "anchors", "ranges", "bytes_per_token")
    row = [made.bytes, *(made.stats[name] for name in names)]
    return {"index": markdown(table(["bytes", *names], [row]))}


STAGES = Stages(name="trace_index", stages=stages, with_mixture=True)
