"""The asset `{bucket}/trace_index`: where every 32 tokens in a row of a bucket's shards can be found again.

    document index -> ranges of whole documents             cached per part of the index
    a range        -> `anchors-00000.arrow`, in order       cached per range, wherever the range lies

The bytes depend on the tokens alone, never on workers. Memory is one range.
"""

from __future__ import annotations

from collections.abc import Iterator

from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table
from plinth.tokens.shards.streams import Stream, streams_of
from plinth_audit.trace import anchors, ranges
from plinth_audit.trace.anchors import GRAM, STRIDE, AnchorTask

VERSION = "1"
RANGES = Step(name="tokens.trace_index.ranges", version=VERSION)
ANCHORS = Step(name="tokens.trace_index.anchors", version=VERSION, params={"gram": GRAM, "stride": STRIDE})


def run(
    ctx: Context, bucket: str, shards: Manifest, curated: Manifest, *, range_tokens: int = ranges.RANGE_TOKENS
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
    for (made,) in run_items(ctx, RANGES, ranges.cut, items, label=f"{asset}: ranges"):
        for row in read_table(ctx.store, made).to_pylist():
            yield row["part"], row["start"], row["tokens"], row["digest"]


def _task(shards: Manifest, own: tuple[Part, ...], stream: Stream, start: int, tokens: int) -> AnchorTask:
    """A range with the shards that hold it and the 15 tokens behind it."""
    stop = start + tokens + GRAM - 1
    held = tuple(p for p in own if p.stats["start"] < stop and p.stats["start"] + p.stats["tokens"] > start)
    reach = stream.tokens - start
    return AnchorTask(held, shards.stats["dtype"], shards.stats["end_of_text"], start, tokens, reach)
