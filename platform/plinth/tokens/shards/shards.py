"""Stage that cuts each bucket's token streams into binary shards of even size, with a document index.

    curated part  -> tokens of its documents, each followed by end-of-text   (cached per part; tokens only staged)
    axes          -> the stream of each document
    a stream      -> `shard-00000.bin` ...     sizes differ by at most one token
                  -> `index-00000.arrow` ...   documents in stream order

Without axes, a bucket is one stream. With axes, the names of a stream's parts begin with its label. Tokens are
little-endian uint16 if the vocabulary fits, otherwise uint32. A shard's bytes depend only on the stream and the shard
size, and not on the number of workers. Memory use is one batch of texts or one copy buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, add_stats, manifest, run_items
from plinth.errors import RecipeError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_aligned, iter_batches
from plinth.storage.store import CHUNK_BYTES, Store
from plinth.tokens.shards import staged_tokens
from plinth.tokens.shards.index import write_index
from plinth.tokens.shards.parameters import OTHER, Shards
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
    """Tokenize a bucket's training documents and cut their streams into shards.

    The parts of a stream are `shard-*.bin` (stats: start, tokens) and `index-*.arrow` (`INDEX_SCHEMA`; stats: start,
    tokens); with axes, their names begin with `{label}/`. The manifest's stats are documents, tokens, text_bytes,
    dtype, bytes_per_token (width of a token in a shard), end_of_text, vocab_size and tokenizer (SHA-256 of its file).
    `encoder` names the library that encoded, and `compared` counts the documents that were encoded with the tokenizers
    library too, with the same tokens. With axes, the stats include `axes` and `streams` (documents and tokens by
    label).

    Args:
        sidecars: manifests of this bucket, for the stages that `staged_tokens.sidecars_of(params.axes)` returns.

    Raises:
        RecipeError: the axes result in too many streams, or their values are not strings.
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
        "encoder": ", ".join(sorted({part.stats["encoder"] for part in lengths})),
        "compared": add_stats(lengths).get("compared", {}),
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
    """Write the shards of every stream, and return their parts with names and positions."""
    if not tasks:
        return []
    width = np.dtype(tasks[0].dtype).itemsize
    known = [StagedTokens(task.bucket, Blob(**part.stats["stream"])) for task, part in zip(tasks, lengths, strict=True)]
    items, named = [], []
    for stream in streams:
        whole = [TokenSlice(known[i], 0, n * width, one if one.labels else None) for i, one, _, n in stream.choices]
        sizes = even_sizes(stream.tokens, params.tokens_per_shard)
        starts = [0, *accumulate(sizes)]
        items += [Item(tuple(s.key for s in one), tuple(one)) for one in slices(whole, sizes, width)]
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
    """Cut shards in groups, to limit the tokens in staging.

    Missing tokens are restored before a group that needs them, and removed after the last group that does.
    """
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
        run_items(ctx, CUT, cut, group, label=f"{asset}: cut")
        for one in needed:
            if last[one] == at:
                one.remove(ctx.store)
    for one in known:
        if one not in last:
            one.remove(ctx.store)
    return [parts[0] for parts in run_items(ctx, CUT, cut, items, label=f"{asset}: cut")]


def _indexes(ctx: Context, asset: str, streams: Sequence[StreamAssignment]) -> list[Part]:
    """Write the index of every stream. Each index part covers whole curated parts."""
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
    made = run_items(ctx, INDEX, index, items, label=f"{asset}: index")
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


# Cut token streams into shards and index them: byte ranges of one stream, or documents gathered by their label.
#
#     part 0: a b a c   part 1: b a          tokens of curated parts, documents in order
#     stream a: a a a   stream b: b b …      the same documents, each stream in the same order
#
# Memory is one copy buffer, and with labels the lengths and labels of one part.


