"""Each bucket's token streams in even binary shards, with a document index.

    curated part  -> tokens of its documents, each closed by end-of-text   (cached per part; tokens only staged)
    axes          -> the stream of each document
    a stream      -> `shard-00000.bin` ...       sizes differ by at most one token
                  -> `index-00000.arrow` ...   documents in stream order

Without axes a bucket is one stream. With them the parts of a stream are named below its label. Tokens are
little-endian uint16 when the vocabulary fits, uint32 otherwise. A shard's bytes depend on the stream and its size
alone, never on workers. Memory is one batch of texts or one copy buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.records import Blob, Manifest, Part, Step
from plinth.tokens.shards import cut, staged_tokens
from plinth.tokens.shards.cut import DocumentChoice, IndexTask, StreamAssignment, TokenSlice, assign_streams, even_sizes
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.staged_tokens import PublishedTokens, StagedTokens, TokeniseTask, restore
from plinth.tokens.tokenizer import encode, tokenizer

VERSION = "2"
INDEX = Step(name="tokens.shards.index", version=VERSION)
CUT = Step(name="tokens.shards.cut", version="1")

#: Shards that are cut before the tokens that only they needed leave staging.
GROUP_SHARDS = 64
#: Documents of an index part, 40 bytes each: parts of 160 MiB. A step of a thousand sequences touches nearly all parts
#: of a stream, and those of 10^12 tokens should be hundreds.
INDEX_DOCUMENTS = 2**22


def run(
    ctx: Context,
    bucket: str,
    params: Shards,
    trained: Manifest,
    curated: Manifest,
    sidecars: Mapping[str, Manifest] | None = None,
) -> Manifest:
    """Tokenise a bucket's training documents and cut their streams into shards.

    Args:
        sidecars: manifests of this bucket by stage, those that `axes.sidecars_of(params.axes)` names.

    Parts of a stream: `shard-*.bin` (stats: start, tokens) and `index-*.arrow` (`INDEX_SCHEMA`; stats: start,
    tokens), below `{label}/` where there are axes. Stats: documents, tokens, text_bytes, dtype, bytes_per_token (width
    of a token in a shard), end_of_text, vocab_size, tokenizer (SHA-256 of its file); with axes also `axes` and
    `streams` (documents and tokens by label).

    Raises:
        RecipeError: the axes make too many streams, or cannot be read as strings.
    """
    asset, sidecars = f"{bucket}/shards", dict(sidecars or {})
    (file,) = trained.named(tokenizer.FILE)
    dtype, end_of_text = encode.token_dtype(trained.stats["vocab_size"]), trained.stats["end_of_text"]
    tasks = [TokeniseTask(bucket, file.blob, part, dtype, end_of_text) for part in curated.named("part-")]
    lengths = staged_tokens.tokenise(ctx, asset, tasks)
    streams = assign_streams(ctx, bucket, params, curated, lengths, sidecars)
    parts = [*_cuts(ctx, asset, params, tasks, lengths, streams), *_indexes(ctx, asset, streams)]
    stats = {
        "documents": sum(stream.documents for stream in streams),
        "tokens": sum(stream.tokens for stream in streams),
        "text_bytes": sum(part.stats["text_bytes"] for part in lengths),
        "dtype": dtype,
        "bytes_per_token": np.dtype(dtype).itemsize,
        "end_of_text": end_of_text,
        "vocab_size": trained.stats["vocab_size"],
        "tokenizer": file.blob.sha256,
    }
    if params.axes:
        counts = {one.label: {"documents": one.documents, "tokens": one.tokens} for one in streams}
        stats |= {"axes": list(params.axes), "streams": counts}
    step = Step(name="tokens.shards", version=VERSION, params=params.identity())
    inputs = {tokenizer.ASSET: trained, f"{bucket}/curated": curated}
    return manifest(asset, step, inputs | {f"{bucket}/{name}": made for name, made in sidecars.items()}, parts, stats)


def _cuts(
    ctx: Context,
    asset: str,
    params: Shards,
    tasks: Sequence[TokeniseTask],
    lengths: Sequence[Part],
    streams: Sequence[StreamAssignment],
) -> list[Part]:
    """The shards of every stream, named and placed."""
    if not tasks:
        return []
    width = np.dtype(tasks[0].dtype).itemsize
    known = [StagedTokens(task.bucket, Blob(**part.stats["stream"])) for task, part in zip(tasks, lengths, strict=True)]
    items, named = [], []
    for stream in streams:
        whole = [TokenSlice(known[i], 0, n * width, one if one.labels else None) for i, one, _, n in stream.choices]
        sizes = even_sizes(stream.tokens, params.tokens_per_shard)
        starts = [0, *accumulate(sizes)]
        items += [Item(tuple(s.key for s in one), tuple(one)) for one in cut.slices(whole, sizes, width)]
        folder = f"{stream.label}/" if stream.label else ""
        named += [(f"{folder}shard-{i:05d}.bin", starts[i], size) for i, size in enumerate(sizes)]
    made = _cut_staged(ctx, asset, tasks, known, items)
    return [
        part.model_copy(update={"name": name, "stats": {"start": start, "tokens": tokens}})
        for part, (name, start, tokens) in zip(made, named, strict=True)
    ]


def _cut_staged(
    ctx: Context, asset: str, tasks: Sequence[TokeniseTask], known: Sequence[StagedTokens], items: Sequence[Item]
) -> list[Part]:
    """Cut by groups: missing tokens are restored before a group that needs them, and removed after the last one."""
    missing = [item for item in items if ctx.cache.get(CUT.key(item.inputs)) is None]
    groups = [missing[at : at + GROUP_SHARDS] for at in range(0, len(missing), GROUP_SHARDS)]
    needs = [{piece.tokens for item in group for piece in item.task} for group in groups]
    last = {one: at for at, needed in enumerate(needs) for one in needed}
    published: dict[str, PublishedTokens] | None = None
    for at, (group, needed) in enumerate(zip(groups, needs, strict=True)):
        absent = [
            (task, one) for task, one in zip(tasks, known, strict=True) if one in needed and not one.exists(ctx.store)
        ]
        if absent and published is None:
            published = staged_tokens.published_tokens(ctx, asset, tasks[0].tokenizer.sha256, tasks[0].dtype)
        lost = [
            replace(task, staged=one, published=(published or {}).get(task.curated.blob.sha256)) for task, one in absent
        ]
        for _ in ctx.engine.map(partial(restore, ctx.store), lost):
            pass
        run_items(ctx, CUT, cut.cut, group, label=f"{asset}: cut")
        for one in needed:
            if last[one] == at:
                one.remove(ctx.store)
    for one in known:
        if one not in last:
            one.remove(ctx.store)
    return [parts[0] for parts in run_items(ctx, CUT, cut.cut, items, label=f"{asset}: cut")]


def _indexes(ctx: Context, asset: str, streams: Sequence[StreamAssignment]) -> list[Part]:
    """The index of every stream, in parts of whole curated parts."""
    items, names = [], []
    for stream in streams:
        start = 0
        for i, group in enumerate(_grouped(stream)):
            pieces = tuple((number, chosen) for number, chosen, *_ in group)
            keys = tuple(
                key for n, one in pieces for key in (one.lengths.blob.sha256, str(n), *filter(None, [one.key]))
            )
            items.append(Item((*keys, str(start)), IndexTask(pieces, start), sum(rows for _, _, rows, _ in group)))
            names.append(f"{stream.label}/index-{i:05d}.arrow" if stream.label else f"index-{i:05d}.arrow")
            start += sum(tokens for *_, tokens in group)
    made = run_items(ctx, INDEX, cut.index, items, label=f"{asset}: index")
    return [parts[0].model_copy(update={"name": name}) for parts, name in zip(made, names, strict=True)]


def _grouped(stream: StreamAssignment) -> Iterator[list[tuple[int, DocumentChoice, int, int]]]:
    group: list[tuple[int, DocumentChoice, int, int]] = []
    for choice in stream.choices:
        group.append(choice)
        if sum(rows for _, _, rows, _ in group) >= INDEX_DOCUMENTS:
            yield group
            group = []
    if group:
        yield group
