"""Rows of one document in every table, and the training steps and checkpoints that read its tokens."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.errors import MissingError
from plinth.records import Manifest, Part, bucket_of
from plinth.storage.parts import iter_batches, read_row
from plinth.tokens.order.batch import steps_of_document
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, load
from plinth.training.telemetry.timeline import read_events

# Rows of one document in every table. Reads only the required columns and row groups.
#
# locate    bucket, part and row of an id or a URI
# sidecar   the same row of a sidecar of the bucket, or of one over all buckets
# members   the documents of a cluster
# curated   the row of curated text derived from a document

DOCUMENT_ID = re.compile(r"[0-9a-f]{32}")
DOCUMENTS = "/documents"
NEAREST = 5
MAX_MEMBERS = 100


@dataclass(frozen=True)
class DocumentPlace:
    """Location of a document's row in the documents or rejects of a bucket. `part` is the index of the document part or
    reject part."""

    bucket: str
    manifest: Manifest
    part: int
    row: int
    rejected: bool = False

    @property
    def source(self) -> Part:
        """Part that contains the document's row."""
        return self.manifest.named("rejects-" if self.rejected else "part-")[self.part]


def published(ctx: Context, ending: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the bucket and the manifest of every published asset whose name ends with `ending`."""
    for ref in ctx.refs.all():
        if ref.asset.endswith(ending):
            yield ref.asset.removesuffix(ending), ctx.refs.load(ref.digest)


def locate(ctx: Context, target: str) -> list[DocumentPlace]:
    """Return the location of every row with a document id (32 hexadecimal digits) or URI: documents first, then
    rejects.

    Raises:
        MissingError: no row has this id or URI. The error names the most similar URIs.
    """
    buckets = list(published(ctx, DOCUMENTS))
    by_id = DOCUMENT_ID.fullmatch(target) is not None
    wanted: Any = pa.scalar(bytes.fromhex(target), pa.binary(16)) if by_id else pa.scalar(target)
    found = [
        DocumentPlace(bucket, manifest, number, row, rejected)
        for rejected, stem in ((False, "part-"), (True, "rejects-"))
        for bucket, manifest in buckets
        for number, part in enumerate(manifest.named(stem))
        if not (rejected and by_id)  # a reject has no document id
        for row in matching_rows(ctx, part, "id" if by_id else "uri", wanted)
    ]
    if found:
        return found
    raise MissingError(
        f"no document {target!r}",
        found=_near(ctx, buckets, target) if buckets else "no documents in this workspace",
        expected="an id of 32 hexadecimal digits, or a whole URI",
        remedy="`plinth run batch RUN STEP` lists ids; a URI must match its source exactly",
    )


def sidecar(ctx: Context, place: DocumentPlace, manifest: Manifest, stem: str = "part-") -> dict[str, Any] | None:
    """Return the document's row in a sidecar, or None if the sidecar was computed from other documents."""
    own = manifest.inputs.get(f"{place.bucket}{DOCUMENTS}")
    parts = manifest.named(stem)
    fits = place.part < len(parts) and parts[place.part].rows == place.source.rows
    if not fits or own not in (None, place.manifest.digest):
        return None
    row: dict[str, Any] = plain(read_row(ctx.store, parts[place.part], place.row))
    return row


def members(ctx: Context, clusters: Manifest, cluster: str) -> list[dict[str, Any]]:
    """Return at most `MAX_MEMBERS` documents of a cluster, each with bucket, id, URI, and a flag that the document
    survived."""
    wanted = pa.scalar(bytes.fromhex(cluster), pa.binary(16))
    found: list[dict[str, Any]] = []
    for bucket, documents in published(ctx, DOCUMENTS):
        pairs = zip(clusters.named(f"{bucket}/part-"), documents.named("part-"), strict=False)
        for side, part in pairs:
            if side.rows != part.rows:
                continue
            for row in matching_rows(ctx, side, "cluster", wanted):
                name = plain(read_row(ctx.store, part, row, ["id", "uri"]))
                survivor = read_row(ctx.store, side, row, ["survivor"])["survivor"]
                found.append({"bucket": bucket, **name, "survivor": survivor})
                if len(found) == MAX_MEMBERS:
                    return found
    return found


def curated(ctx: Context, manifest: Manifest, id_: str) -> dict[str, Any] | None:
    """Return the part, row and length of the curated text with this id, or None if there is no such text."""
    wanted = pa.scalar(bytes.fromhex(id_), pa.binary(16))
    for part in manifest.parts:
        for row in matching_rows(ctx, part, "id", wanted):
            text = read_row(ctx.store, part, row, ["text"])["text"]
            return {"part": part.name, "row": row, "characters": len(text), "bytes": len(text.encode())}
    return None


def plain(value: Any) -> Any:
    """Convert a value to JSON: bytes to hexadecimal, times to ISO 8601, FP32 without spurious digits."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def matching_rows(ctx: Context, part: Part, column: str, wanted: pa.Scalar) -> Iterator[int]:
    """Yield the row numbers of a part where the column has the wanted value."""
    first = 0
    for batch in iter_batches(ctx.store, part, [column]):
        hits = pc.indices_nonzero(pc.fill_null(pc.equal(batch.column(column), wanted), False))
        yield from (first + row for row in hits.to_pylist())
        first += batch.num_rows


def _near(ctx: Context, buckets: list[tuple[str, Manifest]], target: str) -> str:
    """Return the most similar URIs as text. A fast similarity measure filters first, so the search can cover millions
    of URIs."""
    letters = set(target)
    best: list[tuple[float, str]] = []
    for _, manifest in buckets:
        for part in (*manifest.named("part-"), *manifest.named("rejects-")):
            for batch in iter_batches(ctx.store, part, ["uri"]):
                for uri in batch.column("uri").to_pylist():
                    best.append((_likeness(letters, target, uri), uri))
                best = heapq.nlargest(200, best)
    names = dict.fromkeys(uri for _, uri in best)
    nearest = difflib.get_close_matches(target, names, n=NEAREST, cutoff=0.3)
    return "closest: " + ", ".join(nearest) if nearest else "nothing similar"


def _likeness(letters: set[str], target: str, uri: str) -> float:
    """Return a fast similarity score of two URIs, based on last segment, shared letters and length."""
    shared = 2.0 * (target.rsplit("/", 1)[-1] in uri) + len(letters & set(uri)) / (len(letters | set(uri)) or 1)
    return shared - abs(len(uri) - len(target)) / max(len(uri), len(target), 1)


# Canaries, which are not among the documents of any bucket: planted copies, and canaries that were randomly left out.
#
# A copy's URI is `canary://NUMBER/COPY` (`corpus.planted_canaries`). A canary that was randomly left out has no copies
# and no row of curated text; copies of a planted canary are counted from 0.

URI = re.compile(r"canary://(\d{1,9})/(\d{1,9})", re.ASCII)


def planted(ctx: Context, target: str) -> DocumentPlace | None:
    """Return the location of a planted canary copy by its id or URI, or None if there is no such copy."""
    manifest = ctx.refs.published(planted_canaries.ASSET)
    if manifest is None:
        return None
    by_id = DOCUMENT_ID.fullmatch(target) is not None
    wanted: Any = pa.scalar(bytes.fromhex(target), pa.binary(16)) if by_id else pa.scalar(target)
    places = (
        DocumentPlace(bucket_of(planted_canaries.ASSET), manifest, number, row)
        for number, part in enumerate(manifest.named("part-"))
        for row in matching_rows(ctx, part, "id" if by_id else "uri", wanted)
    )
    return next(places, None)


def left_out(ctx: Context, target: str) -> dict[str, Any] | None:
    """Return the row (`planted_canaries.SCHEMA`) of a canary that was not planted, by the URI that its copy would have.

    Returns None for any other URI, and if no canaries are published.

    Raises:
        MissingError: there is no canary or copy with this number; the error names the existing numbers.
    """
    named, manifest = URI.fullmatch(target), ctx.refs.published(planted_canaries.ASSET)
    if named is None or manifest is None:
        return None
    number = int(named[1])
    table = planted_canaries.table(ctx.store, manifest)
    canaries = table.filter(pc.equal(table["kind"], "canary"))
    own = canaries.filter(pc.equal(canaries["number"], number)).to_pylist()
    if own and not own[0]["planted"]:
        return dict(own[0])
    have = f"copies 0 to {own[0]['repetitions'] - 1} of canary {number}" if own else f"{canaries.num_rows} canaries"
    raise MissingError(
        f"no planted copy {target}",
        found=have,
        expected="canary://NUMBER/COPY, both counted from 0",
        remedy="use one of these numbers",
    )


#: Minimum characters; fewer would match half the corpus.
LEAST_CHARACTERS = 8
#: Maximum returned places; a longer passage narrows the search.
MOST = 20
#: Assets that contain or index text. They are searched for removed text, whatever is derived from them.
SEARCHED_ASSETS: Final = re.compile(r"ledger|takedown/.*|dedup/index|(.*/)?trace_index")
#: Number of words that are compared. RE2 rejects very long patterns, and this many words identify a document.
MOST_WORDS = 200


def by_text(ctx: Context, beginning: str) -> list[DocumentPlace]:
    """Return up to `MOST` documents whose text begins with `beginning`, ignoring white space.

    The texts are read in order until `MOST` documents are found.
    """
    words = beginning.split()
    if sum(map(len, words)) < LEAST_CHARACTERS:
        return []
    pattern = r"^\s*" + r"\s+".join(re.escape(word) for word in words[:MOST_WORDS])
    found: list[DocumentPlace] = []
    for bucket, manifest in published(ctx, DOCUMENTS):
        for number, part in enumerate(manifest.named("part-")):
            first = 0
            for batch in iter_batches(ctx.store, part, ["text"]):
                hits = pc.match_substring_regex(batch.column("text"), pattern).to_numpy(zero_copy_only=False)
                found += [DocumentPlace(bucket, manifest, number, first + int(row)) for row in np.flatnonzero(hits)]
                first += batch.num_rows
                if len(found) >= MOST:
                    return found[:MOST]
    return found


# Tokens of a curated document, and the training steps and checkpoints that read them.
#
# Steps are counted from 1, as on the timeline of a run. The documents of a run follow from its manifests; its steps are
# on its timeline.

MAX_STEPS = 1000


def tokens(ctx: Context, shards: Manifest, id_: str) -> list[dict[str, Any]]:
    """Return the document's spans in its token stream, each with the shards that contain the span and the position in
    each shard."""
    return [
        ({"stream": name} if reader.stream.label else {})
        | {"start": span.start, "tokens": span.tokens, "shards": pieces(reader, span.start, span.start + span.tokens)}
        for name, reader in open_streams(ctx.store, [shards]).items()
        for span in reader.index.find(bytes.fromhex(id_))
    ]


def runs(ctx: Context, bucket: str, id_: str) -> list[dict[str, Any]]:
    """Return every run in this workspace that read the document, with the steps that read it and the checkpoints from
    the first of these steps onward."""
    found = []
    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        seen = _seen(ctx, load(path), bucket, id_)
        if seen:
            found.append(seen)
    return found


def _seen(ctx: Context, config: RunConfig, bucket: str, id_: str) -> dict[str, Any] | None:
    try:
        mixture = ctx.refs.load(config.mixture)
        shards = {name: ctx.refs.load(digest) for name, digest in config.shards.items()}
    except MissingError:
        return {"run": config.run_id, "unknown": "the manifests of its data are not in this workspace"}
    if bucket not in shards:
        return None
    sightings = steps_of_document(ctx, mixture, shards, bucket, id_, config.draws)
    trained = trained_steps(config)
    steps = sorted({sighting.step + 1 for sighting in sightings if sighting.step + 1 in trained})
    if not steps:
        return None
    return {
        "run": config.run_id,
        "steps": steps[:MAX_STEPS],
        "times_seen": sum(sighting.step + 1 in trained for sighting in sightings),
        "checkpoints": [step for step in checkpoints(ctx, config) if step >= steps[0]],
    }


@dataclass(frozen=True)
class TrainedSteps:
    """Steps that a run has trained: all steps up to the last step on its timeline, except steps that were skipped."""

    last: int
    left_out: frozenset[int]

    def __contains__(self, step: int) -> bool:
        return step <= self.last and step not in self.left_out


def trained_steps(config: RunConfig) -> TrainedSteps:
    """Return the steps that a run has trained, according to its timeline."""
    last, left_out = 0, set[int]()
    for event in read_events(config.directory.events):
        if event["event"] == "step":
            last = max(last, int(event["step"]))
        elif event["event"] == "skipped":
            left_out.add(int(event["step"]))
    return TrainedSteps(last, frozenset(left_out))


def checkpoints(ctx: Context, config: RunConfig) -> list[int]:
    """Return the steps of a run's committed checkpoints, including the published checkpoint if it is from this run."""
    steps = set(checkpoint.committed(config.directory))
    published = ctx.refs.published("checkpoint")
    if published is not None and published.stats.get("run_id") == config.run_id:
        steps.add(int(published.stats["step"]))
    return sorted(steps)


def pieces(reader: ShardReader, start: int, stop: int) -> list[dict[str, Any]]:
    """Return the shards that contain a span of the stream, each with its name, start position and number of tokens."""
    pieces = []
    for part in reader.shards:
        first = int(part.stats["start"])
        last = first + int(part.stats["tokens"])
        if start < last and stop > first:
            begin, end = max(start, first), min(stop, last)
            pieces.append({"shard": part.name, "position": begin - first, "tokens": end - begin})
    return pieces
