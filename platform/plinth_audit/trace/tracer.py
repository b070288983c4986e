"""Verbatim spans of a text in the published shards, with their documents and the runs that read them.

    text ─► tokens ─► matches in every bucket ─► maximal spans ─► documents, shards ─► steps, checkpoints

If a run read the published shards, the exact tokens are looked up. If text was added or removed after the run, the run
has read other shards of the bucket. In this case, the document is looked up, and then the tokens at the same offset in
the document. The key `by` in the result names the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError
from plinth.provenance import document_rows
from plinth.provenance.document_rows import MAX_STEPS, plain
from plinth.records import Blob, Manifest, bucket_of
from plinth.storage.parts import read_row, read_table
from plinth.tokens.order.batch import DocumentUse, SpanSteps
from plinth.tokens.shards.index import DocumentIndex, DocumentSpan
from plinth.tokens.shards.reader import ShardReader
from plinth.tokens.tokenizer import encode, tokenizer
from plinth.training.config import RunConfig, load
from plinth_audit.extraction import job
from plinth_audit.trace.matches import Matches, VerbatimIndex, VerbatimSpan, covered, spans
from plinth_audit.trace.trace_index import SPAN_TOKENS
from plinth_registry.exports import ExportNote, noted

SUFFIX = "/trace_index"
#: Default maximum of documents listed per span; the count covers all.
LISTED = 10


@dataclass(frozen=True)
class _Bucket:
    shards: Manifest
    curated: Manifest
    index: VerbatimIndex


class Tracer:
    """Search over all published trace indexes of a workspace.

    Raises:
        MissingError: no index is published, or an input of an index is missing.
        IntegrityError: the indexes have different tokenizers.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._buckets = {name: _open(ctx, ctx.refs.load(digest)) for name, digest in _published(ctx).items()}
        self._tokenizer = encode.load(ctx.store, _tokenizer(ctx, [own.shards for own in self._buckets.values()]))
        self._readers: dict[str, ShardReader] = {
            name: reader for own in self._buckets.values() for name, reader in own.index.readers.items()
        }
        self._runs = TracedRuns(ctx)
        self._row = lru_cache(maxsize=4096)(self._read_row)

    def text(self, text: str, *, least: int = SPAN_TOKENS, listed: int = LISTED) -> dict[str, Any]:
        """Return the verbatim spans of a text, in the form that `tokens` returns.

        The first tokens of a text differ if it follows a space within a line. Therefore the text is tokenized as it is
        and with a leading space, and the variant with more tokens in spans is used. If the text starts or ends inside a
        word, the token at that end does not match.
        """
        found = [(query, self._matches(query, least)) for query in self._queries(text)]
        query, matches = max(found, key=lambda one: covered(spans(one[1], len(one[0])), len(one[0])))
        return self._described(query, matches, least, listed)

    def tokens(self, query: NDArray[np.int64], *, least: int = SPAN_TOKENS, listed: int = LISTED) -> dict[str, Any]:
        """Return the verbatim spans of a token sequence.

        Args:
            least: minimum length of a span in tokens, 32 or more.
            listed: maximum number of documents listed per span.

        Returns:
            `tokens`, `least`, `covered` (tokens in spans), and `spans`, each with `begin` and `tokens` in the query,
            `text`, `occurrences` of the whole span, `most` (occurrences of its most frequent 32 tokens), `documents`
            (a count), and `found`: the first documents, each with `id`, `uri`, `bucket`, `part`, `row`, `stream`,
            `start` (in the stream), `offset` (in the document), `times` (occurrences), `shards` and `training`.
        """
        return self._described(query, self._matches(query, least), least, listed)

    def quoting(self, text: str) -> dict[tuple[str, str], tuple[int, DocumentSpan]]:
        """Return the documents that contain 32 or more consecutive tokens of a text, by bucket and ID, with the longest
        match.

        Unlike a search for maximal spans, this finds quotations even if another document contains the whole text.
        """
        found: dict[tuple[str, str], tuple[int, DocumentSpan]] = {}
        for query in self._queries(text):
            for stream, matches in self._matches(query, SPAN_TOKENS).items():
                order = np.lexsort((-matches.tokens, matches.starts))
                starts, first = np.unique(matches.starts[order], return_index=True)
                longest = dict(zip(starts.tolist(), matches.tokens[order][first].tolist(), strict=True))
                for held in holders(self._readers[stream].index, starts, len(starts))[1]:
                    key, tokens = (bucket_of(stream), held.document.id), max(longest[start] for start in held.starts)
                    if tokens > found.get(key, (0, None))[0]:
                        found[key] = (tokens, held.document)
        return found

    def _queries(self, text: str) -> list[NDArray[np.int64]]:
        with encode.parallel(False):
            return [own.astype(np.int64) for own in encode.encode_texts(self._tokenizer, [text, f" {text}"], "<u4")]

    def _matches(self, query: NDArray[np.int64], least: int) -> dict[str, Matches]:
        return {name: own for each in self._buckets.values() for name, own in each.index.find(query, least).items()}

    def _described(
        self, query: NDArray[np.int64], found: dict[str, Matches], least: int, listed: int
    ) -> dict[str, Any]:
        made = spans(found, len(query))
        facts = {"tokens": len(query), "least": least, "covered": covered(made, len(query))}
        return facts | {"spans": [self._span(query, span, listed) for span in made]}

    def _span(self, query: NDArray[np.int64], span: VerbatimSpan, listed: int) -> dict[str, Any]:
        documents, named = 0, list[dict[str, Any]]()
        for stream, starts in sorted(span.places.items()):
            count, held = holders(self._readers[stream].index, starts, listed - len(named))
            documents += count
            named += [self._holder(stream, span.tokens, one) for one in held]
        return {
            "begin": span.begin,
            "tokens": span.tokens,
            "text": self._tokenizer.decode(query[span.begin :][: span.tokens].tolist(), skip_special_tokens=False),
            "occurrences": span.occurrences,
            "most": span.most,
            "documents": documents,
            "found": named,
        }

    def _holder(self, stream: str, tokens: int, held: Holder) -> dict[str, Any]:
        bucket, document, start = bucket_of(stream), held.document, held.starts[0]
        return {
            "id": document.id,
            "bucket": bucket,
            **self._row(bucket, document.part, document.row),
            "part": document.part,
            "row": document.row,
            "stream": stream,
            "start": start,
            "offset": start - document.start,
            "times": len(held.starts),
            "shards": document_rows.pieces(self._readers[stream], start, start + tokens),
            "training": self._runs.saw(self._buckets[bucket].shards.digest, stream, start, tokens, document),
        }

    def _read_row(self, bucket: str, part: int, row: int) -> dict[str, Any]:
        held = self._buckets[bucket].curated.named("part-")[part]
        found: dict[str, Any] = plain(read_row(self._ctx.store, held, row, ["uri", "snapshot", "licence"]))
        return found


