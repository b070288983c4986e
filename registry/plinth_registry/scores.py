"""Scores of measurements, and the speed of serving, as metrics of MLflow's record of a model, each with its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plinth import fingerprint
from plinth.errors import LineageError
from plinth.evaluation.measurement import measurement_of
from plinth.evaluation.serving import bounds
from plinth.records import Manifest
from plinth_registry.registration import BATCH, logged_model

#: Characters that MLflow takes of a digest.
DIGEST = 32


class LoggedScore(NamedTuple):
    """A number with the data that it was measured on."""

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
    """Log what was measured of a candidate's checkpoint, each number once. Returns how many numbers there are.

    Args:
        client: of MLflow.
        version: of the candidate; its run and MLflow's record of its model get the metrics.
        checkpoint: of the candidate.
        measured: manifests of measurements that have scores, by asset.
        speeds: of the checkpoint on this machine (`serving.records`).

    Raises:
        LineageError: one is of another checkpoint.
    """
    from mlflow.entities import Dataset, DatasetInput, Metric

    for asset, made in measured.items():
        if checkpoint.digest not in made.inputs.values():
            raise LineageError(f"{asset} is of another checkpoint", found=dict(made.inputs), expected=checkpoint.digest)
    scores = [score for _, made in sorted(measured.items()) for score in scores_of(made)]
    scores += speeds_of(speeds) if speeds and bounds.ASSET in measured else ()
    if not scores:
        return 0
    run = client.get_run(version.run_id)
    model = logged_model(client, run.info.experiment_id, version.tags["candidate"])
    # One fixed time for a candidate: MLflow keeps one copy of a metric that is logged twice alike.
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
    """The numbers of one manifest, and both ends of their intervals."""
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
    """The speeds and the memory of a record; its data is the machine and the prompt, so that others stand apart."""
    numbers = {name: record[name] for name in ("first_token_s", "kv_bytes_per_token", "peak_memory_bytes")}
    numbers |= {f"tokens_per_s/{sequences}": found for sequences, found in record["tokens_per_s"].items()}
    digest = fingerprint.digest({name: record[name] for name in record if name not in (*numbers, "tokens_per_s")})
    prefix = f"{bounds.ASSET}/measured"
    for name, value in sorted(numbers.items()):
        yield LoggedScore(f"{prefix}/{name}", float(value), prefix, digest[:DIGEST])
