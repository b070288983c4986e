"""A bounded sample of a source that is not in the corpus yet, taken through the pipeline as far as the policy.

Files are listed, not read; those with the smallest keyed hashes of their names are taken until the sample is full,
and of files that can be cut, pieces. All is written to a scratch store that is removed at the end: text
that nobody has agreed to take must not stay.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.compute.stage import Item, add_stats, manifest, renamed, run_items
from plinth.corpus import annotate
from plinth.corpus.documents import documents
from plinth.corpus.illegal.gate import IllegalGate, gate_of
from plinth.corpus.policy import policy
from plinth.corpus.sources.inventory import Inventory, groups, wanted_suffixes
from plinth.corpus.sources.licences import LICENCES_FILE
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.recipe.corpus import Corpus
from plinth.records import Manifest, Step
from plinth.storage import listing
from plinth.storage.files import SourceFile
from plinth.storage.uris import absolute
from plinth.storage.workspace import Workspace

#: Source bytes that one task reads.
PART_BYTES = 4 * 2**20
BUCKET = "new"
Annotators = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SourceSample:
    """The sample, and its results in the pipeline.

    Args:
        files, source_bytes: taken.
        of_files, of_bytes: of the whole source.
        documents, policy: manifests in the scratch store.
        annotations: by annotator.
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
        """Share of the source's bytes that was read."""
        return self.source_bytes / self.of_bytes if self.of_bytes else 1.0


@contextmanager
def scratch(ctx: Context) -> Iterator[Context]:
    """A context of the same engine on a store that is removed at the end."""
    ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="value-", dir=ctx.workspace.tmp))
    try:
        yield Context(Workspace(folder).ensure(), ctx.engine, ctx.progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(
    ctx: Context, scratch: Context, bucket: Bucket, corpus: Corpus, annotators: Annotators, size: int, seed: int
) -> SourceSample:
    """Read, annotate and judge a sample.

    Args:
        ctx: where models and lists of annotators are published.
        scratch: where the sample is written.
        bucket: the source, and the policy that judges it.
        annotators: their parameters by name, as the pipeline has them.
        size: source bytes to take, at least one file or piece.
        seed: key of the hash that chooses.

    Raises:
        SourceError: nothing is there, or it cannot be read.
        MissingError: an annotator's model or list has not been made.
    """
    taken, of_files, of_bytes = _choose(ctx, bucket, size, seed)
    params = corpus.documents.model_copy(update={"part_bytes": PART_BYTES})
    step = Step(name="documents", version=documents.VERSION)
    gate = _gate(ctx, scratch, corpus)
    works = [
        documents.FileGroupTask(
            bucket=BUCKET, source=bucket.sources[group.source], group=group, params=params, gate=gate
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
        scores[name] = _annotated(ctx, scratch, name, annotators[name], made, scores)
    judged = policy.run(scratch, BUCKET, corpus.policies[bucket.policy], made, scores, corpus.rights())
    sizes = sum(file.bytes for _, file in taken.files)
    return SourceSample(len(taken.files), sizes, of_files, of_bytes, made, judged, scores)


def _gate(ctx: Context, scratch: Context, corpus: Corpus) -> IllegalGate | None:
    """The illegal-content gate of the recipe, its lists copied into the scratch store."""
    name = corpus.illegal.lists
    if name is None:
        return None
    made = ctx.refs.current(f"lists/{name}")
    for part in made.parts:
        scratch.store.put_bytes(ctx.store.read_bytes(part.blob))
    return gate_of(corpus.illegal, {made.asset: made})


def _choose(ctx: Context, bucket: Bucket, size: int, seed: int) -> tuple[Inventory, int, int]:
    """Files or pieces of all sources with the smallest hashes, and how many files and bytes there are."""
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
    """One file of a source under its listed name, with its digest and pieces."""
    from plinth.corpus.sources.cuts import cutter

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
    ctx: Context, scratch: Context, name: str, raw: Mapping[str, Any], made: Manifest, before: Mapping[str, Manifest]
) -> Manifest:
    """One annotator over the sample, with models and lists lent from the workspace, after those `before` it."""
    chosen = annotate.annotator(name)
    resources = {key: ctx.refs.current(key) for key in chosen.needs(annotate.parameters(name, raw))}
    for resource in resources.values():
        for part in resource.parts:
            target = scratch.store.path(part.blob)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.symlink(ctx.store.open_path(part.blob).resolve(), target)
    return annotate.run(scratch, BUCKET, name, raw, made, resources, sidecars=before)