def _published(ctx: Context) -> dict[str, str]:
    """Return the digest of every published trace index, by bucket."""
    found = {ref.asset[: -len(SUFFIX)]: ref.digest for ref in ctx.refs.all() if ref.asset.endswith(SUFFIX)}
    if not found:
        raise MissingError("no trace index is published", remedy=f"run `plinth run --select '*{SUFFIX}'`")
    return found


def _open(ctx: Context, made: Manifest) -> _Bucket:
    bucket = made.asset[: -len(SUFFIX)]
    shards, curated = (ctx.refs.load(made.inputs[f"{bucket}/{kind}"]) for kind in ("shards", "curated"))
    return _Bucket(shards, curated, VerbatimIndex(ctx.store, made, shards))


def _tokenizer(ctx: Context, shards: list[Manifest]) -> Blob:
    """Return the tokenizer of the shards, and raise an error if the shards have different tokenizers."""
    blobs = {ctx.refs.load(made.inputs[tokenizer.ASSET]).named(tokenizer.FILE)[0].blob for made in shards}
    if len(blobs) > 1:
        raise IntegrityError(
            "the trace indexes of the buckets have different tokenizers",
            found=", ".join(sorted(blob.sha256[:12] for blob in blobs)),
            expected="one tokenizer",
            remedy=f"update the stale indexes with `plinth run --select '*{SUFFIX}'`",
        )
    return blobs.pop()


