"""Offline replay and blame of a step, from checkpoints and manifests alone, in one process without a supervisor.

    python -m plinth.training.forensics.replay replay CONFIG STEP [--checkpoint N]
    python -m plinth.training.forensics.replay blame CONFIG STEP [--checkpoint N] [--baseline 4]

Each command prints one JSON document. `replay` scores the batch of the step with the newest committed checkpoint before
the step. It prints the loss of each document, and the worst spans with their text. `blame` also scores earlier batches
with the same parameters, and ranks documents, sources and buckets by their excess over the typical loss.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as forward
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from plinth.errors import MissingError, PlinthError
from plinth.launch.parameters import Launch
from plinth.model.decoder import Decoder
from plinth.model.folder import load_weights
from plinth.model.loss import IGNORED
from plinth.tokens.tokenizer import encode
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.shares import fetch_whole
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch, batches_of
from plinth.training.engine.batches import expand_batch
from plinth.training.guard.rules import TEXT_RULES
from plinth.training.parameters.parallel import Parallel
from plinth.training.step_documents import StepDocument, StepDocuments
from plinth.training.telemetry.timeline import History, timeline

# Token losses of a past step's batch under the parameters of a checkpoint, computed offline in one process.
#
#     R  rows of the global batch (sequences)    S  tokens of a sequence
#
# The batch is the run's global batch, from its manifests, in the order of the batch.


@dataclass(frozen=True)
class SequenceLosses:
    """Losses of one sequence of a step.

    Attributes:
        tokens: token ids [S + 1].
        losses: losses [S] of the targets, which are tokens 1 to S; NaN if a target is not scored.
        gradient: gradient norm of this sequence alone, if requested.
    """

    row: int
    tokens: npt.NDArray[np.int32]
    losses: npt.NDArray[np.float32]
    gradient: float | None = None


def checkpoint_before(config: RunConfig, step: int, wanted: int | None = None) -> int:
    """Verify and return the newest committed checkpoint that was not trained on `step`, or the requested checkpoint.

    Raises:
        MissingError: there is no such checkpoint.
        CheckpointError: the checkpoint has changed since it was committed.
    """
    steps = checkpoint.committed(config.directory)
    fitting = [one for one in steps if (one == wanted if wanted is not None else one < step)]
    if not fitting:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {wanted if wanted is not None else f'before step {step}'}",
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="select a checkpoint with --checkpoint; a later checkpoint was trained on the batch, so its losses "
            "are lower"
            + (f". Steps after {steps[0]} do not need --checkpoint" if steps and wanted is None else ""),
        )
    fetch_whole(config, fitting[-1])
    checkpoint.verify(config.directory, fitting[-1])
    return fitting[-1]


def load(config: RunConfig, step: int) -> Decoder:
    """Load the model of a verified checkpoint in FP32, on the GPU if there is one.

    Raises:
        CheckpointError: the checkpoint's tensors do not match the run's model.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = Decoder(config.model_at(step), config.vocab_size)
    digests = checkpoint.digests(config.directory, step, "model")
    load_weights(model, checkpoint.path(config.directory, step) / "model", device, torch.float32, digests)
    return model


def batch_of(config: RunConfig, step: int) -> StepBatch:
    """Return the whole batch of a step, one sequence per micro batch."""
    alone = {"launch": Launch(ranks=1), "parallel": Parallel(), "micro_batch_sequences": 1}
    return next(iter(batches_of(config.model_copy(update=alone), 0)(step)))


def rows(model: Decoder, batch: StepBatch, *, gradients: bool = False) -> Iterator[SequenceLosses]:
    """Yield every sequence of a batch with the loss of each of its tokens.

    A sequence that training cuts into shorter rows is scored in the same rows.
    """
    device = next(model.parameters()).device
    for row, own in enumerate(batch.micro):
        inputs, segments, targets = expand_batch(own, batch.length, device, segments=model.config.document_mask)
        with torch.set_grad_enabled(gradients):
            losses = _losses(model, inputs, segments, targets)
        norm = _gradient(model, losses, targets) if gradients else None
        seen = losses.detach().masked_fill(targets == IGNORED, float("nan")).flatten().cpu().numpy()
        yield SequenceLosses(row, own.tokens[0].astype(np.int32), seen, norm)


