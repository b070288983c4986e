"""An OTLP receiver: an HTTP server that parses what it gets with the project's own protobuf messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MESSAGES = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


def value(any_value: Any) -> Any:
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(one: Any) -> dict[str, Any]:
    return {each.key: value(each.value) for each in one.attributes}


class Receiver:
    """What the server got, and the status that it answers."""

    def __init__(self) -> None:
        self.got: dict[str, list[Any]] = {path: [] for path in MESSAGES}
        self.headers: list[dict[str, str]] = []
        self.status, self.url = 200, ""

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for one in self.got["/v1/traces"]
            for r in one.resource_spans
            for s in r.scope_spans
            for span in s.spans
        ]

    @property
    def logs(self) -> list[Any]:
        return [
            log
            for one in self.got["/v1/logs"]
            for r in one.resource_logs
            for s in r.scope_logs
            for log in s.log_records
        ]

    @property
    def metrics(self) -> list[Any]:
        return [
            metric
            for one in self.got["/v1/metrics"]
            for r in one.resource_metrics
            for s in r.scope_metrics
            for metric in s.metrics
        ]

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(self.got["/v1/traces"][0].resource_spans[0].resource)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if found.status == 200:
                found.got[self.path].append(MESSAGES[self.path].FromString(data))
                found.headers.append(dict(self.headers))
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def endpoint(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """The receiver, as the endpoint of this process."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    return receiver
