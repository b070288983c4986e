"""Runs that read the documents in a takedown: their steps, and all later checkpoints with the places of their copies;
measurement of removed text on such a checkpoint.

A run that starts from the weights of such a checkpoint, or is distilled from it, is listed with all its checkpoints.

A checkpoint can be on this machine, retired (deleted), refused (not deleted), in a bucket, published, or several of
these. Steps are exact for the first `EXACT` documents. If there are more documents, every checkpoint of each run that
used the documents' buckets is listed, and `exact` is False for the run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.evaluation import statistics
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Sampling
from plinth.model.hugging_face import TOKENIZER
from plinth.provenance import document_rows
from plinth.provenance.document_rows import DOCUMENTS, MAX_STEPS
from plinth.provenance.impact import downstream, read_by
from plinth.records import Frozen, Manifest
from plinth.storage.parts import iter_batches
from plinth.tokens.order.batch import SpanSteps
from plinth.tokens.tokenizer import encode
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, load
from plinth.training.telemetry.timeline import read_events
from plinth_audit.canaries.audit import exposure_p_value, exposures, ranks
from plinth_audit.extraction import ExtractionTest, job
from plinth_audit.takedown import index
from plinth_audit.takedown.search import FoundDocuments, HeldDocument, text_of

#: Maximum documents whose exact steps are computed.
EXACT = 200
CURATED = "/curated"
HERE, RETIRED, REFUSED, PUBLISHED = "here", "retired", "refused", "published"
_SAVED_CHECKPOINT = b'"asset":"checkpoint"'


@dataclass(frozen=True)
class HeldCheckpoint:
    """Checkpoint that was saved after its run had read one of the documents.

    Args:
        places: places of copies: `here`, `retired`, `refused`, `published`, and URIs of buckets.
        digests: digests of the checkpoint's published manifests.
    """

    step: int
    places: tuple[str, ...]
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExposedRun:
    """Run that read some of the documents in a takedown.

    Args:
        documents: number of these documents that the run's steps read.
        exact: True if every document was looked up. If False, the run may have read more documents, and earlier.
        unknown: reason why the steps are unknown.
        inherits: digest of a model that read one of the documents, if the run starts or is distilled from this model.
    """

    run: str
    documents: int = 0
    times_seen: int = 0
    steps: tuple[int, ...] = ()
    checkpoints: tuple[HeldCheckpoint, ...] = ()
    exact: bool = True
    unknown: str = ""
    inherits: str = ""
    ids: tuple[str, ...] = field(default=(), repr=False)

    @property
    def digests(self) -> frozenset[str]:
        """Digests of the published manifests of the run's checkpoints."""
        return frozenset(digest for one in self.checkpoints for digest in one.digests)


@dataclass(frozen=True)
class Holdings:
    """Result of a takedown search: documents, and the runs that read them."""

    found: FoundDocuments
    runs: tuple[ExposedRun, ...]


def holdings(ctx: Context, found: FoundDocuments) -> Holdings:
    """Return a takedown search result: the documents, and the runs that read them."""
    return Holdings(found, runs_of(ctx, [found]))


def runs_of(ctx: Context, found: Sequence[FoundDocuments]) -> tuple[ExposedRun, ...]:
    """Return the runs that read documents from one or more searches. A document in several searches counts once."""
    documents = {(one.bucket, one.id): one for each in found for one in each.documents}
    return tuple(runs_that_read(ctx, list(documents.values()), sum(each.count + each.earlier for each in found)))