@dataclass(frozen=True)
class DocumentChoice:
    """Documents of a curated part that belong to a stream.

    Args:
        lengths: ids and token counts of the documents, in the same rows as the curated part.
        labels: label of each document, in the same rows; None if the bucket is one stream.
        wanted: labels of the stream.
    """

    lengths: Part
    labels: Part | None = None
    wanted: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Cache key of the chosen documents."""
        return f"{self.labels.blob.sha256}:{'|'.join(self.wanted)}" if self.labels else ""


@dataclass(frozen=True)
class TokenSlice:
    """Byte range of a part's tokens, which begins at `offset` and has `length` bytes.

    If `chosen` is set, only the tokens of chosen documents count.
    """

    tokens: StagedTokens
    offset: int
    length: int
    chosen: DocumentChoice | None = None

    @property
    def key(self) -> str:
        """Cache key of the bytes in the slice."""
        own = f"{self.tokens.blob.sha256}:{self.offset}:{self.length}"
        return f"{own}:{self.chosen.key}" if self.chosen else own


@dataclass(frozen=True)
class IndexTask:
    """Task to write an index part for documents of several curated parts, starting at token `start` of their stream."""

    pieces: tuple[tuple[int, DocumentChoice], ...]
    start: int


def even_sizes(tokens: int, tokens_per_shard: int) -> list[int]:
    """Return shard sizes close to `tokens_per_shard` that differ by at most one token.

    If `tokens` is 0, the list is empty.
    """
    if not tokens:
        return []
    count = max(1, round(tokens / tokens_per_shard))
    return [tokens // count + (i < tokens % count) for i in range(count)]


def slices(sources: Sequence[TokenSlice], sizes: Sequence[int], width: int) -> list[list[TokenSlice]]:
    """Return the slices of the parts' tokens that form each shard.

    Args:
        sources: for each part, the slice of all tokens that belong to the stream, in order.
        sizes: number of tokens per shard.
        width: bytes per token.
    """
    cuts: list[list[TokenSlice]] = []
    ends = list(accumulate(source.length for source in sources))
    start, at = 0, 0
    for size in sizes:
        stop, cut = start + size * width, []
        while start < stop:
            while ends[at] <= start:
                at += 1
            length = min(stop, ends[at]) - start
            cut.append(replace(sources[at], offset=start - (ends[at] - sources[at].length), length=length))
            start += length
        cuts.append(cut)
    return cuts


def cut(store: Store, task: tuple[TokenSlice, ...]) -> tuple[Part, ...]:
    """Write one shard from its token slices."""
    with store.staging(".bin") as path:
        with named_failures(path), path.open("wb") as out:
            for piece in task:
                if piece.chosen is None:
                    _copy(store, piece, out)
                else:
                    _gather(store, piece, piece.chosen, out)
        return (Part(name="shard.bin", blob=store.put_file(path)),)


def index(store: Store, task: IndexTask) -> tuple[Part, ...]:
    """Write one part of the index. Its stats are start, tokens, and the first and last curated part (`parts`)."""
    ids, tokens, parts, rows = [], [np.empty(0, np.int64)], [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for number, chosen in task.pieces:
        for batch_ids, batch_tokens, batch_rows in _documents(store, chosen):
            ids.append(batch_ids)
            tokens.append(batch_tokens)
            parts.append(np.full(len(batch_rows), number, np.int32))
            rows.append(batch_rows)
    lengths = np.concatenate(tokens)
    starts = task.start + np.cumsum(lengths) - lengths
    numbers = [pa.array(column) for column in (starts, lengths, np.concatenate(parts), np.concatenate(rows))]
    every_id = pa.concat_arrays(ids) if ids else pa.array([], pa.binary(16))
    span = {"start": task.start, "tokens": int(lengths.sum()), "parts": [task.pieces[0][0], task.pieces[-1][0]]}
    return (write_index(store, "index.arrow", [every_id, *numbers], span),)


def _documents(store: Store, chosen: DocumentChoice) -> Iterator[tuple[pa.Array, NDArray[np.int64], NDArray[np.int32]]]:
    """Yield the ids, token counts and rows of a part's chosen documents, in batches."""
    sources = [(chosen.lengths, ["id", "tokens"])] + ([(chosen.labels, ["label"])] if chosen.labels else [])
    row = 0
    for batch, *labels in iter_aligned(store, *sources):
        rows = np.arange(row, row + batch.num_rows, dtype=np.int32)
        row += batch.num_rows
        if labels:
            kept = _matching(labels[0], chosen.wanted)
            batch, rows = batch.filter(pa.array(kept)), rows[kept]
        yield batch.column("id"), batch.column("tokens").to_numpy(), rows


def _matching(batch: pa.RecordBatch, wanted: tuple[str, ...]) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.is_in(batch.column("label"), pa.array(wanted, pa.string())).to_numpy(
        zero_copy_only=False
    )
    return mask


def _copy(store: Store, piece: TokenSlice, out: IO[bytes]) -> None:
    with piece.tokens.open_path(store).open("rb") as source:
        source.seek(piece.offset)
        for at in range(0, piece.length, CHUNK_BYTES):
            out.write(source.read(min(CHUNK_BYTES, piece.length - at)))


