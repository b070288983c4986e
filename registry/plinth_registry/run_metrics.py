"""Metrics in MLflow: a run's timeline, in batches, each event once; scores of a model, each with its data.

    step        every number of the event, under its own name, at its step
    evaluated   `heldout/SLICE`; `probe/NAME` (bits per byte), `probe/NAME/control` and the like; at its step
    figures     `final_loss`, `median_step_s`, `median_tokens_per_s` of the whole run (`describe`)
    others      `events/KIND`: running count of that kind (checkpoint, restart, intervention, …)

Tags of the MLflow run record the last event that was relayed, and earlier events are skipped. Therefore, there is one
point per step, even if the follower restarts or a run repeats steps after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from plinth import fingerprint
from plinth.errors import LineageError
from plinth.evaluation import serving
from plinth.evaluation.measurement import measurement_of
from plinth.records import Manifest
from plinth_registry.registration import BATCH, ensure_run, logged_model

STEP_TAG = "plinth.relayed_step"
SEQ_TAG = "plinth.relayed_seq"
COUNT_TAG = "plinth.event_counts"

#: Event fields that are not metrics.
PLACE = frozenset({"seq", "step", "time", "attempt"})

#: Kinds of events whose running count is a metric.
COUNTED = frozenset(
    {"checkpoint", "save_failed", "uploaded", "upload_failed", "refused", "restart", "vanished", "resumed", "reshaped"}
    | {"signal", "intervention", "rolled_back", "skipped", "amended", "rank_failed"}
)


def relay(client: Any, experiment: str, run_id: str, events: Iterable[Mapping[str, Any]]) -> int:
    """Log a timeline's events to MLflow as metrics, and return the number of new steps.

    Args:
        experiment: the recipe's name.
        events: events in order; an event without a kind is a step. `time` (Unix seconds) is optional, and `seq` is
            optional for steps.
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
    """Store files, such as a run's page and its timeline, as artifacts of the MLflow run. Existing artifacts are
    replaced."""
    run = ensure_run(client, experiment, run_id)
    for path in paths:
        client.log_artifact(run.info.run_id, str(path))


def describe(
    client: Any, experiment: str, run_id: str, *, params: Mapping[str, Any], tags: Mapping[str, str],
    figures: Mapping[str, float],
) -> None:  # fmt: skip
    """Write the main facts about an MLflow run: its parameters, requester, source and metrics of the whole run.

    Args:
        params: parameters of the run's configuration; they never change.
        tags: MLflow's own tags (`mlflow.user`, `mlflow.source.name`, `mlflow.note.content` …).
        figures: values by name, logged with a fixed time, so that MLflow deduplicates repeated metrics.
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
    """Position in a run's timeline up to which events were relayed: the last relayed event, and the number of relayed
    events of each kind.

    Args:
        tags: tags of the MLflow run.
    """

    def __init__(self, tags: Mapping[str, str]) -> None:
        self.step, self.seq, self.counts = _marked(tags) or (-1, 0, {})

    def take(self, event: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of an event. The result is empty if the event was relayed before or has no metrics."""
        if _is_step(event):
            # by step, not by `seq`: after a resume the same steps are repeated
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
        """Tags of the MLflow run that store the position in the timeline."""
        return {STEP_TAG: str(self.step), SEQ_TAG: str(self.seq), COUNT_TAG: json.dumps(self.counts, sort_keys=True)}


def _marked(tags: Mapping[str, str]) -> tuple[int, int, dict[str, int]] | None:
    """Return the last step, the last event and the number of events by kind from the tags. If the tags were changed,
    return None. Everything is then relayed again, and MLflow deduplicates equal metrics."""
    try:
        counts = {str(kind): int(count) for kind, count in json.loads(tags.get(COUNT_TAG, "{}")).items()}
        return int(tags.get(STEP_TAG, -1)), int(tags.get(SEQ_TAG, 0)), counts
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _is_step(event: Mapping[str, Any]) -> bool:
    return event.get("event", "step") == "step" and isinstance(event.get("step"), int)


