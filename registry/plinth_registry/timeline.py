"""Relay a run's timeline to MLflow, in batches, each event once.

    step        every number of the event, under its own name, at its step
    evaluated   `heldout/SLICE`; `probe/NAME` (bits per byte), `probe/NAME/control` and the like; at its step
    figures     `final_loss`, `median_step_s`, `median_tokens_per_s` of the whole run (`describe`)
    others      `events/KIND`: how many of that kind there were until then (checkpoint, restart, intervention, …)

Marks on the MLflow run record how far it was relayed; events at or below them are skipped, so that a restarted
follower, or a run that repeats steps after a crash, leaves one point per step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from plinth_registry.registration import BATCH, ensure_run

STEP_TAG = "plinth.relayed_step"
SEQ_TAG = "plinth.relayed_seq"
COUNT_TAG = "plinth.event_counts"

#: Fields of an event that place it and are no metrics.
PLACE = frozenset({"seq", "step", "time", "attempt"})

#: Kinds of events whose running count is a metric.
COUNTED = frozenset(
    {"checkpoint", "save_failed", "uploaded", "upload_failed", "refused", "restart", "vanished", "resumed", "reshaped"}
    | {"signal", "intervention", "rolled_back", "skipped", "amended", "rank_failed"}
)


def relay(client: Any, experiment: str, run_id: str, events: Iterable[Mapping[str, Any]]) -> int:
    """Log a timeline's events as metrics. Returns how many steps were new.

    Args:
        experiment: the recipe's name.
        events: in order; an event that names no kind is a step. `time` (Unix seconds) is optional, `seq` is too for
            steps.
    """
    run = ensure_run(client, experiment, run_id)
    mark = _Mark(run.data.tags)
    fresh, batch = 0, list[Any]()
    for event in events:
        before = mark.tags
        metrics = [_metric(run, event, mark.step, name, value) for name, value in mark.take(event).items()]
        if batch and len(batch) + len(metrics) + len(before) > BATCH:  # MLflow counts both together
            _flush(client, run, batch, before)
            batch = []
        batch += metrics
        fresh += bool(metrics) and _is_step(event)
    if batch:
        _flush(client, run, batch, mark.tags)
    return fresh


def keep(client: Any, experiment: str, run_id: str, paths: Iterable[Path]) -> None:
    """Keep files, such as a run's page and its timeline, as artifacts of the MLflow run; what is there is replaced."""
    run = ensure_run(client, experiment, run_id)
    for path in paths:
        client.log_artifact(run.info.run_id, str(path))


def describe(
    client: Any, experiment: str, run_id: str, *, params: Mapping[str, Any], tags: Mapping[str, str],
    figures: Mapping[str, float],
) -> None:  # fmt: skip
    """Write what people look for first on an MLflow run: its parameters, who asked for it, its source, its figures.

    Args:
        params: of the run's configuration; they never change.
        tags: of MLflow's own (`mlflow.user`, `mlflow.source.name`, `mlflow.note.content` …).
        figures: by name, at one fixed time: MLflow keeps one copy of a metric that is logged twice alike.
    """
    from mlflow.entities import Metric, Param, RunTag

    run = ensure_run(client, experiment, run_id)
    known = run.data.params
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(name, value, run.info.start_time, 0) for name, value in figures.items()],
        params=[Param(name, str(value)) for name, value in params.items() if name not in known],
        tags=[RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value],
    )


class _Mark:
    """The last event of a run that was relayed, and the number of events of each kind until then.

    Args:
        tags: of the MLflow run.
    """

    def __init__(self, tags: Mapping[str, str]) -> None:
        self.step, self.seq, self.counts = _marked(tags) or (-1, 0, {})

    def take(self, event: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of an event; none when it was relayed before, or has none."""
        if _is_step(event):
            # by step, not by `seq`: after a resume the same steps come again, alike
            if event["step"] <= self.step:
                return {}
            self.step = event["step"]
            return {key: float(value) for key, value in event.items() if key not in PLACE and _number(value)}
        seq, kind = event.get("seq", 0), event.get("event", "")
        if seq <= self.seq:
            return {}
        self.seq = seq
        found = _scores(event) if kind == "evaluated" else {}
        if kind in COUNTED:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            found[f"events/{kind}"] = float(self.counts[kind])
        return found

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the MLflow run that hold the mark."""
        return {STEP_TAG: str(self.step), SEQ_TAG: str(self.seq), COUNT_TAG: json.dumps(self.counts, sort_keys=True)}


def _marked(tags: Mapping[str, str]) -> tuple[int, int, dict[str, int]] | None:
    """Last step and event, and the counts; None where somebody has set the tags to something else: all is relayed anew,
    which MLflow keeps once."""
    try:
        counts = {str(kind): int(count) for kind, count in json.loads(tags.get(COUNT_TAG, "{}")).items()}
        return int(tags.get(STEP_TAG, -1)), int(tags.get(SEQ_TAG, 0)), counts
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _is_step(event: Mapping[str, Any]) -> bool:
    return event.get("event", "step") == "step" and isinstance(event.get("step"), int)


def _scores(event: Mapping[str, Any]) -> dict[str, float]:
    """Held-out slices and probes; a probe's score under its own name, what goes with it below that."""
    found = {f"heldout/{name}": value for name, value in event.get("slices", {}).items()}
    for name, scores in event.get("probes", {}).items():
        found |= {f"probe/{name}" + ("" if key == "score" else f"/{key}"): value for key, value in scores.items()}
    return {key: float(value) for key, value in found.items() if _number(value)}


def _metric(run: Any, event: Mapping[str, Any], last: int, key: str, value: float) -> Any:
    from mlflow.entities import Metric

    time_s, step = event.get("time"), event.get("step")
    step = step if isinstance(step, int) else max(0, last)  # a restart has none: where the run had come to
    # Without a time of its own an event gets one that is the same whenever it is relayed.
    return Metric(key, value, int(time_s * 1000) if _number(time_s) else run.info.start_time + step, step)


def _flush(client: Any, run: Any, batch: list[Any], tags: Mapping[str, str]) -> None:
    """Metrics and marks in one request; one that is repeated logs equal metrics, which MLflow keeps once."""
    from mlflow.entities import RunTag

    client.log_batch(run.info.run_id, metrics=batch, tags=[RunTag(key, value) for key, value in tags.items()])


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