def _losses(model: Decoder, inputs: Tensor, segments: Tensor | None, targets: Tensor) -> Tensor:
    """Return the losses [rows, length] in nats."""
    logits = model(inputs, segments)
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view_as(targets)


def _gradient(model: Decoder, losses: Tensor, targets: Tensor) -> float:
    """Return the norm of the gradient of a sequence's mean loss."""
    model.zero_grad(set_to_none=True)
    (losses.sum() / (targets != IGNORED).sum().clamp(min=1)).backward()  # type: ignore[no-untyped-call]
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return float(torch.linalg.vector_norm(torch.stack(norms)))


# Blame: attribution of a step's loss to documents, sources and buckets.
#
#     excess of a document = (its loss - the typical loss of its bucket) x its share of the batch's targets
#
# Excesses add up to the batch's mean loss minus the mean loss of a typical batch from the same buckets, in nats. The
# typical loss is the median over documents of earlier steps under the same parameters. For a bucket without earlier
# documents it is the median over all documents.
#
# Pure functions of numbers and names.

#: Tokens of a displayed span, and spans per document.
SPAN, SPANS = 16, 3


@dataclass(frozen=True)
class ScoredDocument:
    """The tokens of one document in one row, with their losses.

    Attributes:
        losses: losses of the document's targets; NaN if a target is not scored.
        start: position of the document's first target in the row.
        gradient: gradient norm of the whole row.
    """

    seen: StepDocument
    losses: npt.NDArray[np.float32]
    start: int
    gradient: float | None = None

    @property
    def targets(self) -> int:
        return int((~np.isnan(self.losses)).sum())

    @property
    def loss(self) -> float:
        """Mean loss over the document's targets, or NaN if there are none."""
        return float(np.nanmean(self.losses)) if self.targets else math.nan


def scored(seen: StepDocument, row: npt.NDArray[np.float32], gradient: float | None = None) -> ScoredDocument:
    """Return a document's part of a row of losses [S]. Target t of the row is token t + 1."""
    start = max(0, seen.first - 1)
    return ScoredDocument(seen, row[start : max(start, seen.first + seen.tokens - 1)], start, gradient)


def typical(documents: Iterable[ScoredDocument]) -> dict[str, float]:
    """Return the median loss of each bucket. The empty name maps to the median over all documents."""
    by_bucket: dict[str, list[float]] = defaultdict(list)
    for document in documents:
        if document.targets:
            by_bucket[document.seen.bucket].append(document.loss)
            by_bucket[""].append(document.loss)
    return {bucket: median(values) for bucket, values in sorted(by_bucket.items())}


