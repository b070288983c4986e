"""Relay a run's timeline to MLflow, in batches, each event once.

A high-water mark on the MLflow run says what was relayed; events at or below it are skipped, so that a
restarted follower, or a run that repeats steps after a crash, leaves one point per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from registry.registration import BATCH, ensure_run

STEP_TAG = "plinth.relayed_step"
#: Fields of an event that place it and are no metrics.
PLACE = frozenset({"seq", "step", "time", "attempt"})


def relay(client: Any, experiment: str, run_id: str, events: Iterable[Mapping[str, Any]]) -> int:
    """Log the numeric fields of a timeline's step events as metrics. Returns how many were new.

    Args:
        experiment: the recipe's name.
        events: in order; those whose `event` is `step`, or that name none, and carry an integer `step`.
            `time` (Unix seconds) is optional.
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


def _forward(events: Iterable[Mapping[str, Any]], done: int) -> Iterator[Mapping[str, Any]]:
    """Step events beyond what is done, each step once: after a resume the same steps come again, alike."""
    for event in events:
        step = event.get("step")
        if event.get("event", "step") == "step" and isinstance(step, int) and step > done:
            done = step
            yield event


def _metrics(event: Mapping[str, Any], start_ms: int) -> list[Any]:
    from mlflow.entities import Metric

    time_s = event.get("time")
    # Without a time of its own an event gets one that is the same whenever it is relayed.
    at_ms = int(time_s * 1000) if _number(time_s) else start_ms + event["step"]
    return [
        Metric(key, float(value), at_ms, event["step"])
        for key, value in event.items()
        if key not in PLACE and _number(value)
    ]


def _flush(client: Any, run: Any, batch: list[Any], done: int) -> None:
    """A crash between the two calls repeats the first one, with equal metrics, which MLflow keeps once."""
    client.log_batch(run.info.run_id, metrics=batch)
    client.set_tag(run.info.run_id, STEP_TAG, str(done))


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
