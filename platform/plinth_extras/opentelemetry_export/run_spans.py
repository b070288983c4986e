"""A run's timeline as spans, metrics and log records.

    training job               from its submission to its end, or to its last event if it was killed
      attempt                  one start of the ranks
        goodput, input, …      rank-seconds with one cause, as the goodput ledger counts them
        save checkpoint, …     work whose event states its duration

Work with a duration, log records (one per event that is not a step) and metrics are sent while the job runs. Jobs,
attempts and rank-seconds are sent when the job has ended, because later events may still change the cause of earlier
time. The times of an attempt's rank-seconds, multiplied by its ranks, add up to the ledger by cause.

Metrics are those of `training.sinks.run_metrics`, with the same names as in Prometheus.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource

from plinth.report.run_metrics import MARKED, words
from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.sinks.added import SinkRow
from plinth.training.sinks.run_metrics import RUN, MetricSample, RunFollower
from plinth.training.telemetry.goodput import AttemptTime, GoodputLedger, TimeSpan
from plinth.training.telemetry.goodput_account import GoodputAccount
from plinth.training.telemetry.timeline import JOB_ENDS, Event, TimelineReader
from plinth_extras.opentelemetry_export.otlp import SCOPE, Exporters, PlannedSpan, Trace, resource

#: Spans of events that state the duration of the work before them.
LASTED: Final = {
    "checkpoint": "save checkpoint",
    "evaluated": "evaluate",
    "hosts_checked": "check hosts",
    "uploaded": "upload checkpoint",
    "downloaded": "download checkpoint",
    "profiled": "write profile",
}

#: Events of the timeline between two bookmarks.
_CHUNK: Final = 512
#: Seconds for a request after one has failed, so that a dead endpoint does not delay the end of a job.
IMPATIENT_S: Final = 1.0
_UNITS: Final = {"seconds": "s", "bytes": "By"}


def trace_name(run: str) -> str:
    """Return the name of a run's trace."""
    return f"run {run}"


def job_key(job: int) -> str:
    """Return the key of a job's span; jobs are counted from 1."""
    return f"job {job}"


def attempt_key(number: int) -> str:
    """Return the key of an attempt's span; attempts are counted over all jobs of the run, from 0."""
    return f"attempt {number}"


