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
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.stage import Item, manifest, run_items
from plinth.context import Context
from plinth.errors import IntegrityError, RecipeError
from plinth.recipe import tokens as recipe
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store
from plinth.tokens import axes, cut, encode, staged, tokenizer
from plinth.tokens.cut import Chosen, IndexTask, Slice, even
from plinth.tokens.index import INDEX_SCHEMA
from plinth.tokens.staged import Kept, Staged
from plinth.tokens.streams import OTHER

__all__ = ["INDEX_SCHEMA", "VERSION", "even", "run"]

VERSION = "2"
INDEX = Step(name="tokens.shards.index", version=VERSION)
CUT = Step(name="tokens.shards.cut", version="1")

#: Shards that are cut before the tokens that only they needed leave staging.
GROUP_SHARDS = 64
#: Documents of an index part, 40 bytes each: parts of 160 MiB. A step of a thousand sequences touches nearly all parts
#: of a stream, and those of 10^12 tokens should be hundreds.
INDEX_DOCUMENTS = 2**22
#: Every stream is a unit of the mixture and has files of its own.
MAX_STREAMS = 1024


@dataclass(frozen=True)
class _Tokenise:
    bucket: str
    tokenizer: Blob
    curated: Part
    dtype: str
    end_of_text: int
    staged: Staged | None = None  # what is known of it already
    kept: Kept | None = None


@dataclass(frozen=True)
class _Stream:
    """What each curated part gives to a stream."""

    label: str
    choices: tuple[tuple[int, Chosen, int, int], ...]  # part, its documents, how many, their tokens

    @property
    def tokens(self) -> int:
        return sum(tokens for *_, tokens in self.choices)

    @property
    def documents(self) -> int:
        return sum(documents for *_, documents, _ in self.choices)


