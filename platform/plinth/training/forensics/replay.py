"""Replays and blames a step offline, from checkpoints and manifests alone; one process, no supervisor.

    python -m plinth.training.forensics.replay replay CONFIG STEP [--checkpoint N]
    python -m plinth.training.forensics.replay blame CONFIG STEP [--checkpoint N] [--baseline 4]

prints one JSON document. `replay` scores the batch of the step under the newest committed checkpoint that has not
learnt from it: loss by document, worst spans with their text. `blame` scores earlier batches as well, under the
same parameters, and ranks documents, sources and buckets by their excess over the typical loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator
from itertools import count as forward
from itertools import islice
from typing import Any

from plinth.errors import PlinthError
from plinth.model.decoder import Decoder
from plinth.tokens.tokenizer import encode
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.forensics import blame as ranking
from plinth.training.forensics import step_losses
from plinth.training.forensics.blame import ScoredDocument
from plinth.training.guard.screening import TEXT_RULES
from plinth.training.step_documents import StepDocuments
from plinth.training.telemetry.timeline import History, timeline

#: Number of earlier steps that define the typical loss, and of the last steps that they are chosen from.
BASELINE, REACH = 4, 64

#: Rules of the guard that suspect a step's batch; the others watch stretches of a run.
OF_BATCH = ("nonfinite", "loss_spike", "gradient_spike", "layer_gradient", "activations", *TEXT_RULES)

#: Sequences of a batch up to which every one gets a backward pass of its own.
GRADIENT_ROWS = 64


def replay(config: RunConfig, step: int, wanted: int | None = None) -> dict[str, Any]:
    """Loss by document of a step's batch, the highest first.

    Raises:
        MissingError: no such step, no checkpoint before it, or its manifests are gone.
        CheckpointError: the checkpoint cannot be trusted.
    """
    view = _View(config, step_losses.checkpoint_before(config, step, wanted))
    found = ranking.rank(list(view.documents(step)), {"": 0.0}, view.text)
    names = ("row", "first", "tokens", "id", "bucket", "source", "uri", "loss", "spans")
    documents = [{name: row[name] for name in names} for row in found["documents"]]
    documents.sort(key=lambda row: -row["loss"])
    return {**view.about(step), "loss": found["loss"], "documents_count": len(documents), "documents": documents}


def blame(config: RunConfig, step: int, wanted: int | None = None, baseline: int = BASELINE) -> dict[str, Any]:
    """Documents, sources and buckets of a step by their excess of its loss.

    Raises:
        As `replay`.
    """
    view = _View(config, step_losses.checkpoint_before(config, step, wanted))
    compared = baseline_steps(step, baseline, suspect_steps(timeline(config.directory.events)))
    usual = ranking.typical(document for other in compared for document in view.documents(other))
    gradients = config.steps.batch(step - 1) <= GRADIENT_ROWS
    found = ranking.rank(list(view.documents(step, gradients=gradients)), usual, view.text, most=100)
    return {**view.about(step), "baseline_steps": compared, **found}


def baseline_steps(step: int, count: int, without: Collection[int] = ()) -> list[int]:
    """Steps spread evenly over the last `REACH` before `step` that are not `without`; those after where there are none.

    A bad step among them would pass for typical: the second step of a window would be excused by the first.
    """
    before = list(islice((other for other in range(step - 1, 0, -1) if other not in without), REACH))
    if not before:
        return list(islice((other for other in forward(step + 1) if other not in without), count))
    count = min(count, len(before))
    return sorted({before[at * len(before) // count] for at in range(count)})


def suspect_steps(history: History) -> set[int]:
    """Steps that were left out, kept back, or in the window of a rule that suspects the batch."""
    interventions = [event for event in history.events if event["event"] == "intervention"]
    windows = [event["window"] for event in interventions if event["rule"] in OF_BATCH]
    kept_back = {step for step, event in history.steps.items() if event.get("vetoed")}
    return history.skipped | kept_back | {step for first, last in windows for step in range(first, last + 1)}


class _View:
    """The losses of the run's batches under the parameters of one checkpoint."""

    def __init__(self, config: RunConfig, at: int) -> None:
        self.config, self.at = config, at
        self.documents_of = StepDocuments(config)
        self.model: Decoder = step_losses.load(config, at)
        (part,) = self.documents_of.ctx.refs.load(config.tokenizer).named("tokenizer.json")
        self._tokenizer = encode.load(self.documents_of.ctx.store, part.blob)
        self._tokens: dict[tuple[int, int], Any] = {}

    def documents(self, step: int, *, gradients: bool = False) -> Iterator[ScoredDocument]:
        """The documents of a step with their losses, in the order of the batch."""
        seen = self.documents_of.of_step(step)
        for row in step_losses.rows(self.model, step_losses.batch_of(self.config, step), gradients=gradients):
            self._tokens[step, row.row] = row.tokens
            for document in (one for one in seen if one.row == row.row):
                yield ranking.scored(document, row.losses, row.gradient)

    def text(self, document: ScoredDocument, first: int, last: int) -> str:
        """The text of tokens `first` to `last` of a document's row."""
        tokens = self._tokens[document.seen.step, document.seen.row][first:last]
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        return text

    def about(self, step: int) -> dict[str, Any]:
        """The fields that every answer begins with."""
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
    """Print the answer as JSON; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m plinth.training.forensics.replay", description=__doc__)
    parser.add_argument("what", choices=("replay", "blame"))
    parser.add_argument("config", help="runs/<run_id>/config.json")
    parser.add_argument("step", type=int)
    parser.add_argument("--checkpoint", type=int, help="committed step; by default the newest before STEP")
    parser.add_argument("--baseline", type=int, default=BASELINE, help="blame: earlier steps to compare with")
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
