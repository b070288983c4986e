"""Bounded sample of a source that is not in the corpus yet, and the share of the sample that the corpus already has.

Files are listed without reading them. The files with the smallest keyed hashes of their names are taken until the
sample is full; only pieces are taken from files that can be split. The sample is processed up to the policy in a
scratch store. The scratch store is deleted at the end, because text that the user has not acquired must not be kept.

A document in the sample counts as a duplicate if a corpus document shares a band key with it and the agreement of their
signatures reaches the recipe's threshold. Documents that a policy or deduplication dropped are not part of the corpus.
Documents that protected sets dropped count as part of the corpus, because their near duplicates are dropped in any
bucket. With K hashes, the agreement estimates the Jaccard similarity with a standard error of at most 1 / (2 sqrt K),
0.047 for 112. This check only uses the estimate, while the pipeline verifies every pair.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus import annotate
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.documents import documents, extraction_model
from plinth.corpus.illegal_gate import IllegalGate, gate_of
from plinth.corpus.llm.parameters import Endpoint
from plinth.corpus.policy import policy
from plinth.corpus.protected.protected import REASONS as PROTECTED_REASONS
from plinth.corpus.sidecars import Slot, slots
from plinth.corpus.sources.inventory import LICENCES_FILE, Inventory, groups, wanted_suffixes
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.recipe.recipe import Corpus
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage import listing
from plinth.storage.files import SourceFile
from plinth.storage.parts import iter_aligned, iter_batches
from plinth.storage.store import Store
from plinth.storage.uris import absolute
from plinth.storage.workspace import Workspace
from plinth_text.similarity import band_keys, permutations, signatures
from plinth_text.words import ngram_hashes

#: Source bytes that one task reads.
PART_BYTES = 4 * 2**20
BUCKET = "new"
Annotators = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SourceSample:
    """Sample of a source, and the results of processing it in the pipeline.

    Args:
        files, source_bytes: number of files and bytes in the sample.
        of_files, of_bytes: number of files and bytes in the whole source.
        documents, policy: manifests in the scratch store.
        annotations: manifests by annotator, in the scratch store.
    """

    files: int
    source_bytes: int
    of_files: int
    of_bytes: int
    documents: Manifest
    policy: Manifest
    annotations: Mapping[str, Manifest]

    @property
    def share(self) -> float:
        """Share of the source's bytes that are in the sample."""
        return self.source_bytes / self.of_bytes if self.of_bytes else 1.0


