"""Near duplicates over all buckets, by MinHash-LSH over shingles; every candidate pair is verified.

    signatures   per part, computed once            here; `linking`, text/minhash
    index        per part, computed once            `index`
    candidates   documents that share a band key    `candidates`, `crowds`
    verify       similarity, clusters               `linking`, `large`
    sidecar      per part: `clusters.SCHEMA`        `clusters`

A text with fewer words than a shingle gets one shingle with all its words. Such a text is a duplicate only of texts
that have the same words in the same order. A text without words is never a candidate. Clusters are built by single
linkage: if A is similar to B and B to C, all three are in one cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, renamed, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, exact, sorted_runs
from plinth.corpus.dedup.near import accuracy, candidates, components, crowds, index, large, linking, payloads, sample
from plinth.corpus.dedup.near.candidates import PIECE_ROWS, CandidatePairs
from plinth.corpus.dedup.near.crowds import CandidatePiece
from plinth.corpus.dedup.near.linking import LOOK_UP, MARK, SETS, SIGNATURES, SIMILARITIES, KnownSimilarities, Links
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.corpus.dedup.run_tree import RangeReader, keyed
from plinth.corpus.sidecars import Column, Slot, SlotNumbers, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64
from plinth_text.similarity import permutations

ASSET = "dedup/minhash"
VERSION = "3"
SIGNATURE_VERSION = "2"
SCHEMA = clusters.SCHEMA

#: Bytes that one verifying task should hold on average, and half of what it holds at most.
PARTITION_BYTES = 256 * 2**20
#: Documents of a verifying task, at least and at most.
PARTITION_ROWS = (1_000, PIECE_ROWS)


def signature_schema(params: MinHash) -> pa.Schema:
    """Return the schema of a part of signatures. Its only column contains the minima of all permutations as
    little-endian uint32 numbers, or null for a text without words."""
    return pa.schema([pa.field("signature", pa.binary(4 * params.bands * params.rows))])


def signatures(ctx: Context, bucket_name: str, params: MinHash, documents: Manifest) -> Manifest:
    """Return the MinHash signatures of all documents of a bucket.

    Args:
        params: MinHash parameters; `threshold` and `verify` have no effect on signatures.

    Returns:
        Manifest of `part-*` with `signature_schema(params)`, aligned with the documents.
    """
    step = Step(
        name="minhash/signatures", version=SIGNATURE_VERSION, params=params.signature(), libraries=fingerprint.UNICODE
    )
    asset = f"{bucket_name}/minhash"
    items = [Item((part.blob.sha256,), _Sign(part, params), part.rows) for part in documents.named("part-")]
    parts = renamed((made for (made,) in run_items(ctx, step, _sign, items, label=asset, unit="documents")), "part")
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
            signed, filled = linking.signatures(batch.column("text"), task.params, a, b)
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
    range_rows: int = sorted_runs.RANGE_ROWS,
    partition_rows: int | None = None,
    span: int = components.SPAN,
) -> Manifest:
    """Find near duplicates among the survivors of exact deduplication.

    Args:
        documents: `{b}/documents` by bucket.
        signatures: `{b}/minhash` by bucket, computed with the same parameters.
        exact_duplicates: manifest of `dedup/exact`.
        quality: `{b}/{annotation}` by bucket, for the annotation named by `params.quality`.
        range_rows: band keys per reduce task; affects memory use only.
        partition_rows: documents, or rows of a large component, per verification task; affects memory use only.
        span: documents per task that connects candidates; affects memory use only.

    Returns:
        Manifest of `{b}/part-*` with `clusters.SCHEMA`.

    Raises:
        IntegrityError: sidecars do not belong to the documents, or a part is damaged or not sorted.
    """
    places = slots(documents, signatures=signatures, exact=exact_duplicates)
    layout = sidecars.layout(places)
    branches, identity = index.bands(ctx, params.minhash, places), index.identity(params.minhash)
    reader = RangeReader.over(ctx.store, index.BANDS, branches, layout, identity)
    mask = sidecars.mask(ctx, [(slot.sides["exact"], "survivor") for slot in places])
    lengths = exact.text_lengths(ctx, places)
    ranks = clusters.build(ctx, params, documents, lengths, quality)
    rows = partition_rows or _partition_rows(params.minhash, exact_duplicates)
    groups = candidates.groups(ctx, reader, mask, range_rows)
    weights = payloads.weights(ctx, params.minhash, lengths, 2 * PARTITION_BYTES // rows)
    found = candidates.find(ctx, ASSET, groups, layout.documents, rows, span, weights)
    read = [one.documents if params.minhash.verify == "text" else one.sides["signatures"] for one in places]
    how = Comparison.of(ASSET, params.minhash)
    linked, drawn = cluster(ctx, Clustering(how, params.survivors(), tuple(read), layout, found, ranks))
    members = clusters.gather(ctx, ASSET, linked, layout)
    below, texts = sample.limit(found.documents), [slot.documents for slot in places]
    rates = accuracy.measure(ctx, ASSET, params.minhash, drawn, texts, layout, below)
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
    stats = {**clusters.summary(parts), "candidates": found.documents, "accuracy": rates}
    return manifest(ASSET, step, inputs, parts, stats)


def _partition_rows(params: MinHash, exact_duplicates: Manifest) -> int:
    """Return the number of documents whose shingle sets or signatures fit into `PARTITION_BYTES`."""
    considered = max(1, int(exact_duplicates.stats["considered"]))
    size = payloads.set_bytes(params) * int(exact_duplicates.stats["considered_bytes"]) / considered
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


# The pairs of every component are compared; clusters are built from the pairs that pass.
#
#     plan      per piece: whose texts are needed, when the similarity cache has some pairs
#     payload   per part: their shingle sets or signatures (`payloads`)
#     link      per piece: comparison and union-find (`linking`); the members of its clusters
#     large     clusters of the components that have several pieces (`large`)
#
# By `text` the similarity is the true Jaccard similarity of the shingle sets. By `signature` it is the share of
# equal minima, with a standard error of sqrt(J (1 - J) / K) for K minima: for corpora whose text is gone, or where
# that is good enough.


VERIFY_VERSION, LINK_VERSION = "1", "3"


@dataclass(frozen=True)
class Comparison:
    """Method to compare candidate documents.

    Args:
        asset: name of the asset that the stage writes.
        what: `SETS`, `SIGNATURES` or `COSINES` of `linking`.
        similarity: parameters that the similarity of two documents depends on.
        threshold: minimum similarity to link two documents.
        carry: step that writes the compared values.
        values: function that reads the values of given rows of a part.
        minima: length of a signature.
        sampled: True if documents are drawn to measure the accuracy of removal.
    """

    asset: str
    what: int
    similarity: Mapping[str, Any]
    threshold: float
    carry: Step
    values: payloads.ValuesFn
    minima: int = 0
    sampled: bool = False

    @classmethod
    def of(cls, asset: str, params: MinHash) -> Comparison:
        """Return the comparison of shingle sets or of signatures, depending on `params.verify`."""
        similarity, text = params.similarity(), params.verify == "text"
        carry = Step(
            name=f"{asset}/{params.verify}",
            version=payloads.PAYLOADS_VERSION,
            params=similarity,
            libraries=fingerprint.UNICODE,
        )
        values, minima = payloads.values_of(params), 0 if text else params.bands * params.rows
        return cls(asset, SETS if text else SIGNATURES, similarity, params.threshold, carry, values, minima, True)


@dataclass(frozen=True)
class Clustering:
    """Candidates to compare, and the data that their clusters depend on.

    Args:
        how: method to compare two documents.
        survivors: parameters that the choice of survivors depends on.
        read: by part of documents, the part with the data to compare.
        layout: numbers of the documents.
        found: candidates to compare.
        ranks: ids and ranks of documents, from `clusters.build`.
    """

    how: Comparison
    survivors: Mapping[str, Any]
    read: tuple[Part, ...]
    layout: SlotNumbers
    found: CandidatePairs
    ranks: Column

    @property
    def below(self) -> int:
        """Hash below which a document is drawn to measure the accuracy of removal."""
        return sample.limit(self.found.documents) if self.how.sampled else 0


def cluster(ctx: Context, task: Clustering) -> tuple[list[Part], list[Part]]:
    """Return the documents of all clusters of similar documents, as runs sorted by document number, and the documents
    that were drawn to measure the accuracy of removal."""
    asset, found, ranks, below = task.how.asset, task.found, task.ranks, task.below
    pieces, near, digest = crowds.pieces(ctx, asset, found, ranks, below)
    members, edges, drawn = list[Part](), list[Part](), list[Part]()
    linked = _compare(ctx, task, [_Compared(piece, ranks, task.how.threshold) for piece in pieces], digest)
    for piece, (own, _, *sampled) in zip(pieces, linked, strict=True):
        (edges if piece.is_partial else members).append(own)
        (near if piece.is_partial else drawn).extend(sampled)
    if edges:
        mine = large.members(ctx, asset, edges, task.layout.documents, found, ranks)
        members += mine
        if below:
            drawn.append(large.draw(ctx, asset, found, near, mine, ranks, below))
    return members, drawn


def _compare(ctx: Context, task: Clustering, tasks: Sequence[_Compared], digest: str) -> list[tuple[Part, ...]]:
    """Compare the documents of all pieces. `digest` identifies the rows of the pieces."""
    how, found = task.how, task.found
    key = keyed((*found.components.members, task.ranks.listing, *task.read))
    step = Step(name=f"{how.asset}/link", version=LINK_VERSION, params={**how.similarity, **task.survivors})
    # The cache changes how much work a task is, and not its members: it is not among their inputs.
    inputs = [(*one.key, digest, key) for one in tasks]
    made = [ctx.cache.get(step.key(one)) for one in inputs]
    if all(made):
        return [parts for parts in made if parts]
    definition = {"version": VERIFY_VERSION, **how.similarity}
    known = linking.recall(ctx, definition)
    tasks = [replace(one, known=known) for one in tasks]
    needed = _needed(ctx, tasks, digest, key, task.layout) if known else None
    carried = payloads.carry(ctx, how.carry, task.read, how.values, task.layout, found, needed)
    items = [
        Item(keys, _Link(one, carried, how.what, how.minima, task.below), found.documents // len(tasks))
        for keys, one in zip(inputs, tasks, strict=True)
    ]
    linked = run_items(ctx, step, _link, items, label=f"{how.asset} verify")
    linking.remember(ctx, definition, known, [fresh for _, fresh, *_ in linked])
    return linked


def _needed(ctx: Context, tasks: Sequence[_Compared], digest: str, key: str, layout: SlotNumbers) -> list[Part]:
    step = Step(name="dedup/minhash/plan", version=VERIFY_VERSION)
    items = [Item((*task.key, *(task.known.keys if task.known else ()), digest, key), task) for task in tasks]
    made = [parts[0] for parts in run_items(ctx, step, _plan, items, label="dedup/minhash plan")]
    return clusters.gather(ctx, "dedup/minhash plan", made, layout, payloads.NEEDED, 1)


@dataclass(frozen=True)
class _Compared:
    piece: CandidatePiece
    ranks: Column
    threshold: float
    known: KnownSimilarities | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Texts that identify the piece and its threshold."""
        return self.piece.name, str(self.threshold)


