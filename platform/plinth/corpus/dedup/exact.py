"""Exact duplicates over all buckets: texts that are equal except for case and white space.

    digest    per part: 16 bytes of SHA-256 of each normalized text, sorted, and the text's length; computed once
    mask      per part: the documents that the policy keeps
    group     per range of digests: clusters of kept documents with equal digests, and the survivor of each cluster
    sidecar   per part: the columns of `clusters.SCHEMA`

If the policy changes, only the digests are compared again; no text is read. The stage needs no more memory than one
part or one range of digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, sorted_runs
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.sidecars import Column, Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_table
from plinth.storage.store import Store
from plinth_text.arrays import U64
from plinth_text.unicode import digests, utf8

ASSET = "dedup/exact"
VERSION = "2"
SCHEMA = clusters.SCHEMA
DIGESTS = "digests"

_LENGTHS = pa.schema([pa.field("text_bytes", pa.int64(), nullable=False)])


def run(
    ctx: Context,
    params: Dedup,
    documents: Mapping[str, Manifest],
    policies: Mapping[str, Manifest],
    *,
    quality: Mapping[str, Manifest] | None = None,
    range_rows: int = sorted_runs.RANGE_ROWS,
) -> Manifest:
    """Find exact duplicates among the documents that the policies keep.

    Args:
        params: parameters of which `keep`, `quality` and `prefer` determine the survivor.
        documents: `{b}/documents` by bucket.
        policies: `{b}/policy` by bucket.
        quality: `{b}/{annotation}` by bucket, for the annotation named by `params.quality`.
        range_rows: rows per reduce task; affects memory use only.

    Returns:
        Manifest of `{b}/part-*` with `clusters.SCHEMA`.

    Raises:
        IntegrityError: a policy does not belong to its documents, or a part is damaged.
    """
    places = slots(documents, policy=policies)
    lengths = text_lengths(ctx, places)
    groups = _groups(ctx, params, places, clusters.build(ctx, params, documents, lengths, quality), range_rows)
    mine = clusters.gather(ctx, ASSET, groups, sidecars.layout(places))
    step = Step(name=f"{ASSET}/sidecar", version=VERSION)
    items = [
        Item(
            (slot.documents.blob.sha256, slot.sides["policy"].blob.sha256, members.blob.sha256),
            _Emit(slot, length, members),
            slot.documents.rows,
        )
        for slot, length, members in zip(places, lengths, mine, strict=True)
    ]
    parts = [
        made[0].model_copy(update={"name": slot.name})
        for slot, made in zip(places, run_items(ctx, step, _sidecar, items, label=ASSET), strict=True)
    ]
    inputs = {f"{b}/documents": m for b, m in documents.items()} | {f"{b}/policy": m for b, m in policies.items()}
    inputs |= {f"{b}/{one.asset.split('/', 1)[1]}": one for b, one in (quality or {}).items()}
    step = Step(name=ASSET, version=VERSION, params=params.survivors())
    return manifest(ASSET, step, inputs, parts, clusters.summary(parts))


def leaves(ctx: Context, places: Sequence[Slot]) -> list[Part]:
    """Return the digests of the texts in each part of documents, as a sorted run of (upper half, row, lower half)."""
    return [parts[0] for parts in _digests(ctx, places)]


def text_lengths(ctx: Context, places: Sequence[Slot]) -> list[Part]:
    """Return the `text_bytes` of each part of documents, in row order."""
    return [parts[1] for parts in _digests(ctx, places)]


def _digests(ctx: Context, places: Sequence[Slot]) -> list[tuple[Part, ...]]:
    items = [Item((slot.documents.blob.sha256,), slot.documents, slot.documents.rows) for slot in places]
    return run_items(
        ctx,
        Step(name="dedup/exact/digest", version=VERSION, libraries=fingerprint.UNICODE),
        _digest,
        items,
        label=f"{ASSET} digest",
    )


def _digest(store: Store, documents: Part) -> tuple[Part, ...]:
    found, lengths = [pa.array([], pa.binary(16))], [np.empty(0, np.int64)]
    for batch in iter_batches(store, documents, ["text"]):
        texts = batch.column("text")
        lengths.append(np.diff(utf8(texts)[1]))
        found.append(digests(texts))
    leaf = sorted_runs.write_halves(store, documents.name, DIGESTS, pa.chunked_array(found), {"version": VERSION})
    return leaf, write_table(store, documents.name, pa.table([pa.array(np.concatenate(lengths))], schema=_LENGTHS))


def _groups(ctx: Context, params: Dedup, places: Sequence[Slot], ranks: Column, range_rows: int) -> list[Part]:
    branches = tree(ctx, DIGESTS, 3, leaves(ctx, places))
    reader = RangeReader.over(ctx.store, DIGESTS, branches, sidecars.layout(places), {"version": VERSION})
    mask = sidecars.mask(ctx, [(slot.sides["policy"], "keep") for slot in places])
    step = Step(name="dedup/exact/group", version=VERSION, params=params.survivors())
    return reduce(ctx, step, _group, reader, range_rows, f"{ASSET} group", mask, (ranks,))


def _group(store: Store, task: Range) -> tuple[Part, ...]:
    made = list[Part]()
    for piece, heavy in task.pieces(store):
        if heavy:
            made += clusters.write_large(store, partial(_one_key, store, piece))
            continue
        new, (_, at, _) = piece.read(store)
        group = np.cumsum(new) - 1
        listed = np.bincount(group, minlength=1)[group] > 1 if at.size else new
        at, group = at[listed], group[listed]
        back = np.argsort(at)  # numbers of documents are unique
        ranks = task.given[0].take(store, at[back])
        made.append(clusters.write_members(store, at[back], group[back], ranks))
    return tuple(made)


def _one_key(store: Store, task: Range) -> Iterator[tuple[U64, U64, U64]]:
    """Yield the documents whose digests have the same upper half, their clusters, and their ids and ranks."""
    for _, at, low in task.chunks(store):
        order = np.argsort(at)
        yield at[order], low[order], task.given[0].take(store, at[order])


@dataclass(frozen=True)
class _Emit:
    slot: Slot
    lengths: Part
    members: Part


def _sidecar(store: Store, task: _Emit) -> tuple[Part, ...]:
    sources = ((task.slot.documents, ["id"]), (task.slot.sides["policy"], ["keep"]), (task.lengths, ["text_bytes"]))
    rows: Iterator[tuple[pa.Array, pa.Array, pa.Array]] = (
        (ids.column("id"), pc.fill_null(policy.column("keep"), False), lengths.column("text_bytes"))
        for ids, policy, lengths in iter_aligned(store, *sources)
    )
    return (clusters.write_sidecar(store, task.slot.documents.name, task.members, rows),)