@contextmanager
def scratch(ctx: Context) -> Iterator[Context]:
    """Open a context with the same engine and a temporary store, which is deleted at the end."""
    ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="value-", dir=ctx.workspace.tmp))
    try:
        yield Context(Workspace(folder).ensure(), ctx.engine, ctx.progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(
    ctx: Context, scratch: Context, bucket: Bucket, corpus: Corpus, annotators: Annotators, size: int, seed: int
) -> SourceSample:
    """Take a sample of a source, annotate it, and apply the policy.

    Args:
        ctx: context with the published models and lists of annotators.
        scratch: context whose store receives the sample.
        bucket: the source and its policy.
        annotators: parameters by annotator, as in the pipeline.
        size: number of source bytes to take, at least one file or piece.
        seed: key of the hash that chooses files.

    Raises:
        SourceError: the source is empty or cannot be read.
        MissingError: the model or list of an annotator has not been built.
    """
    taken, of_files, of_bytes = _choose(ctx, bucket, size, seed)
    params = corpus.documents.model_copy(update={"part_bytes": PART_BYTES})
    step = Step(name="documents", version=documents.VERSION)
    gate, model = _gate(ctx, scratch, corpus), _model(ctx, scratch, corpus)
    works = [
        documents.FileGroupTask(
            bucket=BUCKET, source=bucket.sources[group.source], group=group, params=params, gate=gate, model=model
        )
        for group in groups(bucket, taken, PART_BYTES)
    ]
    items = [
        Item((str(work.group.source), *(f"{file.key}:{file.sha256}" for file, _ in work.group.files)), work)
        for work in works
    ]
    pairs = [made[:2] for made in run_items(scratch, step, documents.make_part, items, label="sample")]
    parts = renamed((part for part, _ in pairs if part.rows), "part")
    rejects = renamed((part for _, part in pairs if part.rows), "rejects")
    stats = {"documents": 0, "text_bytes": 0, "source_bytes": 0, "rejects": {}, **add_stats([*parts, *rejects])}
    sources = [source.model_dump(mode="json", exclude={"path"}) for source in bucket.sources]
    whole = step.model_copy(update={"params": {"sources": sources}})
    made = manifest(f"{BUCKET}/documents", whole, {}, [*parts, *rejects], stats)
    scores: dict[str, Manifest] = {}
    for name in sorted(annotators, key=lambda one: bool(annotate.annotator(one).after)):
        scores[name] = _annotated(ctx, scratch, name, annotators[name], made, scores, corpus.endpoints)
    judged = policy.run(scratch, BUCKET, corpus.policies[bucket.policy], made, scores, corpus.rights())
    sizes = sum(file.bytes for _, file in taken.files)
    return SourceSample(len(taken.files), sizes, of_files, of_bytes, made, judged, scores)


def _gate(ctx: Context, scratch: Context, corpus: Corpus) -> IllegalGate | None:
    """Return the recipe's gate against illegal content, with its lists copied to the scratch store."""
    name = corpus.illegal.lists
    if name is None:
        return None
    made = ctx.refs.current(f"lists/{name}")
    for part in made.parts:
        scratch.store.put_bytes(ctx.store.read_bytes(part.blob))
    return gate_of(corpus.illegal, {made.asset: made})


def _model(ctx: Context, scratch: Context, corpus: Corpus) -> Blob | None:
    """Return the recipe's learned model of the extraction, copied to the scratch store."""
    if corpus.documents.extraction_model is None:
        return None
    return scratch.store.put_bytes(ctx.store.read_bytes(ctx.refs.current(extraction_model.ASSET).parts[0].blob))


def _choose(ctx: Context, bucket: Bucket, size: int, seed: int) -> tuple[Inventory, int, int]:
    """Choose the files or pieces with the smallest hashes from all sources.

    Return the chosen files, and the number of all files and of all their bytes.
    """
    listed = [
        (index, source, str(name), int(held or 0))
        for index, source in enumerate(bucket.sources)
        for name, held, _ in listing.listing(
            source.path, ctx.workspace.input, wanted_suffixes(source), hidden=source.hidden
        )
    ]
    content = [one for one in listed if not one[2].endswith(LICENCES_FILE)]
    chosen: list[tuple[int, SourceFile]] = []
    held = 0
    for index, source, name, _ in sorted(content, key=lambda one: _rank(seed, f"{one[0]}/{one[2]}")):
        if held >= size:
            break
        for piece in sorted(_file(ctx, source, name).split(), key=lambda piece: _rank(seed, piece.key)):
            if held >= size:
                break
            chosen.append((index, piece))
            held += piece.bytes
    licences = [(i, _file(ctx, source, name)) for i, source, name, _ in listed if name.endswith(LICENCES_FILE)]
    files = sorted([*chosen, *licences], key=lambda one: (one[0], one[1].name, one[1].start))
    if not chosen:  # the ordinary inventory raises, and names what is missing
        for source in bucket.sources:
            listing.inventory(source.path, ctx.workspace.input, wanted_suffixes(source))
    return Inventory(files=tuple(files)), len(content), sum(one[3] for one in content)


def _file(ctx: Context, source: Source, name: str) -> SourceFile:
    """Return one file of a source under its listed name, with its digest and byte ranges."""
    from plinth.corpus.sources.inventory import cutter

    where = absolute(source.path, ctx.workspace.input)
    root = where.split("*", 1)[0].rsplit("/", 1)[0] if "*" in where else where
    alone = root.rsplit("/", 1)[-1] == name and "*" not in where
    location = root if alone else f"{root}/{name}"
    base = ctx.workspace.input
    (file,) = listing.inventory(location, base, (), lambda ending: cutter(source.kind, ending, PART_BYTES))
    return file.model_copy(update={"name": name})


def _rank(seed: int, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=b"value:%d" % seed, digest_size=8).digest()


def _annotated(
    ctx: Context,
    scratch: Context,
    name: str,
    raw: Mapping[str, Any],
    made: Manifest,
    before: Mapping[str, Manifest],
    endpoints: Mapping[str, Endpoint],
) -> Manifest:
    """Run one annotator over the sample, with the workspace's models and lists. The annotators in `before` have run
    already."""
    chosen = annotate.annotator(name)
    resources = {key: ctx.refs.current(key) for key in chosen.needs(annotate.parameters(name, raw))}
    for resource in resources.values():
        for part in resource.parts:
            target = scratch.store.path(part.blob)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.symlink(ctx.store.open_path(part.blob).resolve(), target)
    return annotate.run(scratch, BUCKET, name, raw, made, resources, sidecars=before, endpoints=endpoints)


U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

NGRAM_WORDS = 5
#: Reasons for which protected sets drop a document.
PROTECTED = pa.array(PROTECTED_REASONS)


@dataclass(frozen=True)
class SampleSignatures:
    """MinHash signatures [D, K] of the sample's documents, and the signatures' band keys [D, bands].

    A text without words has no signature, and `filled` is False for it.
    """

    signatures: U32
    filled: npt.NDArray[np.bool_]
    keys: U64


def signed(texts: Iterable[pa.Array], params: MinHash) -> SampleSignatures:
    """Compute the MinHash signatures of the sample, batch by batch."""
    a, b = permutations(params.bands * params.rows, params.seed)
    pairs = [signatures(batch, params.shingle_words, a, b) for batch in texts]
    width = params.bands * params.rows
    found = np.concatenate([np.empty((0, width), np.uint32), *(one for one, _ in pairs)])
    filled = np.concatenate([np.empty(0, np.bool_), *(one for _, one in pairs)])
    return SampleSignatures(found, filled, band_keys(found, params.bands, params.rows))


def inside(sample: SampleSignatures, threshold: float) -> npt.NDArray[np.bool_]:
    """Return a mask [D] of documents that duplicate an earlier document in the sample."""
    later = np.zeros(len(sample.filled), dtype=np.bool_)
    for band in range(sample.keys.shape[1]):
        keys = np.where(sample.filled, sample.keys[:, band], np.arange(len(later), dtype=np.uint64))
        order = np.argsort(keys, kind="stable")
        first = np.r_[True, keys[order][1:] != keys[order][:-1]][: len(order)]  # none in an empty sample
        heads = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
        rest = order[~first]
        agree = (sample.signatures[rest] == sample.signatures[heads[~first]]).mean(axis=1)
        later[rest] |= (agree >= threshold) & sample.filled[rest]
    return later


def against(
    ctx: Context,
    sample: SampleSignatures,
    params: MinHash,
    documents: Mapping[str, Manifest],
    signed_: Mapping[str, Manifest],
    verdicts: Mapping[str, Manifest],
) -> Floats:
    """Return for each document [D] the highest signature agreement with any corpus document, or 0 if no band key
    matches."""
    places = slots(documents, signatures=signed_, verdicts=verdicts)
    ask = partial(_ask, ctx.store, sample, params)
    best = np.zeros(len(sample.filled))
    with ctx.progress.meter("comparing with the corpus", sum(slot.documents.rows for slot in places)) as meter:
        for slot, found in zip(places, ctx.engine.map(ask, places), strict=True):
            np.maximum(best, found, out=best)
            meter.advance(slot.documents.rows)
    return best


def _ask(store: Store, sample: SampleSignatures, params: MinHash, slot: Slot) -> Floats:
    """Return the highest signature agreement [D] of the sample's documents with one part of the corpus.

    Dropped corpus documents are skipped, except those that protected sets dropped.
    """
    best, width = np.zeros(len(sample.filled)), params.bands * params.rows
    owners = np.flatnonzero(sample.filled)
    flat = sample.keys[owners].reshape(-1)
    order = np.argsort(flat, kind="stable")
    keys, whose = flat[order], np.repeat(owners, params.bands)[order]
    sources = ((slot.sides["signatures"], ["signature"]), (slot.sides["verdicts"], ["decision", "reason"]))
    for mine, judged in iter_aligned(store, *sources):
        column = mine.column("signature")
        protected = pc.fill_null(pc.is_in(judged.column("reason"), PROTECTED), False)
        counted = pc.or_(pc.not_equal(judged.column("decision"), "drop"), protected)
        kept = pc.and_(counted, column.is_valid())
        rows = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
        raw = np.frombuffer(column.buffers()[1], dtype="<u4")[column.offset * width :][: len(column) * width]
        theirs = np.ascontiguousarray(raw.reshape(-1, width)[rows], dtype=np.uint32)
        asked = band_keys(theirs, params.bands, params.rows).reshape(-1)
        low, high = np.searchsorted(keys, asked, "left"), np.searchsorted(keys, asked, "right")
        for at in np.flatnonzero(high > low):
            candidates = whose[low[at] : high[at]]
            agree = (sample.signatures[candidates] == theirs[at // params.bands]).mean(axis=1)
            np.maximum.at(best, candidates, agree)
    return best


def known_ngrams(texts: Iterable[pa.Array]) -> U64:
    """Return the sorted hashes of all distinct word n-grams in texts. The result takes 8 bytes per n-gram."""
    found = [np.unique(ngram_hashes(batch, NGRAM_WORDS)[1]) for batch in texts]
    return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))


def new_ngrams(texts: Iterable[pa.Array], known: U64) -> tuple[Floats, Floats]:
    """Return two counts for each text [D]: distinct word n-grams, and distinct word n-grams that are not in `known`."""
    total: list[int] = []
    fresh: list[int] = []
    for batch in texts:
        starts, hashes = ngram_hashes(batch, NGRAM_WORDS)
        for row in range(starts.size - 1):
            own = np.unique(hashes[starts[row] : starts[row + 1]])
            at = np.minimum(np.searchsorted(known, own), max(0, known.size - 1))
            seen = known[at] == own if known.size else np.zeros(own.size, np.bool_)
            total.append(own.size)
            fresh.append(int(np.count_nonzero(~seen)))
    return np.array(total, dtype=np.float64), np.array(fresh, dtype=np.float64)


def batches_of(store: Store, parts: Iterable[Part], limit: int | None = None) -> Iterator[pa.Array]:
    """Yield the texts in parts, batch by batch, until a number of bytes is reached."""
    held = 0
    for part in parts:
        for batch in iter_batches(store, part, ["text"]):
            texts = batch.column("text")
            yield texts
            held += int(pc.sum(pc.binary_length(texts)).as_py() or 0)
            if limit is not None and held >= limit:
                return