def _open(store: Store, task: _Compared) -> tuple[U64, U64, Links]:
    """Return the document numbers of a piece, their ids and ranks, and the links that follow from cached
    similarities."""
    key, at = task.piece.read(store)
    documents = np.unique(at)
    ranks = task.ranks.take(store, documents)
    high, low = np.ascontiguousarray(ranks[:, 0]), np.ascontiguousarray(ranks[:, 1])
    node = np.searchsorted(documents, at).astype(np.int64)
    links = Links(key, node, high, low, task.threshold, task.piece.all_pairs)
    if task.known:
        links.walk(LOOK_UP, known=task.known.open(store))
    return documents, ranks, links


def _plan(store: Store, task: _Compared) -> tuple[Part, ...]:
    documents, _, links = _open(store, task)
    links.walk(MARK)
    return (sorted_runs.write(store, "needed.run", payloads.NEEDED, [(documents[links.needed],)], 1),)


@dataclass(frozen=True)
class _Link:
    compared: _Compared
    carried: payloads.Payloads
    what: int
    minima: int
    below: int


def _link(store: Store, task: _Link) -> tuple[Part, ...]:
    piece, (documents, ranks, links) = task.compared.piece, _open(store, task.compared)
    carried = task.carried
    stored = carried.of(store, documents) if piece.is_partial else carried.in_range(store, piece.low, piece.high)
    with payloads.load(store, stored, documents, task.minima) as payload:
        pairs, values = links.walk(task.what, payload=payload)
        order = sorted_runs.in_order(pairs, values)
        fresh = sorted_runs.write(store, "facts.run", SIMILARITIES, [(pairs[order], values[order])], 2)
        if piece.is_partial:
            return _partial(store, task, documents, links, fresh)
        members = clusters.write_members(store, documents, links.roots(), ranks)
        if not task.below:
            return members, fresh
        survivors, sets = _survivors(store, members, documents, links), payload if task.what == SETS else None
        return members, fresh, sample.draw(links, documents, survivors, task.below, sets).write(store)


def _partial(store: Store, task: _Link, documents: U64, links: Links, fresh: Part) -> tuple[Part, ...]:
    connected = large.write_connected(store, documents, links.roots())
    if not task.below or task.compared.piece.crowd:  # rows near drawn documents of a crowd are found with its order
        return connected, fresh
    key, node = sample.surroundings(links, task.below)
    return connected, fresh, sample.write_near(store, key, documents[node])


def _survivors(store: Store, members: Part, documents: U64, links: Links) -> I64:
    """Return, for each document of a partition, the index of the document that is kept from its cluster."""
    with sorted_runs.SortedRun(store, members, clusters.MEMBERS) as opened:
        at, _, _, packed = opened.all()
    survivor = np.arange(documents.size)
    mine = np.searchsorted(documents, at)
    kept = mine[packed & np.uint64(1) == 1]
    of_root = np.zeros(documents.size, dtype=np.int64)
    of_root[links.parent[kept]] = kept
    survivor[mine] = of_root[links.parent[mine]]
    return survivor
