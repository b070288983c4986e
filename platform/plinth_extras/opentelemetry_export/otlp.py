"""Spans with derived ids, and their export by OTLP over HTTP, together with metrics and log records.

The ids of a span are digests of what it describes (run, job, attempt, event). An export that is repeated after a crash
has the same ids, so a backend can tell that a span is a copy. If `TRACEPARENT` is set (W3C Trace Context), its trace
and its span are the parents of everything that has no other parent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import plinth
from plinth.errors import StorageError
from plinth_extras.opentelemetry_export import signals

SCOPE: Final = InstrumentationScope("plinth", plinth.__version__)
#: Spans or log records in one request.
BATCH: Final = 512

T = TypeVar("T")
Attributes = Mapping[str, Any]


class PlannedSpan(NamedTuple):
    """A span to send.

    Args:
        key: what the span describes, unique in its trace; its id is derived from it.
        begin_us, end_us: microseconds since the epoch.
        parent: key of the parent in the same trace; empty for a span at the top.
        error: reason of a failure.
        linked: name of another trace, and key of a span there that this span refers to.
    """

    key: str
    name: str
    begin_us: int
    end_us: int
    attributes: Attributes
    parent: str = ""
    error: str = ""
    linked: tuple[str, str] | None = None


def trace_id(name: str) -> int:
    """Return the trace id derived from a name, such as the id of a run."""
    return int.from_bytes(hashlib.sha256(f"plinth trace\n{name}".encode()).digest()[:16]) or 1


def span_id(name: str, key: str) -> int:
    """Return the span id derived from a trace's name and what the span describes."""
    return int.from_bytes(hashlib.sha256(f"plinth span\n{name}\n{key}".encode()).digest()[:8]) or 1


def resource() -> Resource:
    """Return the resource of the environment. Without OTEL_SERVICE_NAME, the service is `plinth`."""
    own = Resource({SERVICE_NAME: "plinth", SERVICE_VERSION: plinth.__version__})
    given = Resource.create()
    unnamed = str(given.attributes[SERVICE_NAME]).startswith("unknown_service")
    return given.merge(own) if unnamed else own.merge(given)


class Trace(IdGenerator, SpanProcessor):
    """One trace: makes its spans with the SDK's tracer, which knows the environment's sampler and limits.

    Args:
        name: name of the trace; its id is derived from it, unless `TRACEPARENT` is set.
    """

    def __init__(self, name: str) -> None:
        self._name, self._key = name, ""
        self._ended: list[ReadableSpan] = []
        provider = TracerProvider(resource=resource(), id_generator=self, shutdown_on_exit=False)
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer(SCOPE.name, SCOPE.version)
        carrier = {key: os.environ.get(key.upper(), "") for key in ("traceparent", "tracestate")}
        self._outer = TraceContextTextMapPropagator().extract(carrier)
        outer = trace.get_current_span(self._outer).get_span_context()
        self.id, self._flags = outer.trace_id or trace_id(name), outer.trace_flags if outer.is_valid else SAMPLED

    def context(self, key: str) -> Any:
        """Return the context of a span of this trace; that of `TRACEPARENT` if the key is empty."""
        if not key:
            return self._outer
        parent = SpanContext(self.id, span_id(self._name, key), is_remote=False, trace_flags=self._flags)
        return trace.set_span_in_context(NonRecordingSpan(parent))

    def spans(self, planned: Iterable[PlannedSpan]) -> Iterator[ReadableSpan]:
        """Yield finished spans with their own times, except those that the environment's sampler drops."""
        for one in planned:
            self._key = one.key
            links = [Link(self._elsewhere(*one.linked))] if one.linked else []
            span = self._tracer.start_span(
                one.name, self.context(one.parent), attributes=one.attributes, links=links,
                start_time=one.begin_us * 1000,
            )  # fmt: skip
            if one.error:
                span.set_status(Status(StatusCode.ERROR, one.error))
            span.end(one.end_us * 1000)
            yield from self._ended
            self._ended.clear()

    def _elsewhere(self, name: str, key: str) -> SpanContext:
        outer = trace.get_current_span(self._outer).get_span_context()
        return SpanContext(outer.trace_id or trace_id(name), span_id(name, key), is_remote=True)

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that the tracer has made."""
        self._ended.append(span)

    def generate_span_id(self) -> int:
        """Return the id of the span that is made now."""
        return span_id(self._name, self._key)

    def generate_trace_id(self) -> int:
        """Return the id of the trace."""
        return self.id


SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Exporters:
    """The environment's exporters. A signal without an endpoint is dropped.

    The exporters log each failed request by themselves. Their last message becomes the reason of our error instead, so
    that the caller reports it once.

    Args:
        timeout_s: seconds for a request with its retries; default: OTEL_EXPORTER_OTLP_TIMEOUT, or 10.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        made: dict[str, Callable[..., Any]]
        made = {"traces": OTLPSpanExporter, "metrics": OTLPMetricExporter, "logs": OTLPLogExporter}
        self._exporters = {signal: made[signal](timeout=timeout_s) for signal in signals()}
        self._said = _Said()
        self._loggers = [logging.getLogger(type(one).__module__) for one in self._exporters.values()]
        for logger in self._loggers:
            logger.addFilter(self._said)

    def send(self, signal: str, records: Iterable[ReadableSpan | ReadableLogRecord]) -> None:
        """Send spans (`traces`) or log records (`logs`) in batches.

        Raises:
            StorageError: a request failed, after the exporter's own retries.
        """
        for batch in _batches(records, BATCH):
            self._export(signal, batch)

    def send_metrics(self, data: MetricsData) -> None:
        """Send metrics.

        Raises:
            StorageError: the request failed, after the exporter's own retries.
        """
        self._export("metrics", data)

    def close(self) -> None:
        """Close the connections."""
        for exporter in self._exporters.values():
            exporter.shutdown()
        for logger in self._loggers:
            logger.removeFilter(self._said)

    def _export(self, signal: str, data: Any) -> None:
        if signal in self._exporters and self._exporters[signal].export(data).name != "SUCCESS":
            raise StorageError(f"the OTLP endpoint accepts no {signal}", found=self._said.last)


class _Said(logging.Filter):
    """Filter that keeps the last message that the creating thread logs, and does not let it pass."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self._thread = "no answer", threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread == self._thread:
            self.last = record.getMessage()
        return record.thread != self._thread


def _batches(records: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    left = iter(records)
    while batch := list(islice(left, size)):
        yield batch
