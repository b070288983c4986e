"""Documents of a training step with their sources, read from the run's manifests only, without torch.

    step ─► positions (Steps) ─► sequences (Order) ─► documents (index) ─► uri and source (curated parts)

Does not belong here: the documents' tokens (data) and losses (forensics.replay).
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError
from plinth.records import Part
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth.tokens.order.batch import BatchSequence, documents_of_step
from plinth.training.config import RunConfig
from plinth.training.data import run_loader
from plinth.training.guard.rules import TEXT_RULES, Intervention, broken_rows
from plinth.training.telemetry.timeline import Timeline


@dataclass(frozen=True)
class StepDocument:
    """The tokens of one document in one row of a step's global batch.

    Attributes:
        row: index of the row (a sequence) in the global batch.
        first, tokens: position of the first token in the sequence of S + 1 tokens, and number of tokens.
        source: domain that the document's source declares.
        part, index: part of the bucket's curated text with this document, and index in that part.
    """

    step: int
    row: int
    first: int
    tokens: int
    id: str
    bucket: str
    source: str
    uri: str
    part: int
    index: int


class StepDocuments:
    """Reader of the documents that each step of a run is trained on.

    Raises:
        MissingError: the manifests of the run's data are not in its workspace.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.ctx = Context(Workspace(config.workspace))
        self.mixture = self.ctx.refs.load(config.mixture)
        self.shards = {name: self.ctx.refs.load(digest) for name, digest in config.shards.items()}
        self._places = lru_cache(maxsize=32)(self._read_places)

    def of_step(self, step: int) -> list[StepDocument]:
        """Return the documents of a step, in the order of the batch.

        Raises:
            MissingError: the run has no such step.
        """
        if not 1 <= step <= self.config.total_steps:
            raise MissingError(
                f"run {self.config.run_id} has no step {step}", expected=f"a step from 1 to {self.config.total_steps}"
            )
        sequences = documents_of_step(self.ctx, self.mixture, self.shards, step - 1, self.config.draws)
        return [seen for sequence in sequences for seen in self._seen(step, sequence)]

    def text(self, seen: StepDocument) -> str:
        """Return the curated text of a document."""
        table = read_table(self.ctx.store, self._curated(seen.bucket, seen.part), ["text"])
        text: str = table.column("text")[seen.index].as_py()
        return text

    def _seen(self, step: int, sequence: BatchSequence) -> list[StepDocument]:
        bucket, rows = sequence.sequence.stream, []
        for piece in sequence.documents:
            uris, sources = self._places(bucket, piece.document.part)
            row = piece.document.row
            rows.append(
                StepDocument(
                    step=step,
                    row=sequence.row,
                    first=piece.first,
                    tokens=piece.tokens,
                    id=piece.document.id,
                    bucket=bucket,
                    source=sources[row],
                    uri=uris[row],
                    part=piece.document.part,
                    index=row,
                )
            )
        return rows

    def _curated(self, stream: str, part: int) -> Part:
        bucket = stream.partition("/")[0]
        manifest = self.ctx.refs.load(self.shards[bucket].inputs[f"{bucket}/curated"])
        return manifest.named("part-")[part]

    def _read_places(self, bucket: str, part: int) -> tuple[list[str], list[str]]:
        """Return the URIs and the declared domains of all documents in a part."""
        table = read_table(self.ctx.store, self._curated(bucket, part), ["uri", "extra"])
        extras = table.column("extra").to_pylist()
        known: dict[str, str] = defaultdict(str)
        for extra in set(extras):
            known[extra] = str((json.loads(extra) if extra else {}).get("domain") or "")
        return table.column("uri").to_pylist(), [known[extra] for extra in extras]


# Lists the documents of an intervention's window on the timeline, without delaying a step.
#
# The order of the data is computed, so a thread of the leading rank can list the window's documents from the manifests
# during training. Sources are ranked by their share of the window relative to their share of earlier steps, so
# constantly frequent sources do not lead. `plinth run blame` ranks by loss.

#: Maximum number of documents listed in an event. The event has the number of the others.
NAMED = 200

#: Number of steps before a window that it is compared with, and maximum number of listed steps in a window.
BEFORE, LISTED = 32, 64

#: Seconds that the end of a run waits for the last window to be listed.
TIMEOUT_S = 30.0

_NAMED_ACTIONS = ("skip", "rollback", "stop")