class RunExport:
    """Sink of the relay. The timeline is its queue: the bookmark moves when a chunk of events was accepted.

    Args:
        mark: file with the last accepted event and the number of failed exports.
    """

    def __init__(self, config: RunConfig, mark: Path) -> None:
        self._config, self._mark = config, mark
        self._trace, self._resource, self._exporters = Trace(trace_name(config.run_id)), resource(), Exporters()
        self._is_impatient = False
        self._story, self._read = self._beginning(), 0
        self._reader, self._events = TimelineReader(config.directory.events), deque[Event]()
        self._followed, self._measured = RunFollower(config), 0.0
        known = json.loads(mark.read_bytes()) if mark.exists() else {}
        self._seq, self._failures = int(known.get("seq", 0)), int(known.get("failures", 0))
        self._spans, self._logs, self._taken = list[PlannedSpan](), list[ReadableLogRecord](), self._seq

    def go_back(self, step: int) -> None:
        """Do nothing: what was sent stays."""

    def write(self, row: SinkRow) -> None:
        """Do nothing: `flush` reads the timeline itself, with events that have no numbers."""

    def flush(self) -> None:
        """Send all new events.

        Raises:
            StorageError: the endpoint did not accept them; the next call sends them again.
        """
        try:
            self._send()
            self._poll()
            while self._events:
                for _ in range(min(_CHUNK, len(self._events))):
                    self._take(self._events.popleft())
                self._send()
            self._send_metrics()
        except Exception:
            self._failures += 1
            self._write_mark()
            self._renew(IMPATIENT_S)
            raise
        if self._is_impatient:
            self._renew(None)

    def close(self) -> None:
        """Close the connections."""
        self._exporters.close()

    def _renew(self, timeout_s: float | None) -> None:
        self._exporters.close()
        self._exporters, self._is_impatient = Exporters(timeout_s), timeout_s is not None

    def _beginning(self) -> RunStory:
        return RunStory(self._config.run_id, self._config.recipe, self._config.ranks)

    def _poll(self) -> None:
        """Read new events. If an earlier timeline from another machine was put before, begin again."""
        events = self._reader.poll()
        if events and events[0]["seq"] <= self._read:
            self._story = self._beginning()
        self._read = events[-1]["seq"] if events else self._read
        self._events.extend(events)

    def _take(self, event: Event) -> None:
        """Plan what an event adds. Events before the bookmark only bring the account up to date."""
        planned = self._story.add(event)
        if event["seq"] <= self._seq:
            return
        self._taken = event["seq"]
        self._spans += planned
        if event["event"] != "step":
            self._logs.append(self._record(event))

    def _send(self) -> None:
        self._exporters.send("traces", self._trace.spans(self._spans))
        self._spans = []
        self._exporters.send("logs", self._logs)
        self._logs = []
        if self._taken > self._seq:
            self._seq = self._taken
            self._write_mark()

    def _write_mark(self) -> None:
        write_bytes(self._mark, json.dumps({"seq": self._seq, "failures": self._failures}).encode())

    def _record(self, event: Event) -> ReadableLogRecord:
        kind = str(event["event"])
        bad = MARKED.get(kind) == "bad"
        made = LogRecord(
            timestamp=round(event["time"] * 1e9),
            context=self._trace.context(self._story.current),
            severity_number=SeverityNumber.WARN if bad else SeverityNumber.INFO,
            severity_text="WARN" if bad else "INFO",
            body=f"{kind}: {words(event)}".rstrip(": "),
            attributes={"plinth.run": self._config.run_id, "plinth.event": kind, "plinth.seq": event["seq"]},
            event_name=f"plinth.{kind}",
        )
        return ReadableLogRecord(made, self._resource, SCOPE)

    def _send_metrics(self) -> None:
        """Send the values after the last event, if there is a new one."""
        self._followed.poll()
        state = self._followed.state
        if state.last > self._measured:
            self._exporters.send_metrics(metrics(state.samples(), state.last, self._resource))
            self._measured = state.last


