"""An asset of the pipeline as spans: its materialization, and the steps whose tasks ran. The trace is that of the
orchestrator's run.
"""

from __future__ import annotations

from collections.abc import Iterator

from plinth.operation.asset_listeners import AssetUpdate
from plinth_extras.opentelemetry_export.otlp import Exporters, PlannedSpan, Trace
from plinth_extras.opentelemetry_export.run_spans import job_key, trace_name


def send(update: AssetUpdate) -> None:
    """Send the spans of an asset that was published or has failed.

    Raises:
        StorageError: the endpoint did not accept them.
    """
    if update.state == "started":  # spans are sent when they end
        return
    exporters = Exporters()
    try:
        exporters.send("traces", Trace(f"pipeline {update.run}").spans(planned(update)))
    finally:
        exporters.close()


def planned(update: AssetUpdate) -> Iterator[PlannedSpan]:
    """Yield the span of an asset, and one per step below it. The asset `run` refers to the trace of its training."""
    key, made = f"asset {update.asset} {update.began}", update.manifest
    facts = {
        "plinth.asset": update.asset,
        "plinth.recipe": update.recipe,
        "plinth.pipeline_run": update.run,
        "plinth.code_version": update.code_version,
        "plinth.reused": update.reused,
        **({"plinth.digest": made.digest, "plinth.rows": made.rows, "plinth.bytes": made.bytes} if made else {}),
    }
    run = made.stats.get("run_id") if made and update.asset == "run" else None
    linked = (trace_name(run), job_key(1)) if run else None
    began, at = round(update.began * 1e6), round(update.at * 1e6)
    yield PlannedSpan(key, "materialize asset", began, at, facts, error=update.error, linked=linked)
    for step, (begin, end) in update.times.items():
        cost = {f"plinth.{name}": value for name, value in update.steps[step]} if step in update.steps else {}
        own = {"plinth.asset": update.asset, "plinth.step_name": step, **cost}
        yield PlannedSpan(f"{key} {step}", step, round(begin * 1e6), round(end * 1e6), own, key)