class WindowReporter:
    """Background thread that lists the documents of the guard's interventions on the leading rank. It does nothing on
    other ranks.

    Args:
        config: the run, or None to list nothing.
        events: timeline that receives the lists as events.
    """

    def __init__(self, config: RunConfig | None, events: Timeline) -> None:
        self.config, self._path = config, events.path
        self._wanted: queue.Queue[Intervention | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def report(self, made: Intervention) -> None:
        """Queue the steps of an intervention, so that their documents are listed, and return at once."""
        if self.config is None or (made.action not in _NAMED_ACTIONS and made.rule not in TEXT_RULES):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="window-reporter", daemon=True)
            self._thread.start()
        self._wanted.put(made)

    def close(self) -> None:
        """Wait until all queued windows are listed."""
        if self._thread is not None:
            self._wanted.put(None)
            self._thread.join(TIMEOUT_S)

    def _work(self) -> None:
        assert self.config is not None
        events = Timeline(self._path)
        while (made := self._wanted.get()) is not None:
            about: dict[str, Any] = {
                "number": made.number,
                "action": made.action,
                "rule": made.rule,
                "window": [made.first, made.last],
            }
            try:
                found = describe(self.config, made.first, made.last)
                if made.rule in TEXT_RULES:
                    found |= describe_rows(self.config, made.step, made.rule)
            except PlinthError as error:  # a run with external batches has no manifests here
                found = {"unknown": str(error)}
            events.append("documents", **about, **found)


def describe(config: RunConfig, first: int, last: int) -> dict[str, Any]:
    """Return the documents of steps `first` to `last`, and their sources, the most overrepresented first.

    Raises:
        MissingError, IntegrityError: the manifests of the run's data are not in its workspace.
    """
    documents = StepDocuments(config)
    last = min(last, config.total_steps, first + LISTED - 1)
    inside = [seen for step in range(first, last + 1) for seen in documents.of_step(step)]
    before = [seen for step in range(max(1, first - BEFORE), first) for seen in documents.of_step(step)]
    sources = rank_sources(inside, before)
    place = {(row["bucket"], row["source"]): number for number, row in enumerate(sources)}
    inside.sort(key=lambda seen: (place[seen.bucket, seen.source], seen.step, seen.row, seen.first))
    return {
        "sources": sources,
        "buckets": dict(sorted(Counter(seen.bucket for seen in inside).items())),
        "documents_count": len(inside),
        "documents": [
            {"step": seen.step, "id": seen.id, "bucket": seen.bucket, "source": seen.source, "uri": seen.uri}
            for seen in inside[:NAMED]
        ],
    }


def describe_rows(config: RunConfig, step: int, rule: str) -> dict[str, Any]:
    """Return the rows of a step's global batch that violate a screening rule, with their documents.

    The most extreme row comes first.

    Raises:
        MissingError, IntegrityError: the data of the run is not in its workspace, or has changed.
    """
    assert config.guard.screening is not None
    loader = run_loader(config, 0, 1)
    share = loader.batch(step - 1)
    streams = [loader.order.streams[number] for number in share.streams.tolist()]
    broken = broken_rows(config.guard.screening, share, streams, rule)
    documents: dict[int, list[str]] = {}
    for seen in StepDocuments(config).of_step(step):
        documents.setdefault(seen.row, []).append(seen.id)
    named = [{"row": row, "value": round(value, 6), "documents": documents[row]} for row, value in broken[:NAMED]]
    return {"rows_count": len(broken), "rows": named}


def rank_sources(inside: Iterable[StepDocument], before: Iterable[StepDocument]) -> list[dict[str, Any]]:
    """Rank sources by the increase of their fraction of tokens, from the steps before a window to the window.

    The source with the largest increase comes first.
    """
    now, then = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    documents = Counter[tuple[str, str]]()
    for seen in inside:
        now[seen.bucket, seen.source] += seen.tokens
        documents[seen.bucket, seen.source] += 1
    for seen in before:
        then[seen.bucket, seen.source] += seen.tokens
    all_now, all_then = max(1, now.total()), max(1, then.total())
    rows: list[dict[str, Any]] = [
        {
            "bucket": bucket,
            "source": source,
            "documents": documents[bucket, source],
            "share": round(tokens / all_now, 4),
            "share_before": round(then[bucket, source] / all_then, 4),
        }
        for (bucket, source), tokens in sorted(now.items())
    ]
    return sorted(rows, key=lambda row: row["share_before"] - row["share"])
