"""Relay a run's timeline to MLflow, in batches, each event once.

A high-water mark on the MLflow run says what was relayed; events at or below it are skipped, so that a
restarted follower, or a run that repeats steps after a crash, leaves one point per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from registry.registration import BATCH, ensure_run

STEP_TAG = "plinth.relayed_step"
#: Fields of an event that place it and are no metrics.
PLACE = frozenset({"step", "time", "timestamp", "time_s", "rank"})


def relay(client: Any, experiment: str, run_id: str, events: Iterable[Mapping[str, Any]]) -> int:
    """Log every numeric field of events that have a `step`, as metrics. Returns how many events were new.

    Args:
        events: in order; `step` is an integer, `time` (seconds since the epoch) is optional.
    """
    run = ensure_run(client, experiment, run_id)
    done = int(run.data.tags.get(STEP_TAG, -1))
    fresh = 0
    batch: list[Any] = []
    for event in _forward(events, done):
        metrics = _metrics(event, run.info.start_time)
        if batch and len(batch) + len(metrics) > BATCH:
            _flush(client, run, batch, done)
            batch = []
        batch += metrics
        done = event["step"]
        fresh += 1
    if batch:
        _flush(client, run, batch, done)
    return fresh


def finish(client: Any, experiment: str, run_id: str, status: str) -> None:
    """Say how the run ended: FINISHED, FAILED or KILLED."""
    run = ensure_run(client, experiment, run_id)
    if run.info.status != status:
        client.set_terminated(run.info.run_id, status=status)


def _forward(events: Iterable[Mapping[str, Any]], done: int) -> Iterator[Mapping[str, Any]]:
    """Events beyond what is done; several at one step count as one row if they follow each other."""
    pending: dict[str, Any] = {}
    for event in events:
        step = event.get("step")
        if not isinstance(step, int) or step <= done:
            continue
        if pending and step > pending["step"]:
            yield pending
            pending = {}
        if not pending or step == pending["step"]:
            pending.update(event)
    if pending:
        yield pending


def _metrics(event: Mapping[str, Any], start_ms: int) -> list[Any]:
    from mlflow.entities import Metric

    time_s = next((event[key] for key in ("time", "timestamp", "time_s") if _number(event.get(key))), None)
    # Without a time of its own an event gets one that is the same whenever it is relayed.
    at_ms = start_ms + event["step"] if time_s is None else int(time_s * 1000)
    return [
        Metric(key, float(value), at_ms, event["step"])
        for key, value in event.items()
        if key not in PLACE and _number(value)
    ]


def _flush(client: Any, run: Any, batch: list[Any], done: int) -> None:
    """A crash between the two calls repeats the first one, with equal metrics, which MLflow keeps once."""
    client.log_batch(run.info.run_id, metrics=batch)
    client.set_tag(run.info.run_id, STEP_TAG, str(done))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
