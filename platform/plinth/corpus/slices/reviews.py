"""Reviews: samples of removed documents by the reason for removal, and the labels that reviewers give to them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, ValidationError, field_validator

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus.annotate.base import available
from plinth.corpus.policy.compiled_policy import annotations_of, compile_policy, rule_values
from plinth.corpus.policy.policy import published
from plinth.corpus.sidecars import Smallest, excerpt, rank, ranks
from plinth.corpus.slices.generate import Labelled
from plinth.corpus.slices.rates import wilson
from plinth.corpus.verdicts import CLUSTERING, PROTECTED, STAGE_OF, cluster_of, survivors
from plinth.errors import MissingError, PlinthError, SourceError
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.atomic import append_to, named_failures
from plinth.storage.parts import iter_aligned, iter_batches, read_row, write_batches
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

# Labels of reviewers: lines of JSON below `reviews/` of the workspace, only ever added to.
#
#     {"id": "0123…ef", "reason": "toxic", "label": "good", "reviewer": "ada", "time": "2026-01-31T12:00:00Z"}
#
# `id` is the document's, 32 hexadecimal digits. `reason` is the policy's for which it was looked at. `label` is the
# reviewer's judgment of that reason: `bad` where the document was rightly removed for it (or should have been), `good`
# where not. Of several labels of one document and reason the latest counts. Files may also be Parquet with the same
# columns (`time` as text).

FOLDER = "reviews"
Label = Literal["good", "bad"]


class Review(Frozen):
    """Label that a reviewer gave to one document."""

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    reason: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    label: Label
    reviewer: str = Field(min_length=1, max_length=200)
    time: str
    note: str = Field("", max_length=10_000)

    @field_validator("time")
    @classmethod
    def _dated(cls, value: str) -> str:
        if datetime.fromisoformat(value).tzinfo is None:
            raise ValueError("the time needs an offset from UTC, such as a closing Z")
        return value

    @property
    def moment(self) -> datetime:
        """Time at which the label was given, as a `datetime`."""
        return datetime.fromisoformat(self.time)


def append(workspace: Workspace, reviews: Iterable[Review]) -> Path:
    """Add labels to the file of their reviewer. All labels are written at once, so that lines of two sessions are not
    mixed.

    Raises:
        ValueError: there are no labels, or labels of several reviewers.
    """
    given = list(reviews)
    if len({review.reviewer for review in given}) != 1:
        raise ValueError("all labels must be from one reviewer")
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", given[0].reviewer).strip("._")
    path = workspace.root / FOLDER / f"{name or 'reviewer'}.jsonl"
    with append_to(path) as stream, named_failures(path):
        stream.write("".join(json.dumps(review.model_dump()) + "\n" for review in given).encode())
        stream.flush()
    return path


def read(workspace: Workspace) -> tuple[Review, ...]:
    """Return the latest label for every document and reason, sorted by document and reason.

    Raises:
        SourceError: a file cannot be read or a line is not a review; the error names the file or line.
    """
    latest: dict[tuple[str, str], Review] = {}
    for path in files(workspace):
        for where, row in _rows(path):
            review = _review(row, where)
            have = latest.get((review.id, review.reason))
            if have is None or _order(review) > _order(have):
                latest[review.id, review.reason] = review
    return tuple(latest[key] for key in sorted(latest))


def files(workspace: Workspace) -> list[Path]:
    """Return the files with labels of reviewers, sorted by name."""
    folder = workspace.root / FOLDER
    return sorted(path for suffix in ("*.jsonl", "*.parquet") for path in folder.glob(suffix))


def digest(workspace: Workspace) -> str:
    """Return one digest of all labels. The order of lines and the files that contain them do not matter."""
    return fingerprint.digest([review.model_dump() for review in read(workspace)])


def _order(review: Review) -> tuple[datetime, str, str]:
    return review.moment, review.reviewer, review.label


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        if path.suffix == ".parquet":
            yield from ((f"{path} row {i}", row) for i, row in enumerate(pq.read_table(path).to_pylist()))
            return
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f"{path}:{number}", json.loads(line)
    except (OSError, ValueError, pa.ArrowException) as error:
        what = f"labels of reviewers cannot be read: {path}"
        raise SourceError(what, found=error, remedy="correct the file") from error


def _review(row: Any, where: str) -> Review:
    try:
        return Review.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(step) for step in first["loc"])
        raise SourceError(
            f"{where} is not a review",
            found=f"{key}: {first['msg']}" if key else first["msg"],
            expected="id (32 hexadecimal digits), reason, label (good or bad), reviewer, time (ISO 8601 with offset)",
            remedy="correct or remove the line",
        ) from error


VERSION = "1"
SCHEMA = pa.schema([pa.field("id", pa.binary(16), nullable=False), pa.field("text", pa.large_string(), nullable=False)])


@dataclass(frozen=True)
class _Task:
    ids: tuple[bytes, ...]
    documents: Part


def rows(
    ctx: Context, gate: str, reviews: Sequence[Review], documents: Mapping[str, Manifest]
) -> tuple[tuple[str, Part], ...]:
    """Return the bucket, id and text of each labeled document, as one part per part of documents. If there are no
    labels, nothing is read."""
    ids = tuple(sorted({bytes.fromhex(review.id) for review in reviews}))
    if not ids:
        return ()
    step = Step(name="slices/reviewed", version=VERSION, params={"ids": [one.hex() for one in ids]})
    parts = [(bucket, part) for bucket in sorted(documents) for part in documents[bucket].named("part-")]
    items = [Item((part.blob.sha256,), _Task(ids, part), part.rows) for _, part in parts]
    made = run_items(ctx, step, _chosen, items, label=f"slices/{gate} reviews")
    return tuple((bucket, done[0]) for (bucket, _), done in zip(parts, made, strict=True) if done[0].rows)


def labelled(store: Store, found: Sequence[tuple[str, Part]], reviews: Sequence[Review]) -> list[Labelled]:
    """Return the documents that reviewers labeled, with their labels. A document with labels for two reasons appears
    twice."""
    words: dict[str, list[Review]] = {}
    for review in reviews:
        words.setdefault(review.id, []).append(review)
    return [
        Labelled(row["text"], review.label == "bad", f"review/{bucket}", review.reason)
        for bucket, part in found
        for batch in iter_batches(store, part)
        for row in batch.to_pylist()
        for review in words.get(row["id"].hex(), ())
    ]


def _chosen(store: Store, task: _Task) -> tuple[Part, ...]:
    wanted = pa.array(task.ids, pa.binary(16))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, task.documents, ("id", "text")):
            some = batch.filter(pc.is_in(batch.column("id"), value_set=wanted))
            if some.num_rows:
                yield some

    return (write_batches(store, "part.parquet", SCHEMA, batches()),)


# Samples of removed documents by reason, for reviewers, and the share of each reason that they found right.
#
# A sample is drawn from every document that a reason took (or that a rule fired on), or from the rejects of a
# source, by keyed hash of the id: the same on every machine, another with another seed. Labels are kept by
# `slices.review_labels`; a reason is rated by the share of its sampled documents that were rightly removed.

EXCERPT_CHARACTERS = 1200
_STAGES = {**STAGE_OF, "held_out": "holdout"}


def sample(
    ctx: Context, reason: str, buckets: Sequence[str], count: int = 20, seed: int = 1, *, fired: bool = False
) -> list[dict[str, Any]]:
    """Return a sample of the documents or rejects that were removed for a reason, smallest hash first.

    Args:
        reason: reason of verdicts (`too_few_words`, `near_duplicate`, `held_out`), or of rejects (`timeout`).
        buckets: buckets to sample from.
        fired: True to sample from all documents that the rule matched, even if another rule matched first.

    Returns:
        Rows with `id`, `bucket`, `uri`, `reason`, `stage` (`documents` for rejects) and `excerpt`. Documents also have
        `values` (columns of the rule), `rule`, `fired` and `characters`; duplicates have `cluster` and `survivor`
        (`bucket`, `id`, `uri`). Rejects have `detail` and `where`. Reviewers fill in `label` and `note`, which are
        empty.

    Raises:
        MissingError: no document has this reason; the error lists the reasons that documents have.
    """
    best = Smallest(count)
    for bucket in buckets:
        best.extend(_documents(ctx, bucket, reason, seed, fired))
        best.extend(_rejects(ctx, bucket, reason, seed))
    chosen = best.chosen()
    if not chosen:
        have = reasons(ctx, buckets)
        shown = ", ".join(f"{name} ({n:,})" for name, n in have.most_common(40)) or "nothing was removed"
        raise MissingError(
            f"no document was removed for {reason!r}",
            expected=shown,
            remedy="`plinth corpus funnel` shows all removal reasons",
        )
    return _with_survivors(ctx, [_row(ctx, *place) for place in chosen])


def reasons(ctx: Context, buckets: Iterable[str]) -> Counter[str]:
    """Count the removed documents and the rejects of all buckets, by reason."""
    found: Counter[str] = Counter()
    for bucket in buckets:
        for asset, key in ((f"{bucket}/verdicts", "reasons"), (f"{bucket}/documents", "rejects")):
            if made := ctx.refs.published(asset):
                found.update(made.stats.get(key, {}))
    return found


def reject_id(bucket: str, uri: str, where: str) -> str:
    """Return the id of a reject for reviews. A reject never became a document, so it has no document id."""
    return hashlib.sha256(b"\0".join((b"reject", bucket.encode(), uri.encode(), where.encode()))).hexdigest()[:32]


Place = tuple[str, str, str, int, int]  # kind, bucket, reason, part, row


def _documents(ctx: Context, bucket: str, reason: str, seed: int, fired: bool) -> Iterator[tuple[int, Place]]:
    verdicts, policy = ctx.refs.published(f"{bucket}/verdicts"), ctx.refs.published(f"{bucket}/policy")
    if verdicts is None or policy is None:
        return
    for number, (part, side) in enumerate(zip(verdicts.named("part-"), policy.named("part-"), strict=True)):
        first = 0
        for mine, theirs in iter_aligned(ctx.store, (part, ["id", "decision", "reason"]), (side, ["fired"])):
            if fired:
                hit = _fired(theirs.column("fired"), reason)
            elif reason == "held_out":
                hit = pc.equal(mine.column("decision"), "heldout").to_numpy(zero_copy_only=False)
            else:
                hit = pc.fill_null(pc.equal(mine.column("reason"), reason), False).to_numpy(zero_copy_only=False)
            at = np.flatnonzero(hit)
            hashes = ranks(mine.column("id").take(pa.array(at)), seed)
            pairs = zip(hashes.tolist(), at.tolist(), strict=True)
            yield from ((value, ("document", bucket, reason, number, first + row)) for value, row in pairs)
            first += mine.num_rows


def _fired(lists: pa.Array, reason: str) -> Any:
    hit = np.zeros(len(lists), dtype=np.bool_)
    among = pc.equal(lists.flatten(), reason).to_numpy(zero_copy_only=False)
    hit[pc.list_parent_indices(lists).to_numpy()[among]] = True
    return hit


def _rejects(ctx: Context, bucket: str, reason: str, seed: int) -> Iterator[tuple[int, Place]]:
    documents = ctx.refs.published(f"{bucket}/documents")
    for number, part in enumerate(documents.named("rejects-") if documents else ()):
        first = 0
        for batch in iter_batches(ctx.store, part, ["uri", "where", "reason"]):
            at = np.flatnonzero(pc.equal(batch.column("reason"), reason).to_numpy(zero_copy_only=False))
            rows = batch.take(pa.array(at)).to_pylist()
            for row, one in zip(at.tolist(), rows, strict=True):
                identity = bytes.fromhex(reject_id(bucket, one["uri"], one["where"]))
                yield rank(identity, seed), ("reject", bucket, reason, number, first + row)
            first += batch.num_rows


def _row(ctx: Context, kind: str, bucket: str, reason: str, part: int, row: int) -> dict[str, Any]:
    documents = ctx.refs.current(f"{bucket}/documents")
    if kind == "reject":
        shown = _reject_row(ctx, documents, bucket, part, row)
    else:
        shown = _document_row(ctx, documents, bucket, reason, part, row)
    return {**shown, "label": None, "note": ""}


def _reject_row(ctx: Context, documents: Manifest, bucket: str, part: int, row: int) -> dict[str, Any]:
    found = read_row(ctx.store, documents.named("rejects-")[part], row)
    return {
        "id": reject_id(bucket, found["uri"], found["where"]),
        "bucket": bucket,
        "uri": found["uri"],
        "reason": found["reason"],
        "stage": "documents",
        "where": found["where"],
        "detail": found["detail"],
        "excerpt": excerpt(found["detail"]),
    }


def _document_row(ctx: Context, documents: Manifest, bucket: str, reason: str, part: int, row: int) -> dict[str, Any]:
    place = documents.named("part-")[part]
    found = read_row(ctx.store, place, row, ["id", "uri", "text"])
    policy = ctx.refs.current(f"{bucket}/policy")
    rule, values = _why(ctx, bucket, documents, policy, reason, part, row)
    stage = "policy" if rule else _STAGES.get(reason, PROTECTED)
    return {
        "id": found["id"].hex(),
        "bucket": bucket,
        "uri": found["uri"],
        "reason": reason,
        "stage": stage,
        "rule": rule,
        "values": values,
        "fired": read_row(ctx.store, policy.named("part-")[part], row, ["fired"])["fired"],
        "characters": len(found["text"]),
        "excerpt": excerpt(found["text"], EXCERPT_CHARACTERS),
        **({"cluster": cluster_of(ctx, stage, bucket, part, row)} if stage in CLUSTERING else {}),
    }


def _with_survivors(ctx: Context, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the survivor of the cluster added to each duplicate."""
    for stage in CLUSTERING:
        own = [row for row in rows if row["stage"] == stage]
        found = survivors(ctx, stage, (row["cluster"] for row in own))
        for row in own:
            row["survivor"] = found.get(row["cluster"])
    return rows