@dataclass(frozen=True)
class Holder:
    """Document that contains one or more occurrences of a span.

    Args:
        document: position of the document in its stream.
        starts: positions of the span's occurrences in the document, counted in the stream, ascending.
    """

    document: DocumentSpan
    starts: tuple[int, ...]


def holders(index: DocumentIndex, starts: NDArray[np.int64], most: int) -> tuple[int, list[Holder]]:
    """Return the number of documents in which a span occurs, and the first `most` of these documents.

    Args:
        starts: positions of the span's occurrences in the stream, ascending.
    """
    count, listed = 0, list[Holder]()
    for number, part in enumerate(index.parts):
        first = int(part.stats["start"])
        low, high = np.searchsorted(starts, [first, first + int(part.stats["tokens"])]).tolist()
        if low == high:
            continue
        documents = index.part(number)
        rows = np.searchsorted(documents.starts, starts[low:high], side="right") - 1
        distinct, begins = np.unique(rows, return_index=True)
        count += len(distinct)
        edges = [*begins.tolist(), len(rows)]
        for at in islice(range(len(distinct)), max(0, most - len(listed))):
            (span,) = documents.take(distinct[at : at + 1]).records()
            listed.append(Holder(span, tuple(starts[low + edges[at] : low + edges[at + 1]].tolist())))
    return count, listed


class _Exports:
    """Exports of checkpoints. The workspace's manifests and export records are read once, on first use."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @cached_property
    def _known(self) -> tuple[dict[str, list[tuple[int, str]]], tuple[ExportNote, ...]]:
        from plinth_audit.takedown.exposed_runs import published_checkpoints  # which searches with this module

        return published_checkpoints(self._ctx), noted(self._ctx)

    def of(self, config: RunConfig) -> list[tuple[int, str]]:
        """Return the step and target of each export of the run's checkpoints, deleted checkpoints included."""
        from plinth_audit.takedown.exposed_runs import every_checkpoint

        published, notes = self._known
        return [
            (held.step, note.to)
            for held in every_checkpoint(self._ctx, config, published)
            for note in notes
            if note.is_of(held.digests, (f"{config.run_id}:{held.step}",))
        ]


class TracedRuns:
    """All training runs in a workspace. The manifests of a run are read once, on first use."""

    def __init__(self, ctx: Context) -> None:
        exports = _Exports(ctx)
        self._runs = [_Run(ctx, load(path), exports) for path in sorted(ctx.workspace.runs.glob("*/config.json"))]

    def saw(self, shards: str, stream: str, start: int, tokens: int, document: DocumentSpan) -> list[dict[str, Any]]:
        """Return the runs that trained on at least some of a sequence of tokens.

        Args:
            shards: digest of the shards that contain the stream.
            start, tokens: position and length of the sequence in the stream.
            document: document that contains the tokens.

        Returns:
            `run`, `steps` that read sequences with some of the tokens, `times_seen`, `most_tokens` in one sequence,
            `checkpoints` after the first of the steps, the targets of their `exports`, `by` (`tokens` or `document`).
        """
        return [seen for run in self._runs if (seen := run.saw(shards, stream, start, tokens, document))]