def runs_that_read(ctx: Context, documents: Sequence[HeldDocument], count: int | None = None) -> list[ExposedRun]:
    """Return runs that read one of the documents, that inherit from such a run, or whose steps are unknown.

    Args:
        count: total number of documents, if `documents` is only a part of them.
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for one in documents[:EXACT]:
        wanted[one.bucket].append(one.id)
    buckets = {one.bucket for one in documents}
    complete = max(len(documents), count or 0) <= EXACT
    published = published_checkpoints(ctx)
    configs = [load(path) for path in sorted(ctx.workspace.runs.glob("*/config.json"))]
    ledgers = index.saved(ctx) if configs else ()
    listed = {made for digest in ledgers for made in ctx.refs.load(digest).inputs.values()}
    found = (_exposed(ctx, config, wanted, buckets, complete, published, listed) for config in configs)
    read = [one for one in found if one is not None]
    return [*read, *_inheriting(ctx, read, configs, published)]


def _inheriting(
    ctx: Context, read: Sequence[ExposedRun], configs: Sequence[RunConfig], published: dict[str, list[tuple[int, str]]]
) -> Iterator[ExposedRun]:
    """Yield runs that start from, or are distilled from, a model that is derived from an exposed run."""
    models = frozenset[str]().union(*(one.digests for one in read))
    derived = {one.digest for one in downstream(ctx, models)} if models else set[str]()
    for config in configs:
        named = derived.intersection(read_by(config))
        if named and config.run_id not in {one.run for one in read}:
            held = tuple(every_checkpoint(ctx, config, published))
            yield ExposedRun(config.run_id, checkpoints=held, inherits=min(named))


def _exposed(
    ctx: Context,
    config: RunConfig,
    wanted: dict[str, list[str]],
    buckets: set[str],
    complete: bool,
    published: dict[str, list[tuple[int, str]]],
    listed: set[str],
) -> ExposedRun | None:
    concerned = bool(buckets & config.shards.keys())
    try:
        unlisted = sorted(_unlisted(ctx, config, listed))
        steps, ids = _steps(ctx, config, wanted) if concerned else ([], set())
    except MissingError as error:
        unknown = f"the manifests of the run's training data are not in this workspace: {error.what}"
        return ExposedRun(config.run_id, unknown=unknown)
    if unlisted and not steps:
        return ExposedRun(config.run_id, unknown=f"no ledger lists the run's documents from {', '.join(unlisted)}")
    if not concerned or (not steps and complete):
        return None
    complete = complete and not unlisted
    first = min(steps) if complete else 1
    return ExposedRun(
        run=config.run_id,
        documents=len(ids),
        times_seen=len(steps),
        steps=tuple(sorted(set(steps))[:MAX_STEPS]),
        checkpoints=tuple(one for one in every_checkpoint(ctx, config, published) if one.step >= first),
        exact=complete,
        ids=tuple(sorted(ids)),
    )


def _unlisted(ctx: Context, config: RunConfig, listed: set[str]) -> Iterator[str]:
    """Yield the `documents` assets that a run read but that no ledger lists. A takedown search cannot cover them."""
    for shards in config.shards.values():
        for key, curated in ctx.refs.load(shards).inputs.items():
            for asset, digest in ctx.refs.load(curated).inputs.items() if key.endswith(CURATED) else ():
                if asset.endswith(DOCUMENTS) and digest not in listed:
                    yield f"{asset} {digest[:12]}"


def _steps(ctx: Context, config: RunConfig, wanted: dict[str, list[str]]) -> tuple[list[int], set[str]]:
    """Return the steps (from 1) that read the documents, and the IDs of the documents that were read.

    A step is repeated once for each sequence in which it read a document.
    """
    spans = SpanSteps(ctx, ctx.refs.load(config.mixture), config.draws)
    trained = document_rows.trained_steps(config)
    taken, ids = list[int](), set[str]()
    for bucket in sorted(wanted.keys() & config.shards.keys()):
        for id_ in wanted[bucket]:
            for stream, span in spans.find(bucket, id_):
                own = [use.step + 1 for use in spans.of(stream, span.start, span.tokens) if use.step + 1 in trained]
                taken += own
                ids |= {id_} if own else set()
    return taken, ids


def every_checkpoint(
    ctx: Context, config: RunConfig, published: dict[str, list[tuple[int, str]]] | None = None
) -> list[HeldCheckpoint]:
    """Return all checkpoints that a run committed, with the places of their copies.

    The checkpoints are read from the run's timeline, the run's folder, and the published manifests.
    """
    places: dict[int, set[str]] = defaultdict(set)
    shared = f"{ctx.workspace.uri}/runs" if ctx.workspace.uri else "the bucket of its uploads"
    bucket = f"{(config.checkpoints.upload or shared).rstrip('/')}/{config.run_id}"
    for event in read_events(config.directory.events):
        if event["event"] == "checkpoint":
            places[int(event["step"])].add(RETIRED)  # corrected below if it exists
        elif event["event"] in ("uploaded", "downloaded"):
            places[int(event["step"])].add(bucket)
    for state, steps in ((HERE, checkpoint.committed), (REFUSED, checkpoint.refused)):
        for step in steps(config.directory):
            places[step] |= {state, f"{shared}/{config.run_id}"} if ctx.workspace.uri else {state}
    digests: dict[int, list[str]] = defaultdict(list)
    for step, digest in (published_checkpoints(ctx) if published is None else published).get(config.run_id, ()):
        places[step].add(PUBLISHED)
        digests[step].append(digest)
    for found in places.values():
        found -= {RETIRED} if found & {HERE, REFUSED} else set()
    return [HeldCheckpoint(step, tuple(sorted(own)), tuple(digests[step])) for step, own in sorted(places.items())]


def published_checkpoints(ctx: Context) -> dict[str, list[tuple[int, str]]]:
    """Return step and digest of every checkpoint manifest in the workspace, by run."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for made in _saved(ctx):
        run, step = made.stats.get("run_id"), made.stats.get("step")
        if run is not None and step is not None:
            found[str(run)].append((int(step), made.digest))
    return found


def _saved(ctx: Context) -> Iterator[Manifest]:
    for path in ctx.refs.saved():
        data = path.read_bytes()
        if _SAVED_CHECKPOINT in data and json.loads(data).get("asset") == "checkpoint":
            yield ctx.refs.load(path.stem)