def _gather(store: Store, piece: TokenSlice, chosen: DocumentChoice, out: IO[bytes]) -> None:
    """Copy a byte range of the chosen documents' tokens to `out`.

    `piece` has the offset and length of the range, which count only the bytes of chosen documents.
    """
    tokens, kept = _lengths(store, chosen)
    if not piece.length:
        return
    data = np.memmap(piece.tokens.open_path(store), dtype=np.uint8, mode="r")
    width = len(data) // int(tokens.sum())
    ends = np.cumsum(tokens) * width
    begins, ends = (ends - tokens * width)[kept], ends[kept]
    reached = np.cumsum(ends - begins)  # bytes of the chosen documents up to the end of each
    first = int(np.searchsorted(reached, piece.offset, side="right"))
    last = int(np.searchsorted(reached, piece.offset + piece.length, side="left")) + 1
    begins, ends, reached = begins[first:last].copy(), ends[first:last].copy(), reached[first:last]
    begins[0] = ends[0] - (reached[0] - piece.offset)
    ends[-1] -= reached[-1] - (piece.offset + piece.length)
    for begin, end in _runs(begins, ends):
        for at in range(begin, end, CHUNK_BYTES):
            out.write(data[at : min(at + CHUNK_BYTES, end)].data)


def _lengths(store: Store, chosen: DocumentChoice) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the number of tokens of every document of a part, and a mask of the chosen documents."""
    assert chosen.labels is not None
    tokens = [batch.column("tokens").to_numpy() for batch in iter_batches(store, chosen.lengths, ["tokens"])]
    kept = [_matching(batch, chosen.wanted) for batch in iter_batches(store, chosen.labels, ["label"])]
    return np.concatenate([np.empty(0, np.int64), *tokens]), np.concatenate([np.empty(0, np.bool_), *kept])


def _runs(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield byte ranges after joining adjacent ranges, so that consecutive documents of a stream are copied at once."""
    breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    firsts, lasts = np.append(0, breaks), np.append(breaks, len(begins)) - 1
    yield from zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True)


#: Most streams of a bucket: each is a unit of the mixture and has its own files.
MAX_STREAMS = 1024


@dataclass(frozen=True)
class StreamAssignment:
    """Stream with the documents that it takes from each curated part."""

    label: str
    choices: tuple[tuple[int, DocumentChoice, int, int], ...]  # part, its documents, how many, their tokens

    @property
    def tokens(self) -> int:
        return sum(tokens for *_, tokens in self.choices)

    @property
    def documents(self) -> int:
        return sum(documents for *_, documents, _ in self.choices)


def assign_streams(
    ctx: Context,
    bucket: str,
    params: Shards,
    curated: Manifest,
    lengths: list[Part],
    sidecars: Mapping[str, Manifest],
) -> list[StreamAssignment]:
    """Return the bucket's streams with their documents, in order of label."""
    if not params.axes:
        whole = tuple((i, DocumentChoice(part), part.rows, int(part.stats["tokens"])) for i, part in enumerate(lengths))
        return [StreamAssignment("", whole)]
    labels = staged_tokens.run(ctx, bucket, params.axes, curated, lengths, sidecars)
    stream_of = _merged([part.stats["streams"] for part in labels], params.min_stream_tokens)
    if len(set(stream_of.values())) > MAX_STREAMS:
        raise RecipeError(
            f"shards.axes splits {bucket} into too many streams",
            found=f"{len(set(stream_of.values()))} streams by {', '.join(params.axes)}",
            expected=f"at most {MAX_STREAMS}",
            remedy="raise shards.min_stream_tokens, or use fewer axes",
        )
    made = []
    for stream in sorted(set(stream_of.values())):
        choices = []
        for number, (own_lengths, own_labels) in enumerate(zip(lengths, labels, strict=True)):
            own = {label: count for label, count in own_labels.stats["streams"].items() if stream_of[label] == stream}
            if own:
                documents = sum(count["documents"] for count in own.values())
                tokens = sum(count["tokens"] for count in own.values())
                choices.append((number, DocumentChoice(own_lengths, own_labels, tuple(sorted(own))), documents, tokens))
        made.append(StreamAssignment(stream, tuple(choices)))
    return made


def _merged(counted: Sequence[Mapping[str, Mapping[str, int]]], least: int) -> dict[str, str]:
    """Return the stream of every label: the label itself, or `other` if it has fewer than `least` tokens."""
    totals: dict[str, int] = {}
    for part in counted:
        for label, count in part.items():
            totals[label] = totals.get(label, 0) + count["tokens"]
    return {label: label if tokens >= least else OTHER for label, tokens in totals.items()}
