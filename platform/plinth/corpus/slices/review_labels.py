"""Labels of reviewers: lines of JSON below `reviews/` of the workspace, only ever added to.

    {"id": "0123…ef", "reason": "toxic", "label": "good", "reviewer": "ada@example.org", "time": "2026-01-31T12:00:00Z"}

`id` is the document's, 32 hexadecimal digits. `reason` is the policy's for which it was looked at. `label` is the
reviewer's judgement of that reason: `bad` where the document was rightly removed for it (or should have been), `good`
where not. Of several labels of one document and reason the latest counts. Files may also be Parquet with the same
columns (`time` as text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, ValidationError, field_validator

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus.slices.generate import Labelled
from plinth.errors import SourceError
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.atomic import append_to, named_failures
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

FOLDER = "reviews"
Label = Literal["good", "bad"]


class Review(Frozen):
    """One reviewer's label of one document."""

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
            raise ValueError("needs an offset from UTC, such as a closing Z")
        return value

    @property
    def moment(self) -> datetime:
        """The time as such."""
        return datetime.fromisoformat(self.time)


def append(workspace: Workspace, reviews: Iterable[Review]) -> Path:
    """Add labels of one reviewer to that reviewer's file, in one write, so that two sessions do not mix lines.

    Raises:
        ValueError: no labels, or those of several reviewers.
    """
    given = list(reviews)
    if len({review.reviewer for review in given}) != 1:
        raise ValueError("labels of one reviewer are needed")
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", given[0].reviewer).strip("._")
    path = workspace.root / FOLDER / f"{name or 'reviewer'}.jsonl"
    with append_to(path) as stream, named_failures(path):
        stream.write("".join(json.dumps(review.model_dump()) + "\n" for review in given).encode())
        stream.flush()
    return path


def read(workspace: Workspace) -> tuple[Review, ...]:
    """The label that counts of every document and reason, sorted by both.

    Raises:
        SourceError: a file cannot be read or a line is no review; names it.
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
    """The files of labels, in order of name."""
    folder = workspace.root / FOLDER
    return sorted(path for suffix in ("*.jsonl", "*.parquet") for path in folder.glob(suffix))


def digest(workspace: Workspace) -> str:
    """Identity of all labels; order and place of the lines do not matter."""
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
            f"{where} is no review",
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
    """Id and text of the labelled documents, one part for every part of documents, with its bucket. Nothing is read
    where there are no labels."""
    ids = tuple(sorted({bytes.fromhex(review.id) for review in reviews}))
    if not ids:
        return ()
    step = Step(name="slices/reviewed", version=VERSION, params={"ids": [one.hex() for one in ids]})
    parts = [(bucket, part) for bucket in sorted(documents) for part in documents[bucket].named("part-")]
    items = [Item((part.blob.sha256,), _Task(ids, part), part.rows) for _, part in parts]
    made = run_items(ctx, step, _chosen, items, label=f"slices/{gate} reviews")
    return tuple((bucket, done[0]) for (bucket, _), done in zip(parts, made, strict=True) if done[0].rows)


def labelled(store: Store, found: Sequence[tuple[str, Part]], reviews: Sequence[Review]) -> list[Labelled]:
    """The documents with the reviewers' labels; one that was labelled for two reasons is there twice."""
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
