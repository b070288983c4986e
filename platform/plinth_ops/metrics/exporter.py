"""Exporter that collects each part of the metrics at its own interval and serves the last samples to Prometheus.

    refresh ──▶ parts that are due ──▶ samples ──▶ prometheus_client ──▶ GET /metrics

A scrape never waits: it returns the last samples. If a part fails, its last samples stay, its `plinth_collector_up` is
0, and the other parts continue. The age of the samples is a separate metric. A part may be collected in another
process (`parts`); its samples are available at a later refresh.

Does not belong here: the sources of a part (`collectors`, `signed`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from plinth.errors import PlinthError
from plinth.storage.atomic import write_bytes
from plinth.text import is_address
from plinth.training.sinks.run_metrics import Families, MetricSample
from plinth_ops.metrics.table import METRICS

#: Refresh interval, and polling interval while waiting for all parts, in seconds.
REFRESH_S: Final = 5.0
PAUSE_S: Final = 0.1

#: Host names of loopback.
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass
class ExportPart:
    """Group of metrics that are collected together.

    Attributes:
        every_s: seconds between two collections.
        collect: function that returns the samples, or None while the collection runs. Each refresh then calls it again.
        watch: function that returns the state of the part's source; a changed state triggers an early collection.
    """

    name: str
    every_s: float
    collect: Callable[[], Iterable[MetricSample] | None]
    watch: Callable[[], object] = lambda: None
    samples: list[MetricSample] = field(default_factory=list)
    due: float = 0.0
    begun: float | None = None
    seen: object = None
    up: bool = True
    seconds: float = 0.0
    fault: str = ""


class Exporter:
    """Exporter of all parts of the metrics.

    Args:
        read_bytes: function that returns the number of timeline bytes read so far.
        say: function that receives a message when a part starts to fail.
        end: function that stops the process that collects parts, called when the exporter ends.
    """

    def __init__(
        self,
        parts: Sequence[ExportPart],
        read_bytes: Callable[[], int] = lambda: 0,
        say: Callable[[str], None] = lambda sentence: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.parts, self._read_bytes, self._say = parts, read_bytes, say
        self._own: list[MetricSample] = []
        self.families, self.end = Families(METRICS, self.samples), end

    def samples(self) -> Iterator[MetricSample]:
        """Yield the most recent samples of every part."""
        yield from self._own
        for part in self.parts:
            yield from part.samples

    @property
    def text(self) -> bytes:
        """Most recent samples of every part, in the Prometheus text format."""
        return generate_latest(self.families)

    def refresh(self, now: float | None = None) -> None:
        """Collect the parts that are due.

        Args:
            now: time of the refresh in Unix seconds; by default, the current time.
        """
        at = time.time() if now is None else now
        for part in self.parts:
            if part.begun is None and ((state := part.watch()) != part.seen or at >= part.due):
                part.begun, part.due, part.seen = time.perf_counter(), at + part.every_s, state
            if part.begun is not None:
                self._collect(part, part.begun)
        self._own = list(self._about_itself(at))

    def complete(self) -> bytes:
        """Refresh until every part has been collected; return the metrics as text."""
        self.refresh()
        while any(part.begun is not None for part in self.parts):
            time.sleep(PAUSE_S)
            self.refresh()
        return self.text

    def _collect(self, part: ExportPart, begun: float) -> None:
        try:
            found = part.collect()
            if found is None:
                return
            part.samples, fault = list(found), ""
        except (PlinthError, OSError, ValueError) as error:  # the last samples stay
            fault = " ".join(str(error).split())
        part.begun, part.up, part.seconds = None, not fault, time.perf_counter() - begun
        if fault and fault != part.fault:
            self._say(f"cannot collect {part.name}: {fault}")
        part.fault = fault

    def _about_itself(self, now: float) -> Iterator[MetricSample]:
        yield MetricSample("plinth_exporter_timestamp_seconds", (), now)
        yield MetricSample("plinth_exporter_read_bytes_total", (), float(self._read_bytes()))
        yield MetricSample("plinth_collector_up", ("exporter",), 1.0)
        for part in self.parts:
            yield MetricSample("plinth_collector_up", (part.name,), float(part.up))
            yield MetricSample("plinth_collector_seconds", (part.name,), part.seconds)


def write(exporter: Exporter, path: Path) -> None:
    """Collect all metrics once, and write them atomically to a file for node_exporter's textfile collector.

    Raises:
        StorageError, DiskFullError, WorkspaceError: the file cannot be written.
    """
    try:
        write_bytes(path, exporter.complete())
    finally:
        exporter.end()


def serve(
    exporter: Exporter, host: str, port: int, over: Callable[[], bool], wait: Callable[[float], object] = time.sleep
) -> None:
    """Serve `GET /metrics` and refresh the metrics until `over` returns True.

    Args:
        wait: function that waits for a number of seconds; it may return earlier.

    Raises:
        OSError: the port is already in use.
    """
    with _server(exporter, host, port) as server:
        exporter.refresh()
        thread = threading.Thread(target=server.serve_forever, name="plinth-metrics", daemon=True)
        thread.start()
        try:
            while not over():
                wait(REFRESH_S)
                exporter.refresh()
        finally:
            exporter.end()
            server.shutdown()
            thread.join()


def _is_named(named: str, host: str, port: int) -> bool:
    """Return True if a Host header names this server. Requests for other names are rejected to prevent DNS rebinding.

    Args:
        host, port: address that the server listens on.
    """
    try:
        parts = urlsplit(f"//{named}")
        name, asked = parts.hostname or "", parts.port or 80
    except ValueError:
        return False
    if name in LOOPBACK or name == host.lower():
        return asked == port
    return host not in LOOPBACK and is_address(name)  # a scrape from another machine, perhaps by a mapped port


def _server(exporter: Exporter, host: str, port: int) -> WSGIServer:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter.families)
    metrics = make_wsgi_app(registry)

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        named, origin = request.get("HTTP_HOST", ""), request.get("HTTP_ORIGIN")
        if origin in (None, f"http://{named}") and _is_named(named, host, int(request["SERVER_PORT"])):
            answered: Iterable[bytes] = metrics(request, start)
            return answered
        start("403 Forbidden", [])
        return ()

    return make_server(host, port, answer, ThreadingWSGIServer, MetricsRequest)


class MetricsRequest(WSGIRequestHandler):
    """Request handler without an access log, which would grow with every scrape. Idle clients are disconnected."""

    timeout = 10.0

    def handle(self) -> None:
        with suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None: ...
