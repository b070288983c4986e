"""Near duplicates: MinHash-LSH over shingles, every candidate verified, over all buckets.

    signatures   per part, once and for all         here; `shingles`, text/minhash
    index        per part, once and for all         `index`
    candidates   documents that share a band key    `candidates`
    verify       similarity, clusters               `verify`
    sidecar      per part: `clusters.SCHEMA`        `clusters`

A text of fewer words than a shingle is one shingle of all its words: it merges only with a text of the same
words in the same order. A text without words is never a candidate. Merging is transitive (single linkage).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, renamed, run_items
from plinth.corpus.dedup import clusters, document_numbers, exact, rank_table, shuffle
from plinth.corpus.dedup.near import candidates, index, shingles, verify
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.corpus.dedup.run_tree import RangeReader
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store
from plinth_text.similarity.signatures import permutations

ASSET = "dedup/minhash"
VERSION = "2"
SIGNATURE_VERSION = "2"
SCHEMA = clusters.SCHEMA

#: Bytes that one verifying task should hold, and what a document's shingles cost per byte of its text: eight for
#: each word of about six.
PARTITION_BYTES, SET_BYTES_PER_BYTE = 256 * 2**20, 4 / 3
#: Documents of a verifying task, at least and at most.
PARTITION_ROWS = (1_000, 1_000_000)


def signature_schema(params: MinHash) -> pa.Schema:
    """One column: the minima of all permutations as little-endian uint32; null for a text without words."""
    return pa.schema([pa.field("signature", pa.binary(4 * params.bands * params.rows))])


def signatures(ctx: Context, bucket_name: str, params: MinHash, documents: Manifest) -> Manifest:
    """MinHash signatures of all documents of a bucket.

    Args:
        params: threshold and verification are not used here.

    Returns:
        Manifest of `part-*` with `signature_schema(params)`, aligned with the documents.
    """
    step = Step(
        name="minhash/signatures", version=SIGNATURE_VERSION, params=params.signature(), libraries=fingerprint.UNICODE
    )
    asset = f"{bucket_name}/minhash"
    items = [Item((part.blob.sha256,), _Sign(part, params), part.rows) for part in documents.named("part-")]
    parts = renamed((made for (made,) in run_items(ctx, step, _sign, items, label=asset)), "part")
    stats = {
        "documents": sum(part.rows for part in parts),
        "without_words": sum(int(part.stats["without_words"]) for part in parts),
    }
    return manifest(asset, step, {f"{bucket_name}/documents": documents}, parts, stats)


@dataclass(frozen=True)
class _Sign:
    documents: Part
    params: MinHash


def _sign(store: Store, task: _Sign) -> tuple[Part, ...]:
    schema, empty = signature_schema(task.params), 0
    a, b = permutations(task.params.bands * task.params.rows, task.params.seed)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal empty
        for batch in iter_batches(store, task.documents, ["text"]):
            signed, filled = shingles.signatures(batch.column("text"), task.params, a, b)
            empty += int((~filled).sum())
            valid = pa.py_buffer(np.packbits(filled, bitorder="little").tobytes())
            values = pa.py_buffer(signed.astype("<u4", copy=False).tobytes())
            column = pa.FixedSizeBinaryArray.from_buffers(schema.field(0).type, len(signed), [valid, values])
            yield pa.RecordBatch.from_arrays([column], schema=schema)

    part = write_batches(store, task.documents.name, schema, batches())
    return (part.model_copy(update={"stats": {"without_words": empty}}),)


def run(
    ctx: Context,
    params: Dedup,
    documents: Mapping[str, Manifest],
    signatures: Mapping[str, Manifest],
    exact_duplicates: Manifest,
    *,
    quality: Mapping[str, Manifest] | None = None,
    range_rows: int = shuffle.RANGE_ROWS,
    partition_rows: int | None = None,
) -> Manifest:
    """Find near duplicates among the survivors of exact deduplication.

    Args:
        documents: `{b}/documents` by bucket.
        signatures: `{b}/minhash` by bucket, of the same parameters.
        exact_duplicates: `dedup/exact`.
        quality: `{b}/{annotation}` by bucket, of the annotation that `params.quality` names.
        range_rows: band keys one reduce task holds; bears on memory alone.
        partition_rows: documents one verifying task holds; bears on memory alone.

    Returns:
        Manifest of `{b}/part-*` with `clusters.SCHEMA`.

    Raises:
        IntegrityError: sidecars do not belong to the documents; a part is damaged or not sorted.
    """
    places = slots(documents, signatures=signatures, exact=exact_duplicates)
    layout = document_numbers.layout(places)
    branches, identity = index.bands(ctx, params.minhash, places), index.identity(params.minhash)
    reader = RangeReader.over(ctx.store, index.BANDS, branches, layout, identity)
    mask = document_numbers.mask(ctx, [(slot.sides["exact"], "survivor") for slot in places])
    ranks = rank_table.build(ctx, params, documents, exact.text_lengths(ctx, places), quality)
    rows = partition_rows or _partition_rows(params.minhash, exact_duplicates)
    found = candidates.find(ctx, ASSET, candidates.groups(ctx, reader, mask, range_rows), layout.documents, rows)
    read = [one.documents if params.minhash.verify == "text" else one.sides["signatures"] for one in places]
    how = verify.Comparison.of(ASSET, params.minhash)
    linked = verify.cluster(ctx, how, params.survivors(), read, layout, found, ranks)
    members = clusters.gather(ctx, ASSET, linked, layout)
    step = Step(name=f"{ASSET}/sidecar", version=VERSION)
    items = [
        Item(
            (slot.documents.blob.sha256, slot.sides["exact"].blob.sha256, mine.blob.sha256),
            _Emit(slot, mine),
            slot.documents.rows,
        )
        for slot, mine in zip(places, members, strict=True)
    ]
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    inputs |= {f"{bucket}/minhash": one for bucket, one in signatures.items()} | {exact.ASSET: exact_duplicates}
    inputs |= {f"{b}/{one.asset.split('/', 1)[1]}": one for b, one in (quality or {}).items()}
    step = Step(name=ASSET, version=VERSION, params={"minhash": params.minhash.resolved(), **params.survivors()})
    return manifest(ASSET, step, inputs, parts, {**clusters.summary(parts), "candidates": found.documents})


def _partition_rows(params: MinHash, exact_duplicates: Manifest) -> int:
    """How many documents' sets or signatures fit into `PARTITION_BYTES`."""
    considered = max(1, int(exact_duplicates.stats["considered"]))
    size = SET_BYTES_PER_BYTE * int(exact_duplicates.stats["considered_bytes"]) / considered
    if params.verify == "signature":
        size = 4 * params.bands * params.rows
    return int(np.clip(PARTITION_BYTES / (size + 1), *PARTITION_ROWS))


@dataclass(frozen=True)
class _Emit:
    slot: Slot
    members: Part


def _sidecar(store: Store, task: _Emit) -> tuple[Part, ...]:
    sources = ((task.slot.documents, ["id"]), (task.slot.sides["exact"], ["survivor", "text_bytes"]))
    rows: Iterator[tuple[pa.Array, pa.Array, pa.Array]] = (
        (ids.column("id"), one.column("survivor"), one.column("text_bytes"))
        for ids, one in iter_aligned(store, *sources)
    )
    return (clusters.write_sidecar(store, task.slot.documents.name, task.members, rows),)
