"""Near duplicates: MinHash-LSH over word n-grams, every candidate verified, over all buckets.

    signatures   per part, once and for all        text/minhash
    candidates   pairs that share a band key       dedup/candidates
    verify       true Jaccard, union-find          dedup/verify
    sidecar      per part: `clusters.SCHEMA`       dedup/clusters

A text of fewer words than a shingle is one shingle of all its words: it merges only with a text of the same
words in the same order. A text without words is never a candidate. Merging is transitive (single linkage).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth.compute.stage import Item, manifest, run_items
from plinth.context import Context
from plinth.corpus.dedup import candidates, clusters, shuffle, verify
from plinth.corpus.sidecars import Slot, slots
from plinth.recipe.dedup import Dedup, MinHash
from plinth.recipe.spans import LATER_STAGES
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store
from plinth.text import minhash

ASSET = "dedup/minhash"
VERSION = "1"
SIGNATURE_VERSION = "1"
SCHEMA = clusters.SCHEMA


def signature_schema(params: MinHash) -> pa.Schema:
    """One column: the minima of all permutations as little-endian uint32; null for a text without words."""
    return pa.schema([pa.field("signature", pa.binary(4 * params.bands * params.rows))])


def signatures(ctx: Context, bucket_name: str, params: MinHash, documents: Manifest) -> Manifest:
    """MinHash signatures of all documents of a bucket.

    Args:
        params: the threshold does not matter here.

    Returns:
        Manifest of `part-*` with `signature_schema(params)`, aligned with the documents.
    """
    identity = {
        "shingle_words": params.shingle_words,
        "permutations": params.bands * params.rows,
        "seed": params.seed,
    }
    step = Step(name="minhash/signatures", version=SIGNATURE_VERSION, params=identity)
    asset = f"{bucket_name}/minhash"
    items = [Item((part.blob.sha256,), _Sign(part, params), part.rows) for part in documents.named("part-")]
    parts = [made[0] for made in run_items(ctx, step, _sign, items, label=asset)]
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
    a, b = minhash.permutations(task.params.bands * task.params.rows, task.params.seed)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal empty
        for batch in iter_batches(store, task.documents, ["text"]):
            signed, filled = minhash.signatures(batch.column("text"), task.params.shingle_words, a, b)
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
    exact: Manifest,
    *,
    range_rows: int = shuffle.RANGE_ROWS,
) -> Manifest:
    """Find near duplicates among the survivors of exact deduplication.

    Args:
        documents: `{b}/documents` by bucket.
        signatures: `{b}/minhash` by bucket, of the same parameters.
        exact: `dedup/exact`.
        range_rows: band keys one reduce task holds; bears on memory alone.

    Returns:
        Manifest of `{b}/part-*` with `clusters.SCHEMA`.

    Raises:
        IntegrityError: sidecars do not belong to the documents; a part is damaged or not sorted.
    """
    places = slots(documents, signatures=signatures, exact=exact)
    found = candidates.find(ctx, params.minhash, places, VERSION, range_rows)
    members = verify.cluster(ctx, params, places, found, VERSION)
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json", exclude=LATER_STAGES))
    items = [
        Item(
            (slot.documents.blob.sha256, slot.sides["exact"].blob.sha256, str(slot.number), members.blob.sha256),
            _Emit(slot, members),
            slot.documents.rows,
        )
        for slot in places
    ]
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    inputs |= {f"{bucket}/minhash": one for bucket, one in signatures.items()} | {"dedup/exact": exact}
    candidate_pairs = sum(own.pairs.rows for own in found)
    return manifest(ASSET, step, inputs, parts, {**clusters.summary(parts), "candidate_pairs": candidate_pairs})


@dataclass(frozen=True)
class _Emit:
    slot: Slot
    members: Part


def _sidecar(store: Store, task: _Emit) -> tuple[Part, ...]:
    sources = ((task.slot.documents, ["id"]), (task.slot.sides["exact"], ["survivor", "text_bytes"]))
    rows = (
        (ids.column("id"), exact.column("survivor"), exact.column("text_bytes"))
        for ids, exact in iter_aligned(store, *sources)
    )
    return (clusters.write_sidecar(store, task.slot.documents.name, task.slot.number, (task.members,), rows),)
