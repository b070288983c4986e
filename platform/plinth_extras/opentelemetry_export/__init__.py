"""OpenTelemetry: runs and assets as spans, metrics and log records, sent by OTLP over HTTP.

    otlp          endpoints, ids, exporters: the only module that knows the SDK's pipeline
    run_spans     a run's timeline: jobs, attempts, rank-seconds by cause, saves, evaluations; metrics; log records
    asset_spans   an asset of the pipeline and its steps

OpenTelemetry's own environment variables configure it (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, …), and
nothing is sent without an endpoint. Runs are exported by the relay next to the supervisor, assets by the orchestrator,
and nothing by a rank. The SDK is imported at the first export (extra `otel`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from plinth.extensions import late, require
from plinth.operation.asset_listeners import AssetListener
from plinth.training.sinks.added import AddedSink

#: Signals of OTLP. Each has its own variables, such as OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_TRACES_EXPORTER.
SIGNALS: Final = ("traces", "metrics", "logs")


def signals() -> tuple[str, ...]:
    """Return the signals that the environment gives an endpoint to, and does not disable."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    return tuple(
        signal
        for signal in SIGNALS
        if any(os.environ.get(f"OTEL_EXPORTER_OTLP_{part}ENDPOINT") for part in ("", f"{signal.upper()}_"))
        and os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower() != "none"
    )


def _exporting(reference: str) -> Callable[..., Any]:
    """Return a function of this package that is imported at its first call, after a check that the SDK is installed."""

    def call(*args: Any) -> Any:
        require("opentelemetry.exporter.otlp.proto.http", "otel")
        return late(f"{__name__}.{reference}")(*args)

    return call


SINK = AddedSink("opentelemetry", lambda: bool(signals()), _exporting("run_spans:RunExport"))
LISTENER = AssetListener("opentelemetry", lambda: "traces" in signals(), _exporting("asset_spans:send"))