class RunStory:
    """Spans of a timeline, event by event."""

    def __init__(self, run: str, recipe: str, ranks: int) -> None:
        self._facts = {"plinth.run": run, "plinth.recipe": recipe}
        self._account, self._attempts = GoodputAccount(ranks), 0
        self._job, self._sent = 0, 0  # the newest job, and the last one with spans
        self._ends: dict[int, Event] = {}

    @property
    def current(self) -> str:
        """Key of the attempt to which the last event belongs; empty before the first event."""
        return attempt_key(self._attempts - 1) if self._attempts else ""

    def add(self, event: Event) -> list[PlannedSpan]:
        """Add the next event, and return the spans that are final now: those of a job at its final event. A job without
        one waits for the first step of the next job, which may first discard steps of it.
        """
        self._account.add(event)
        kind = str(event["event"])
        if kind == "step" and self._attempts and self._job - 1 <= self._sent:
            return []
        ledger = self._account.ledger()
        if not ledger.attempts:  # the end of a job that never began
            return []
        self._attempts, self._job = len(ledger.attempts), ledger.attempts[-1].job
        if kind in JOB_ENDS:
            self._ends.setdefault(self._job, event)
        found = [self._work(event)] if kind in LASTED and "seconds" in event else []
        if kind in JOB_ENDS or kind == "step":
            found += self._jobs(ledger, self._job - (kind == "step"))
        return found

    def _work(self, event: Event) -> PlannedSpan:
        end = round(event["time"] * 1e6)
        begin = end - max(0, round(float(event["seconds"]) * 1e6))
        facts = {f"plinth.{name}": event[name] for name in ("step", "bytes", "tokens") if name in event}
        return PlannedSpan(
            f"event {event['seq']}", LASTED[event["event"]], begin, end, self._facts | facts, self.current
        )

    def _jobs(self, ledger: GoodputLedger, until: int) -> Iterator[PlannedSpan]:
        """Yield the spans of the jobs up to `until` that have no spans yet."""
        new = [(number, one) for number, one in enumerate(ledger.attempts) if self._sent < one.job <= until]
        self._sent = max(self._sent, until)
        if not new:
            return
        times: dict[int, list[TimeSpan]] = {number: [] for number, _ in new}
        for span in self._account.spans():
            if span.attempt in times:
                times[span.attempt].append(span)
        for job, attempts in groupby(new, lambda each: each[1].job):
            parts = list(attempts)
            yield self._job_span(job, [one for _, one in parts])
            for number, one in parts:
                yield from self._of_attempt(attempt_key(number), one, without_debts(times[number]))

    def _job_span(self, job: int, attempts: Sequence[AttemptTime]) -> PlannedSpan:
        end = self._ends.get(job, {"event": "killed", "reason": "the job has no final event"})
        how = str(end["event"])
        error = "" if how in ("finished", "stopped") else str(end.get("reason") or how)
        facts = {"plinth.job": job, "plinth.job.end": how}
        begin, until = attempts[0].begin, attempts[-1].end
        return PlannedSpan(job_key(job), "training job", _us(begin), _us(until), self._facts | facts, error=error)

    def _of_attempt(self, key: str, one: AttemptTime, spans: Iterable[TimeSpan]) -> Iterator[PlannedSpan]:
        facts: dict[str, Any] = {"plinth.job": one.job, "plinth.attempt": one.attempt, "plinth.ranks": one.ranks}
        causes = {f"plinth.rank_seconds.{cause.replace(' ', '_')}": us / 1e6 for cause, us in one.rank_us.items()}
        whole = self._facts | facts | causes
        yield PlannedSpan(key, "attempt", _us(one.begin), _us(one.end), whole, job_key(one.job))
        for number, span in enumerate(spans):
            step = {} if span.step is None else {"plinth.step": span.step}
            own = {"plinth.cause": span.cause, "plinth.ranks": one.ranks, **step}
            yield PlannedSpan(f"{key} time {number}", span.cause, span.begin_us, span.begin_us + span.us, own, key)


def without_debts(spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    """Return the time spans of an attempt without those below 0, which no trace can have. As in the ledger, they
    shorten spans of the same cause, or else of the largest cause.
    """
    kept = [span for span in spans if span.us > 0]
    debts = Counter[str]()
    for span in spans:
        debts[span.cause] -= min(0, span.us)
    for cause, debt in debts.items():
        while debt and kept:
            sums = Counter[str]()
            for span in kept:
                sums[span.cause] += span.us
            payer = cause if sums[cause] > 0 else max(sums, key=lambda one: sums[one])
            at = max((n for n, span in enumerate(kept) if span.cause == payer), key=lambda n: kept[n].us)
            paid = min(debt, kept[at].us)
            kept[at] = kept[at]._replace(us=kept[at].us - paid)
            debt -= paid
            kept = [span for span in kept if span.us > 0]
    return kept


def metrics(samples: Iterable[MetricSample], at: float, of: Resource) -> MetricsData:
    """Return samples of the table `RUN` as metrics of OTLP, with the time of the last event."""
    now = round(at * 1e9)
    points: dict[str, list[NumberDataPoint]] = {}
    for name, labels, value in samples:
        attributes = dict(zip(RUN[name].labels, labels, strict=True))
        points.setdefault(name, []).append(NumberDataPoint(attributes, 0, now, value))
    found = [
        Metric(name, RUN[name].meaning, _UNITS.get(RUN[name].unit, "1"), _data(RUN[name].kind, many))
        for name, many in points.items()
    ]
    return MetricsData([ResourceMetrics(of, [ScopeMetrics(SCOPE, found, "")], "")])


def _data(kind: str, points: Sequence[NumberDataPoint]) -> Gauge | Sum:
    return Sum(points, AggregationTemporality.CUMULATIVE, True) if kind == "counter" else Gauge(points)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
