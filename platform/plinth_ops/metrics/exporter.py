"""The exporter: collects the parts of the metrics, each at its own pace, and answers Prometheus with what it has.

    refresh ──▶ parts that are due ──▶ one text ──▶ GET /metrics

A scrape sends bytes that are there: it costs the same for one run and for a thousand, and waits for nothing. A part
that fails keeps its last samples, and is named in `plinth_collector_up`; the others go on. How old the text is, is a
metric of its own. A part may be collected elsewhere (`parts`): it is taken at a later refresh.

Does not belong here: what a part reads (`collectors`, `signed`).
"""

from __future__ import annotations

import http.server
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from plinth.errors import PlinthError
from plinth.storage.atomic import write_bytes
from plinth.training.sinks.metric import MetricLines, MetricSample, joined, lines
from plinth_ops.metrics.table import METRICS

#: Seconds between two refreshes; and between two looks, where whoever wants the whole text waits for it.
REFRESH_S: Final = 5.0
PAUSE_S: Final = 0.1

#: Host names of loopback.
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class ExportPart:
    """One part of the metrics.

    Attributes:
        every_s: seconds between two collections.
        collect: its samples, or lines of them; None: they are not there yet, and the next refresh looks again.
        watch: the state of what it reads; where that changed, it is collected before its time.
    """

    name: str
    every_s: float
    collect: Callable[[], Iterable[MetricSample | MetricLines] | None]
    watch: Callable[[], object] = lambda: None
    lines: list[MetricLines] = field(default_factory=list)
    due: float = 0.0
    begun: float | None = None
    seen: object = None
    up: bool = True
    seconds: float = 0.0
    fault: str = ""


class Exporter:
    """The text of all parts.

    Args:
        read_bytes: bytes of timelines read until now.
        say: takes a sentence about a part that begins to fail.
        end: called at the end, for what collects parts elsewhere.
    """

    def __init__(
        self,
        parts: Sequence[ExportPart],
        read_bytes: Callable[[], int] = lambda: 0,
        say: Callable[[str], None] = lambda sentence: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.parts, self._read_bytes, self._say = parts, read_bytes, say
        self.text, self.end = b"", end

    def refresh(self, now: float | None = None) -> bytes:
        """Collect the parts that are due; returns the text.

        Args:
            now: Unix seconds.
        """
        at = time.time() if now is None else now
        for part in self.parts:
            if part.begun is None and ((state := part.watch()) != part.seen or at >= part.due):
                part.begun, part.due, part.seen = time.perf_counter(), at + part.every_s, state
            if part.begun is not None:
                self._collect(part, part.begun)
        found = [one for part in self.parts for one in part.lines]
        self.text = joined(METRICS, [lines(METRICS, self._own(at)), *found])
        return self.text

    def complete(self) -> bytes:
        """Refresh until no part is under way; returns the text."""
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
            part.lines, fault = _lines(found), ""
        except (PlinthError, OSError, ValueError) as error:  # its last samples stay
            fault = " ".join(str(error).split())
        part.begun, part.up, part.seconds = None, not fault, time.perf_counter() - begun
        if fault and fault != part.fault:
            self._say(f"{part.name} cannot be collected: {fault}")
        part.fault = fault

    def _own(self, now: float) -> Iterable[MetricSample]:
        yield MetricSample("plinth_exporter_timestamp_seconds", (), now)
        yield MetricSample("plinth_exporter_read_bytes_total", (), float(self._read_bytes()))
        yield MetricSample("plinth_collector_up", ("exporter",), 1.0)
        for part in self.parts:
            yield MetricSample("plinth_collector_up", (part.name,), float(part.up))
            yield MetricSample("plinth_collector_seconds", (part.name,), part.seconds)


def _lines(found: Iterable[MetricSample | MetricLines]) -> list[MetricLines]:
    made, samples = list[MetricLines](), list[MetricSample]()
    for one in found:
        if isinstance(one, MetricSample):
            samples.append(one)
        else:
            made.append(one)
    return [*made, lines(METRICS, samples)]


def write(exporter: Exporter, path: Path) -> None:
    """Collect everything once into a file for node_exporter's textfile collector, replaced as a whole.

    Raises:
        StorageError, DiskFullError, WorkspaceError: as the operating system refuses.
    """
    try:
        write_bytes(path, exporter.complete())
    finally:
        exporter.end()


def serve(
    exporter: Exporter, host: str, port: int, over: Callable[[], bool], wait: Callable[[float], object] = time.sleep
) -> None:
    """Answer `GET /metrics` and refresh until it is over.

    Args:
        wait: for so many seconds, or until it may be over.

    Raises:
        OSError: the port is taken.
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
    """Return True if a Host header names this server; a name that was bound to its address (DNS rebinding) does not.

    Args:
        host, port: where it listens.
    """
    try:
        parts = urlsplit(f"//{named}")
        name, asked = parts.hostname or "", parts.port or 80
    except ValueError:
        return False
    if name in LOOPBACK or name == host.lower():
        return asked == port
    return host not in LOOPBACK and _is_address(name)  # a scrape from another machine, perhaps by a mapped port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _server(exporter: Exporter, host: str, port: int) -> http.server.ThreadingHTTPServer:
    class MetricsAnswer(http.server.BaseHTTPRequestHandler):
        timeout = 10.0  # of a client that sends nothing

        def do_GET(self) -> None:
            named, origin = self.headers.get("Host") or "", self.headers.get("Origin")
            if origin not in (None, f"http://{named}") or not _is_named(named, host, server.server_port):
                self.send_error(403)
                return
            found = self.path.partition("?")[0] in ("/", "/metrics")
            body = exporter.text if found else b"metrics are at /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a scrape every few seconds is no news."""

    http.server.ThreadingHTTPServer.daemon_threads = True
    server = http.server.ThreadingHTTPServer((host, port), MetricsAnswer)
    return server