def rank(
    documents: Sequence[ScoredDocument],
    usual: Mapping[str, float],
    text: Callable[[ScoredDocument, int, int], str] | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Rank documents, sources and buckets by excess loss, the largest first.

    Args:
        usual: typical losses, from `typical`.
        text: returns the text of targets `first` to `last` of a document, for its worst spans.
        most: maximum number of listed documents; None lists all documents.
    """
    targets = max(1, sum(document.targets for document in documents))
    counted = [document for document in documents if document.targets]
    rows = sorted((_row(document, usual, targets) for document in counted), key=lambda row: -row["excess"])
    by_place = {(document.seen.row, document.seen.first): document for document in counted}
    for row in rows[:most]:
        document = by_place[row["row"], row["first"]]
        row["spans"] = worst_spans(document, text)
    return {
        "loss": round(sum(document.loss * document.targets for document in counted) / targets, 6),
        "excess": round(sum(row["excess"] for row in rows), 6),
        "typical": {bucket or "all": round(value, 6) for bucket, value in usual.items()},
        "sources": _grouped(rows, ("bucket", "source")),
        "buckets": _grouped(rows, ("bucket",)),
        "documents_count": len(rows),
        "documents": rows[:most],
    }


def worst_spans(
    document: ScoredDocument, text: Callable[[ScoredDocument, int, int], str] | None
) -> list[dict[str, Any]]:
    """Return the spans of `SPAN` targets with the largest mean loss in a document. Spans do not overlap."""
    losses = np.nan_to_num(document.losses, nan=0.0)
    width = min(SPAN, len(losses))
    means = np.convolve(losses, np.ones(width) / width, mode="valid")
    spans = []
    for _ in range(SPANS):
        at = int(means.argmax())
        if means[at] <= 0:
            break
        span: dict[str, Any] = {"first": document.start + at + 1, "tokens": width, "loss": round(float(means[at]), 4)}
        if text is not None:
            span["text"] = text(document, document.start + at + 1, document.start + at + 1 + width)
        spans.append(span)
        means[max(0, at - width + 1) : at + width] = 0.0
    return spans


def _row(document: ScoredDocument, usual: Mapping[str, float], targets: int) -> dict[str, Any]:
    seen = document.seen
    expected = usual.get(seen.bucket, usual.get("", document.loss))
    row: dict[str, Any] = {
        "row": seen.row,
        "first": seen.first,
        "tokens": seen.tokens,
        "id": seen.id,
        "bucket": seen.bucket,
        "source": seen.source,
        "uri": seen.uri,
        "loss": round(document.loss, 6),
        "typical": round(expected, 6),
        "excess": (document.loss - expected) * document.targets / targets,
    }
    if document.gradient is not None:
        row["row_gradient_norm"] = round(document.gradient, 6)
    return row


def _grouped(rows: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the excess loss of each source or bucket, summed over its documents, the largest first."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    found = []
    for key, members in groups.items():
        tokens = sum(row["tokens"] for row in members)
        found.append(
            {
                **dict(zip(names, key, strict=True)),
                "documents": len(members),
                "tokens": tokens,
                "loss": round(sum(row["loss"] * row["tokens"] for row in members) / tokens, 6),
                "excess": sum(row["excess"] for row in members),
            }
        )
    return sorted(found, key=lambda group: -group["excess"])


#: Number of earlier steps that define the typical loss, and number of preceding steps that they are chosen from.
BASELINE, REACH = 4, 64

#: Rules of the guard that suspect the batch of a step. The other rules watch longer parts of a run.
OF_BATCH = ("nonfinite", "loss_spike", "gradient_spike", "layer_gradient", "activations", *TEXT_RULES)

#: Maximum number of sequences in a batch for which each sequence gets its own backward pass.
GRADIENT_ROWS = 64


def replay(config: RunConfig, step: int, wanted: int | None = None) -> dict[str, Any]:
    """Return the loss of each document in a step's batch, the highest first.

    Raises:
        MissingError: the step does not exist, no checkpoint precedes it, or the run's manifests no longer exist.
        CheckpointError: the checkpoint cannot be trusted.
    """
    view = _View(config, checkpoint_before(config, step, wanted))
    found = rank(list(view.documents(step)), {"": 0.0}, view.text)
    names = ("row", "first", "tokens", "id", "bucket", "source", "uri", "loss", "spans")
    documents = [{name: row[name] for name in names} for row in found["documents"]]
    documents.sort(key=lambda row: -row["loss"])
    return {**view.about(step), "loss": found["loss"], "documents_count": len(documents), "documents": documents}


def blame(config: RunConfig, step: int, wanted: int | None = None, baseline: int = BASELINE) -> dict[str, Any]:
    """Return the documents, sources and buckets of a step, ranked by their excess loss.

    Raises:
        MissingError: the step does not exist, no checkpoint precedes it, or the run's manifests no longer exist.
        CheckpointError: the checkpoint cannot be trusted.
    """
    view = _View(config, checkpoint_before(config, step, wanted))
    compared = baseline_steps(step, baseline, suspect_steps(timeline(config.directory.events)))
    usual = typical(document for other in compared for document in view.documents(other))
    gradients = config.steps.batch(step - 1) <= GRADIENT_ROWS
    found = rank(list(view.documents(step, gradients=gradients)), usual, view.text, most=100)
    return {**view.about(step), "baseline_steps": compared, **found}


def baseline_steps(step: int, count: int, without: Collection[int] = ()) -> list[int]:
    """Return `count` steps spread evenly over the last `REACH` steps before `step`, except the steps in `without`.

    If there are no such steps, return later steps. Pass bad steps as `without`. Otherwise they count as typical, and
    the first step of a bad window hides the second.
    """
    before = list(islice((other for other in range(step - 1, 0, -1) if other not in without), REACH))
    if not before:
        return list(islice((other for other in forward(step + 1) if other not in without), count))
    count = min(count, len(before))
    return sorted({before[at * len(before) // count] for at in range(count)})


def suspect_steps(history: History) -> set[int]:
    """Return all suspect steps: skipped steps, steps with a skipped update, and steps in the window of a rule that
    suspects the batch."""
    interventions = [event for event in history.events if event["event"] == "intervention"]
    windows = [event["window"] for event in interventions if event["rule"] in OF_BATCH]
    kept_back = {step for step, event in history.steps.items() if event.get("vetoed")}
    return history.skipped | kept_back | {step for first, last in windows for step in range(first, last + 1)}


class _View:
    """Losses of the run's batches under the parameters of one checkpoint."""

    def __init__(self, config: RunConfig, at: int) -> None:
        self.config, self.at = config, at
        self.documents_of = StepDocuments(config)
        self.model: Decoder = load(config, at)
        (part,) = self.documents_of.ctx.refs.load(config.tokenizer).named("tokenizer.json")
        self._tokenizer = encode.load(self.documents_of.ctx.store, part.blob)
        self._tokens: dict[tuple[int, int], Any] = {}

    def documents(self, step: int, *, gradients: bool = False) -> Iterator[ScoredDocument]:
        """Yield the documents of a step with their losses, in the order of the batch."""
        seen = self.documents_of.of_step(step)
        for row in rows(self.model, batch_of(self.config, step), gradients=gradients):
            self._tokens[step, row.row] = row.tokens
            for document in (one for one in seen if one.row == row.row):
                yield scored(document, row.losses, row.gradient)

    def text(self, document: ScoredDocument, first: int, last: int) -> str:
        """Return the text of tokens `first` to `last` in a document's row."""
        tokens = self._tokens[document.seen.step, document.seen.row][first:last]
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        return text

    def about(self, step: int) -> dict[str, Any]:
        """Return the fields with which every result begins: run, step, checkpoint, and the original loss and gradient
        norm."""
        history = timeline(self.config.directory.events)
        trained = history.steps.get(step)
        taken_back = [event for event in history.undone if event["step"] == step]
        event = trained or (taken_back[-1] if taken_back else {})
        return {
            "run": self.config.run_id,
            "step": step,
            "checkpoint": self.at,
            "seen_loss": event.get("loss"),
            "seen_grad_norm": event.get("grad_norm"),
            "trained": step in history.steps and not history.steps[step].get("vetoed", False),
        }


def main() -> int:
    """Replay or blame the step named on the command line, print the result as JSON, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m plinth.training.forensics.replay", description=__doc__)
    parser.add_argument("what", choices=("replay", "blame"))
    parser.add_argument("config", help="runs/<run_id>/config.json")
    parser.add_argument("step", type=int)
    parser.add_argument(
        "--checkpoint", type=int, help="committed step to load; by default the newest committed step before STEP"
    )
    parser.add_argument(
        "--baseline", type=int, default=BASELINE, help="for `blame`: number of earlier steps to compare with"
    )
    arguments = parser.parse_args()
    try:
        config = configuration.load(arguments.config)
        if arguments.what == "replay":
            found = replay(config, arguments.step, arguments.checkpoint)
        else:
            found = blame(config, arguments.step, arguments.checkpoint, arguments.baseline)
    except PlinthError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