def _why(
    ctx: Context, bucket: str, documents: Manifest, policy: Manifest, reason: str, part: int, row: int
) -> tuple[str | None, dict[str, Any]]:
    """Return the expression of the policy rule with the given reason, and the values that the rule read for a document.
    Return (None, {}) if the reason is not a rule."""
    annotations = annotations_of(ctx, bucket, documents)
    try:
        judged, rights = published(policy)
        rule = compile_policy(judged, available(annotations), "policy", rights).rule(reason)
    except PlinthError:  # annotator no longer in the recipe: the verdict is valid, but its values cannot be shown
        return None, {}
    return (rule.text, rule_values(ctx.store, rule, documents, annotations, part, row)) if rule else (None, {})


def summary(reviews: Iterable[Review]) -> list[dict[str, Any]]:
    """Return, for each reason, the number of labels, and the share of correct removals with its 95% interval.

    The interval is Wilson's (1927), which is valid even for few labels and for shares near 0 and 1. The interval
    applies to all documents with the reason if the labeled documents are a random sample, such as those from `sample`.
    """
    counted: dict[str, Counter[str]] = {}
    for review in reviews:
        counted.setdefault(review.reason, Counter())[review.label] += 1
    rows = []
    for reason, labels in sorted(counted.items()):
        right, total = labels["bad"], labels.total()
        low, high = wilson(right, total)
        rows.append(
            {
                "reason": reason,
                "labels": total,
                "rightly_removed": right,
                "wrongly_removed": labels["good"],
                "precision": right / total,
                "low": low,
                "high": high,
            }
        )
    return rows
