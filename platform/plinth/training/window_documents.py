"""Reports the documents of an intervention's window on the timeline, without holding up a step.

The order of the data is arithmetic, so a thread of the leading rank can list the window's documents from the
manifests while training goes on. Sources are ranked by their share of the window against their share of the
steps before it, so that a source that is always common does not lead. `plinth run blame` goes further, by loss.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from plinth.errors import PlinthError
from plinth.training.config import RunConfig
from plinth.training.data import run_loader
from plinth.training.guard.records import Intervention
from plinth.training.guard.screening import TEXT_RULES, broken_rows
from plinth.training.step_documents import StepDocument, StepDocuments
from plinth.training.telemetry.timeline import Timeline

#: Documents that an event names; of the others it has the number.
NAMED = 200

#: Steps before a window that are compared with it, and steps of a window that are listed.
BEFORE, LISTED = 32, 64

#: How long the end of a run waits for the last window to be listed.
TIMEOUT_S = 30.0

_NAMED_ACTIONS = ("skip", "rollback", "stop")


class WindowReporter:
    """Names documents in the background; on the ranks that do not lead it does nothing.

    Args:
        config: the run, or None where nothing is to be named.
        events: where events go.
    """

    def __init__(self, config: RunConfig | None, events: Timeline) -> None:
        self.config, self._path = config, events.path
        self._wanted: queue.Queue[Intervention | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def report(self, made: Intervention) -> None:
        """Queue the documents of an intervention to be listed; returns at once."""
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
            except PlinthError as error:  # a run whose batches come from elsewhere has no manifests here
                found = {"unknown": str(error)}
            events.append("documents", **about, **found)


def describe(config: RunConfig, first: int, last: int) -> dict[str, Any]:
    """The documents of steps `first` to `last`, those of the sources that stand out first.

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
    """The rows of a step's global batch that break a rule of screening, the furthest out first, with their documents.

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
    """Sources by how much more of the window's tokens than of the tokens before it they are; the largest rise first."""
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