class _Run:
    def __init__(self, ctx: Context, config: RunConfig, exports: _Exports) -> None:
        self._ctx, self._config, self._all_exports = ctx, config, exports

    @cached_property
    def _spans(self) -> SpanSteps | None:
        try:
            return SpanSteps(self._ctx, self._ctx.refs.load(self._config.mixture), self._config.draws)
        except MissingError:
            return None

    @cached_property
    def _trained(self) -> document_rows.TrainedSteps:
        return document_rows.trained_steps(self._config)

    @cached_property
    def _checkpoints(self) -> list[int]:
        return document_rows.checkpoints(self._ctx, self._config)

    @cached_property
    def _exports(self) -> list[tuple[int, str]]:
        return self._all_exports.of(self._config)

    def saw(self, shards: str, stream: str, start: int, tokens: int, document: DocumentSpan) -> dict[str, Any] | None:
        bucket = bucket_of(stream)
        if bucket not in self._config.shards:
            return None
        if self._spans is None:
            return {"run": self._config.run_id, "unknown": "manifests of its training data are not in this workspace"}
        same = self._config.shards[bucket] == shards
        try:
            uses = self._spans.of(stream, start, tokens) if same else self._by_document(bucket, start, tokens, document)
        except MissingError:
            return {"run": self._config.run_id, "unknown": "parts of its training data are not in this workspace"}
        seen = [use for use in uses if use.step + 1 in self._trained]
        if not seen:
            return None
        steps = sorted({use.step + 1 for use in seen})
        return {
            "run": self._config.run_id,
            "steps": steps[:MAX_STEPS],
            "times_seen": len(seen),
            "most_tokens": max(use.tokens for use in seen),
            "checkpoints": [step for step in self._checkpoints if step >= steps[0]],
            "exports": sorted({to for step, to in self._exports if step >= steps[0]}),
            "by": "tokens" if same else "document",
        }

    def _by_document(self, bucket: str, start: int, tokens: int, document: DocumentSpan) -> list[DocumentUse]:
        assert self._spans is not None
        uses = list[DocumentUse]()
        for stream, own in self._spans.find(bucket, document.id):
            same = own.tokens == document.tokens  # otherwise the text was edited later, and all of it is used
            begin, count = (own.start + start - document.start, tokens) if same else (own.start, own.tokens)
            uses += self._spans.of(stream, begin, count)
        return uses


# Completions of the latest extraction test, traced to documents. Exact and near completions of
# `memorisation/extraction` are traced with their prefix, the others without it, since a model may continue with another
# document.


def latest(ctx: Context, *, least: int = SPAN_TOKENS, listed: int = LISTED) -> dict[str, Any]:
    """Trace the completions of the latest extraction test, and return those with verbatim spans in the training data.

    Returns:
        `checkpoint` (digest), `run`, `step`, `completions` (number of traced completions) and `found`: `id`, `bucket`,
        `heldout`, `outcome`, `completion` (text), `trace` (as `Tracer.tokens`), by outcome.

    Raises:
        MissingError: no completions or no trace index is published.
    """
    made = _published_completions(ctx)
    checkpoint = ctx.refs.load(made.inputs["checkpoint"])
    tracer, rows = Tracer(ctx), list(_documents(ctx, made))
    found = []
    for row in rows:
        given = row["prefix"] if row["outcome"] != job.OTHER else []
        traced = tracer.tokens(np.array([*given, *row["completion"]], np.int64), least=least, listed=listed)
        if traced["spans"]:
            named = {name: row[name] for name in ("id", "bucket", "heldout", "outcome")}
            found.append({**named, "completion": row["completion_text"], "trace": traced})
    return {
        "checkpoint": checkpoint.digest,
        "run": checkpoint.stats.get("run_id"),
        "step": checkpoint.stats.get("step"),
        "completions": len(rows),
        "found": found,
    }


def _published_completions(ctx: Context) -> Manifest:
    found = ctx.refs.published(job.ASSET)
    if found is None:
        raise MissingError(
            "no completions of a checkpoint are published",
            expected=f"the asset {job.ASSET}",
            remedy="add `evaluation: {extraction: {}}` to the recipe and run it, or trace another text",
        )
    return found


def _documents(ctx: Context, made: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the completion of every document once, even if the document is in several slices.

    Exact completions come first, and held-out documents come last.
    """
    (part,) = made.named(job.TABLE)
    rows = {(row["bucket"], row["id"]): row for row in read_table(ctx.store, part).to_pylist()}
    order = {name: place for place, name in enumerate(job.OUTCOMES)}
    yield from sorted(rows.values(), key=lambda row: (row["heldout"], order[row["outcome"]], row["bucket"], row["id"]))