def _scores(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of held-out slices and probes in an event. A probe's score has the probe's name; names of
    related values start with the probe's name."""
    found = {f"heldout/{name}": value for name, value in event.get("slices", {}).items()}
    for name, scores in event.get("probes", {}).items():
        found |= {f"probe/{name}" + ("" if key == "score" else f"/{key}"): value for key, value in scores.items()}
    return {key: float(value) for key, value in found.items() if _number(value)}


def _metric(run: Any, event: Mapping[str, Any], last: int, key: str, value: float) -> Any:
    from mlflow.entities import Metric

    time_s, step = event.get("time"), event.get("step")
    step = step if isinstance(step, int) else max(0, last)  # a restart has none: use the last step
    # An event without a time gets a reproducible one.
    return Metric(key, value, int(time_s * 1000) if _number(time_s) else run.info.start_time + step, step)


def _flush(client: Any, run: Any, batch: list[Any], tags: Mapping[str, str]) -> None:
    """Write metrics and the position in the timeline in one request. If the request is repeated, MLflow deduplicates
    the equal metrics."""
    from mlflow.entities import RunTag

    client.log_batch(run.info.run_id, metrics=batch, tags=[RunTag(key, value) for key, value in tags.items()])


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: Maximum length of a digest in MLflow.
DIGEST = 32


class LoggedScore(NamedTuple):
    """Score to log, with the name and digest of the data on which it was measured."""

    key: str
    value: float
    dataset: str
    digest: str


def log_scores(
    client: Any,
    version: Any,
    checkpoint: Manifest,
    measured: Mapping[str, Manifest],
    speeds: Mapping[str, Any] | None = None,
) -> int:
    """Log the measurements of a candidate's checkpoint, each number once, and return the count of numbers.

    Args:
        client: MLflow client.
        version: version of the candidate; the metrics are logged to its run and to MLflow's record of its model.
        checkpoint: checkpoint of the candidate.
        measured: manifests of measurements that have scores, by asset.
        speeds: serving speeds of the checkpoint on this machine (`evaluation.serving`).

    Raises:
        LineageError: a measurement belongs to another checkpoint.
    """
    from mlflow.entities import Dataset, DatasetInput, Metric

    for asset, made in measured.items():
        if checkpoint.digest not in made.inputs.values():
            raise LineageError(
                f"{asset} belongs to another checkpoint", found=dict(made.inputs), expected=checkpoint.digest
            )
    scores = [score for _, made in sorted(measured.items()) for score in scores_of(made)]
    scores += speeds_of(speeds) if speeds and serving.ASSET in measured else ()
    if not scores:
        return 0
    run = client.get_run(version.run_id)
    model = logged_model(client, run.info.experiment_id, version.tags["candidate"])
    # A fixed time per candidate, so that MLflow deduplicates repeated metrics.
    metrics = [
        Metric(
            one.key, one.value, run.info.start_time, 0,
            model_id=model.model_id, dataset_name=one.dataset, dataset_digest=one.digest,
        )
        for one in scores
    ]  # fmt: skip
    data = sorted({(one.dataset, one.digest) for one in scores})
    client.log_inputs(version.run_id, [DatasetInput(Dataset(name, digest, "plinth", name)) for name, digest in data])
    for start in range(0, len(metrics), BATCH):
        client.log_batch(version.run_id, metrics=metrics[start : start + BATCH])
    return len(scores)


def scores_of(made: Manifest) -> Iterator[LoggedScore]:
    """Yield the scores in a measurement's manifest, and the bounds of their intervals."""
    measurement = measurement_of(made.asset)
    if measurement is None or measurement.scores is None:
        return
    scores = measurement.scores(made)
    for prefix, metrics in scores.groups.items():
        for metric, found in metrics.items():
            key = f"{prefix}/{metric.replace(',', '.')}"
            for name, end in ((key, "value"), (f"{key}/low", "low"), (f"{key}/high", "high")):
                if isinstance(found.get(end), int | float):
                    yield LoggedScore(name, float(found[end]), scores.dataset, scores.digest[:DIGEST])


def speeds_of(record: Mapping[str, Any]) -> Iterator[LoggedScore]:
    """Yield the speeds and the memory use in a serving record. The machine and the prompt are logged as data, so that
    the speeds of different machines stay separate."""
    numbers = {name: record[name] for name in ("first_token_s", "kv_bytes_per_token", "peak_memory_bytes")}
    numbers |= {f"tokens_per_s/{sequences}": found for sequences, found in record["tokens_per_s"].items()}
    digest = fingerprint.digest({name: record[name] for name in record if name not in (*numbers, "tokens_per_s")})
    prefix = f"{serving.ASSET}/measured"
    for name, value in sorted(numbers.items()):
        yield LoggedScore(f"{prefix}/{name}", float(value), prefix, digest[:DIGEST])