# Extraction and exposure of removed text under a checkpoint:
#
#     extraction   prompt with the first tokens of a document, compare the greedy continuation with the next ones
#                  (`plinth_audit.extraction`); held-out documents are the control
#     exposure     rank of a document's bits per byte among those of held-out documents (`plinth_audit.canaries`)
#
# Removed text is not random and may be easier than held-out text even for a model that never read it. Compare a
# checkpoint that read it with one that did not.

#: Maximum number of removed and of held-out documents to measure.
MEASURED = 200
SLICE = "taken down"
_DEFAULTS = ExtractionTest()


class TakedownMeasure(Frozen):
    """Extraction and exposure of removed text, measured on a checkpoint.

    Args:
        read_it: True if the checkpoint's run read some of the text before the checkpoint's step.
        extraction: statistics as in `extraction.job.summary`, or None if no text is long enough.
        exposure: mean bits with interval, `p_value`, `documents`, `references`; None without held-out text.
    """

    checkpoint: str
    run: str
    step: int
    read_it: bool
    documents: int
    extraction: dict[str, Any] | None
    exposure: dict[str, Any] | None


def texts_of(ctx: Context, found: Sequence[FoundDocuments]) -> list[str]:
    """Return up to `MEASURED` distinct removed texts that an earlier snapshot still contains."""
    documents = {one.id: one for each in found for one in each.documents if not one.published}
    texts = (text_of(ctx, one) for _, one in sorted(documents.items()))
    return list(islice(dict.fromkeys(text for text in texts if text is not None), MEASURED))


def heldout_texts(ctx: Context) -> list[str]:
    """Return up to `MEASURED` held-out texts of the published corpus."""
    return list(islice(_heldout(ctx), MEASURED))


def measure(
    ctx: Context,
    checkpoint: Manifest,
    texts: Sequence[str],
    heldout: Sequence[str],
    *,
    read_it: bool,
    params: ExtractionTest = _DEFAULTS,
) -> TakedownMeasure:
    """Measure extraction and exposure of removed texts on a checkpoint, with held-out texts as control.

    Raises:
        TrainingError, CheckpointError: the checkpoint cannot be loaded, or generation fails.
    """
    with ModelEngine.of(ctx, checkpoint, label="takedown") as engine:
        windows = [_windows(ctx, checkpoint, own, params) for own in (texts, heldout)]
        prompts = [own[: params.prefix_tokens] for group in windows for own in group]
        said = engine.generate(prompts, Sampling(max_tokens=params.suffix_tokens)) if prompts else []
        scores = engine.documents([*texts, *heldout])
    flat = [(own, at == 1) for at, group in enumerate(windows) for own in group]
    outcomes = [
        job.outcome(own[params.prefix_tokens :], answer.tokens, params.near_edits)[1]
        for (own, _), answer in zip(flat, said, strict=True)
    ]
    columns = {"slice": [SLICE] * len(flat), "heldout": [held for _, held in flat], "outcome": outcomes}
    per_byte = scores.bits / np.array([max(1, len(text.encode())) for text in (*texts, *heldout)])
    return TakedownMeasure(
        checkpoint=checkpoint.digest,
        run=str(checkpoint.stats.get("run_id", "")),
        step=int(checkpoint.stats.get("step", 0)),
        read_it=read_it,
        documents=len(texts),
        extraction=job.summary(pa.table(columns), [SLICE])["slices"][SLICE] if windows[0] else None,
        exposure=_exposure(per_byte[: len(texts)], per_byte[len(texts) :]),
    )


def _exposure(own: Any, references: Any) -> dict[str, Any] | None:
    if not len(own) or len(references) < 2:
        return None
    found = exposures(ranks(own, references), len(references))
    mean = statistics.mean(found).model_dump(mode="json") if len(found) > 1 else None
    facts = {"documents": len(own), "references": len(references), "p_value": exposure_p_value(found)}
    return {**facts, "mean": mean, "median": float(np.median(found)), "bits_per_byte": float(np.mean(own))}


def _windows(ctx: Context, checkpoint: Manifest, texts: Sequence[str], params: ExtractionTest) -> list[tuple[int, ...]]:
    """Return the first tokens of every text that is long enough for a prefix and a suffix."""
    (file,) = checkpoint.named(TOKENIZER)
    with encode.parallel(False):
        encoded = list(encode.encode_texts(encode.load(ctx.store, file.blob), texts, "<u4"))
    return [tuple(own[: params.width].tolist()) for own in encoded if len(own) >= params.width]


def _heldout(ctx: Context) -> Iterator[str]:
    for ref in ctx.refs.all():
        if ref.asset.endswith("/curated"):
            for part in ctx.refs.load(ref.digest).named("heldout-"):
                for batch in iter_batches(ctx.store, part, ["text"]):
                    yield from batch.column("text").to_pylist()