def run(
    ctx: Context,
    bucket: str,
    params: recipe.Shards,
    trained: Manifest,
    curated: Manifest,
    sides: Mapping[str, Manifest] | None = None,
) -> Manifest:
    """Tokenise a bucket's training documents and cut their streams into shards.

    Args:
        sides: manifests of this bucket by stage, those that `axes.sidecars_of(params.axes)` names.

    Parts of a stream: `shard-*.bin` (stats: start, tokens) and `index-*.arrow` (`INDEX_SCHEMA`; stats: start,
    tokens), below `{label}/` where there are axes. Stats: documents, tokens, text_bytes, dtype, bytes_per_token (width
    of a token in a shard), end_of_text, vocab_size, tokenizer (SHA-256 of its file); with axes also `axes` and
    `streams` (documents and tokens by label).

    Raises:
        RecipeError: the axes make too many streams, or cannot be read as words.
    """
    asset, sides = f"{bucket}/shards", dict(sides or {})
    (file,) = trained.named(tokenizer.FILE)
    dtype, end_of_text = encode.token_dtype(trained.stats["vocab_size"]), trained.stats["end_of_text"]
    tasks = [_Tokenise(bucket, file.blob, part, dtype, end_of_text) for part in curated.named("part-")]
    locals_ = _tokenise(ctx, asset, tasks)
    streams = _streams(ctx, bucket, params, curated, locals_, sides)
    parts = [*_cuts(ctx, asset, params, tasks, locals_, streams), *_indexes(ctx, asset, streams)]
    stats = {
        "documents": sum(stream.documents for stream in streams),
        "tokens": sum(stream.tokens for stream in streams),
        "text_bytes": sum(part.stats["text_bytes"] for part in locals_),
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
    return manifest(asset, step, inputs | {f"{bucket}/{name}": made for name, made in sides.items()}, parts, stats)


def _tokenise(ctx: Context, asset: str, tasks: Sequence[_Tokenise]) -> list[Part]:
    """The local index of every curated part: ids and tokens; stats: tokens, text_bytes, and `stream`, the bytes that
    its tokens are."""
    items = [Item((task.tokenizer.sha256, task.curated.blob.sha256), task, task.curated.rows) for task in tasks]
    facts = {"dtype": tasks[0].dtype, "end_of_text": tasks[0].end_of_text} if tasks else {}
    step = Step(name="tokens.shards.tokenise", version="2", params=facts)
    return [parts[0] for parts in run_items(ctx, step, _tokens, items, label=f"{asset}: tokenise")]


def _tokens(store: Store, task: _Tokenise) -> tuple[Part, ...]:
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


def _streams(
    ctx: Context,
    bucket: str,
    params: recipe.Shards,
    curated: Manifest,
    locals_: list[Part],
    sides: Mapping[str, Manifest],
) -> list[_Stream]:
    """The bucket's streams in order of label."""
    if not params.axes:
        whole = tuple((i, Chosen(part), part.rows, int(part.stats["tokens"])) for i, part in enumerate(locals_))
        return [_Stream("", whole)]
    labels = axes.run(ctx, bucket, params.axes, curated, locals_, sides)
    stream_of = _merged([part.stats["streams"] for part in labels], params.min_stream_tokens)
    if len(set(stream_of.values())) > MAX_STREAMS:
        raise RecipeError(
            f"shards.axes cut {bucket} into too many streams",
            found=f"{len(set(stream_of.values()))} streams by {', '.join(params.axes)}",
            expected=f"at most {MAX_STREAMS}",
            remedy="raise shards.min_stream_tokens, or take fewer axes",
        )
    made = []
    for stream in sorted(set(stream_of.values())):
        choices = []
        for number, (local, one) in enumerate(zip(locals_, labels, strict=True)):
            own = {label: count for label, count in one.stats["streams"].items() if stream_of[label] == stream}
            if own:
                documents = sum(count["documents"] for count in own.values())
                tokens = sum(count["tokens"] for count in own.values())
                choices.append((number, Chosen(local, one, tuple(sorted(own))), documents, tokens))
        made.append(_Stream(stream, tuple(choices)))
    return made


def _merged(counted: Sequence[Mapping[str, Mapping[str, int]]], least: int) -> dict[str, str]:
    """The stream of every label: itself, or `other` where its tokens in all parts are too few."""
    totals: dict[str, int] = {}
    for part in counted:
        for label, count in part.items():
            totals[label] = totals.get(label, 0) + count["tokens"]
    return {label: label if tokens >= least else OTHER for label, tokens in totals.items()}


def _cuts(
    ctx: Context,
    asset: str,
    params: recipe.Shards,
    tasks: Sequence[_Tokenise],
    locals_: Sequence[Part],
    streams: Sequence[_Stream],
) -> list[Part]:
    """The shards of every stream, named and placed."""
    if not tasks:
        return []
    width = np.dtype(tasks[0].dtype).itemsize
    known = [Staged(task.bucket, Blob(**part.stats["stream"])) for task, part in zip(tasks, locals_, strict=True)]
    items, named = [], []
    for stream in streams:
        whole = [Slice(known[i], 0, n * width, one if one.labels else None) for i, one, _, n in stream.choices]
        sizes = even(stream.tokens, params.tokens_per_shard)
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
    ctx: Context, asset: str, tasks: Sequence[_Tokenise], known: Sequence[Staged], items: Sequence[Item]
) -> list[Part]:
    """Cut by groups: tokens that have left staging come back before a group that needs them, and go after the last."""
    missing = [item for item in items if ctx.cache.get(CUT.key(item.inputs)) is None]
    groups = [missing[at : at + GROUP_SHARDS] for at in range(0, len(missing), GROUP_SHARDS)]
    needs = [{piece.tokens for item in group for piece in item.task} for group in groups]
    last = {one: at for at, needed in enumerate(needs) for one in needed}
    held: dict[str, Kept] | None = None
    for at, (group, needed) in enumerate(zip(groups, needs, strict=True)):
        absent = [
            (task, one) for task, one in zip(tasks, known, strict=True) if one in needed and not one.there(ctx.store)
        ]
        if absent and held is None:
            held = staged.kept(ctx, asset, tasks[0].tokenizer.sha256, tasks[0].dtype)
        back = [replace(task, staged=one, kept=(held or {}).get(task.curated.blob.sha256)) for task, one in absent]
        for _ in ctx.engine.map(partial(_bring_back, ctx.workspace.store), back):
            pass
        run_items(ctx, CUT, cut.cut, group, label=f"{asset}: cut")
        for one in needed:
            if last[one] == at:
                one.drop(ctx.store)
    for one in known:
        if one not in last:
            one.drop(ctx.store)
    return [parts[0] for parts in run_items(ctx, CUT, cut.cut, items, label=f"{asset}: cut")]


def _bring_back(store_root: Path, task: _Tokenise) -> None:
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


def _indexes(ctx: Context, asset: str, streams: Sequence[_Stream]) -> list[Part]:
    """The index of every stream, in parts of whole curated parts."""
    items, names = [], []
    for stream in streams:
        start = 0
        for i, group in enumerate(_grouped(stream)):
            pieces = tuple((number, chosen) for number, chosen, *_ in group)
            keys = tuple(key for n, one in pieces for key in (one.local.blob.sha256, str(n), *filter(None, [one.key])))
            items.append(Item((*keys, str(start)), IndexTask(pieces, start), sum(rows for _, _, rows, _ in group)))
            names.append(f"{stream.label}/index-{i:05d}.arrow" if stream.label else f"index-{i:05d}.arrow")
            start += sum(tokens for *_, tokens in group)
    made = run_items(ctx, INDEX, cut.index, items, label=f"{asset}: index")
    return [parts[0].model_copy(update={"name": name}) for parts, name in zip(made, names, strict=True)]


def _grouped(stream: _Stream) -> Iterator[list[tuple[int, Chosen, int, int]]]:
    group: list[tuple[int, Chosen, int, int]] = []
    for choice in stream.choices:
        group.append(choice)
        if sum(rows for _, _, rows, _ in group) >= INDEX_DOCUMENTS:
            yield group
            group = []
    if group:
        yield group
